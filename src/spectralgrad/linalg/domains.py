"""Where eigenvalues may lie, and what happens to those that rounding pushed across the border."""

import torch
from torch import Tensor

from spectralgrad.errors import DefinitenessError

_ZERO = 4  # times eps l_max: LAPACK's usual error in an eigenvalue, so less than that counts as zero
_NEGATIVE = 10  # times n eps l_max: more than rounding in the matrix and the solver can push a zero below zero


def spectral_radius(w: Tensor) -> Tensor:
    """max |w| (*B, 1) of ascending eigenvalues (*B, n)."""
    return torch.maximum(-w[..., :1], w[..., -1:])


def zero_tolerance(w: Tensor) -> Tensor:
    """Eigenvalues up to this (*B, 1) count as zero.

    Four eps l_max whatever n is: with n eps l_max a covariance of 128 channels plus 1e-5 would count as singular in
    float32, although its gradient is good to a few per cent.
    """
    return _ZERO * float(torch.finfo(w.dtype).eps) * spectral_radius(w)


def require_not_negative(who: str, w: Tensor, advice: str) -> None:
    """Raise if an ascending spectrum (*B, n) reaches further below zero than rounding explains. Reads the host once."""
    if w.numel() == 0:
        return
    rounding = max(_NEGATIVE * w.shape[-1], 100) * float(torch.finfo(w.dtype).eps)
    negative = w[..., :1] < -rounding * spectral_radius(w)
    if bool(negative.any()):
        raise DefinitenessError(
            f"`{who}`: `M` must be positive semi-definite, but {int(negative.sum())} of {negative.numel()} matrices have a "
            f"negative eigenvalue, the lowest {float(w.min()):.3e} against a largest of {float(w.max()):.3e}. {advice}"
        )


def require_positive(who: str, w: Tensor, advice: str) -> None:
    """Raise if an ascending spectrum (*B, n) is singular to rounding, or negative. Reads the host once."""
    if w.numel() == 0:
        return
    lowest, highest = w[..., 0], w[..., -1]
    regular = lowest > _ZERO * float(torch.finfo(w.dtype).eps) * highest  # a negative spectrum fails this too
    if not bool(regular.all()):
        singular = ~regular
        raise DefinitenessError(
            f"`{who}`: `M` must be positive definite, but {int(singular.sum())} of {singular.numel()} matrices are singular "
            f"or indefinite to rounding: smallest eigenvalue {float(w.min()):.3e}, largest {float(w.max()):.3e}. {advice}"
        )
