"""Weights of spectral norm 1 (SN) and orthogonal weights (OW), as torch parametrizations."""

from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

from spectralgrad.context import checking
from spectralgrad.errors import DtypeError, OptionError, ShapeError
from spectralgrad.linalg.eigh import eigh
from spectralgrad.linalg.moves import moved
from spectralgrad.linalg.polar import polar
from spectralgrad.linalg.precision import in_widest, matmul
from spectralgrad.linalg.scaling import exponent
from spectralgrad.validation import as_given, as_matrix, require_dense, require_finite

from .exponential import reflect, reflectors, skew_exponential
from .matrix_view import out_dim, to_matrix, to_weight

__all__ = ["orthogonal_weight", "spectral_norm"]

Layer = TypeVar("Layer", bound=nn.Module)


class SpectralNorm(nn.Module):
    """W / s_max(W); see `spectral_norm`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, weight: Tensor) -> Tensor:
        W = as_matrix("spectral_norm", to_matrix(weight, self.dim), square=False, name="weight")
        # s_max^2 is the largest eigenvalue of the smaller Gram matrix. Squaring blurs small singular values, not the
        # largest, and eigh is many times faster than an SVD. With a largest entry from 1/2 to 1 nothing over- or
        # underflows, and the eigenvalue is at least 1/4, or exactly 0. Its gradient v v^T needs no gap.
        W = moved(W, -exponent(W.detach()))
        X = in_widest(W)  # the same rounding whatever the flags for float32 say
        gram = matmul(X.mH, X) if X.shape[0] >= X.shape[1] else matmul(X, X.mH)
        square = eigh(gram.to(W.dtype))[0][-1]
        W = W / torch.where(square > 0, square, 1).sqrt()
        return as_given(to_weight(W, weight.shape, self.dim), weight)

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class OrthogonalWeight(nn.Module):
    """Q_0 exp(A - A^T) with A = 0 at the start, or exp(A - A^T) alone; see `orthogonal_weight`."""

    base: Tensor | None

    def __init__(self, weight: Tensor, dim: int, keep: bool) -> None:
        super().__init__()
        self.dim = dim
        start = torch.eye(*self._tall(weight).shape, dtype=weight.dtype, device=weight.device)  # until `right_inverse`
        self.register_buffer("base", start if keep else None)

    def _tall(self, weight: Tensor) -> Tensor:
        """(m, k) with m >= k, in the widest dtype: in float64 W^T W = I costs nothing, and the cast back one rounding."""
        W = in_widest(to_matrix(weight, self.dim))
        return W if W.shape[0] >= W.shape[1] else W.mT

    def forward(self, original: Tensor) -> Tensor:
        W = skew_exponential(self._tall(original))
        if self.base is not None:
            W = reflect(in_widest(self.base), W)
        out = original.shape[self.dim]
        return to_weight(W if out == W.shape[0] else W.mT, original.shape, self.dim).to(original.dtype)

    def right_inverse(self, weight: Tensor) -> Tensor:
        if self.base is None:
            return weight
        if not weight.is_meta:  # no values there, and no geqrf
            self.base = reflectors(polar(self._tall(weight))).to(weight.dtype)
        return torch.zeros_like(weight)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, keep={self.base is not None}"


def _weight_of(who: str, module: nn.Module, name: str) -> Tensor:
    """The tensor to parametrize, or the error that says why not."""
    if not isinstance(module, nn.Module):
        raise OptionError(f"`{who}`: `module` must be a torch.nn.Module, got {type(module).__name__}. Pass the layer.")
    weight = getattr(module, name, None) if isinstance(name, str) else None
    if not isinstance(weight, Tensor):
        raise OptionError(
            f"`{who}`: {type(module).__name__} has no parameter called {name!r}. Pass the layer that holds the weight."
        )
    if is_lazy(weight):
        raise OptionError(f"`{who}`: `{name}` has no shape yet. Run the module once, then attach.")
    require_dense(who, weight, name)
    if weight.ndim < 2 or weight.numel() == 0:
        raise ShapeError(
            f"`{who}`: `{name}` must have at least two dimensions, (out, in, ...), none of them 0, got shape "
            f"{tuple(weight.shape)}."
        )
    if checking(weight):
        require_finite(who, weight, name)
    if is_parametrized(module, name):
        _require_free(who, name, list(module.parametrizations[name]))  # type: ignore[index]
    return weight


def _require_free(who: str, name: str, present: list[nn.Module]) -> None:
    """SN may follow a parametrization that is not ours; OW could not keep the weight and comes first."""
    if who == "spectral_norm" and not any(isinstance(p, (SpectralNorm, OrthogonalWeight)) for p in present):
        return
    raise OptionError(
        f"`{who}`: `{name}` already has {', '.join(type(p).__name__ for p in present)} attached. Call "
        f"torch.nn.utils.parametrize.remove_parametrizations(module, {name!r}) first."
    )


def spectral_norm(module: Layer, name: str = "weight") -> Layer:
    """Divide a weight by its largest singular value (SN): W / s_max(W) (ECCV22 eq. 11).

    The singular value is exact in every pass, training or not, by an eigendecomposition: there is no state to carry along
    and nothing that has to converge, as in power iteration. A zero weight stays zero.

    Args:
        module: a layer; changed in place.
        name: its parameter, seen as (out, in*kh*kw).

    Returns:
        The same module. `torch.nn.utils.parametrize.remove_parametrizations` takes the treatment off.

    Raises:
        OptionError: no such parameter, or a treatment is attached to it already; nothing has changed then.
        ShapeError, DtypeError, NonFiniteError: the weight is no matrix, not floating point, not finite.

    >>> import torch, spectralgrad as sg
    >>> conv = sg.orthogonal.spectral_norm(torch.nn.Conv2d(3, 64, 3))
    >>> torch.linalg.matrix_norm(conv.weight.flatten(1), ord=2).round(decimals=5)
    tensor(1., grad_fn=<RoundBackward1>)
    """
    _weight_of("spectral_norm", module, name)
    register_parametrization(module, name, SpectralNorm(out_dim(module)))  # which calls it, before anything is changed
    return module


def orthogonal_weight(module: Layer, name: str = "weight", *, keep: bool = True) -> Layer:
    """Make a weight orthogonal by the exponential of a skew matrix (OW): exp(A - A^T) (ECCV22 eq. 13).

    With m x k the shape of the weight as (out, in*kh*kw), transposed if wide, the parameter A (m, k), filled up with zero
    columns to (m, m), gives

        W = Q_0 exp(A - A^T) [I; 0],      W^T W = I,

    the first k columns. Q_0 is constant and A starts at 0, so that W starts at the polar factor of the present weight, the
    orthogonal matrix nearest to it. The optimizer holds A, in the shape of the weight: weight decay,
    `NearestOrthogonalGradient` and `OptimalLearningRate` act on A, not on W.

    Args:
        module: a layer; changed in place.
        name: its parameter, real.
        keep: False is the paper's form: Q_0 = I, and A starts as the present weight, which is not kept.

    Returns:
        The same module. `torch.nn.utils.parametrize.remove_parametrizations` takes the treatment off.

    Raises:
        OptionError: no such parameter, or it is parametrized already; nothing has changed then.
        ShapeError, DtypeError, NonFiniteError: the weight is no matrix, not real, not finite.

    >>> import torch, spectralgrad as sg
    >>> conv = sg.orthogonal.orthogonal_weight(torch.nn.Conv2d(3, 64, 3))
    >>> W = conv.weight.flatten(1)  # (64, 27)
    >>> bool((W.T @ W - torch.eye(27)).abs().max() < 1e-6)
    True
    """
    weight = _weight_of("orthogonal_weight", module, name)
    if not weight.is_floating_point():
        raise DtypeError(f"`orthogonal_weight`: `{name}` must be real and floating point, got {weight.dtype}.")
    treatment = OrthogonalWeight(weight.detach(), out_dim(module), keep)
    register_parametrization(module, name, treatment)
    return module
