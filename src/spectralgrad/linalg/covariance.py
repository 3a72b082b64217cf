"""Covariance to full working accuracy, grouped, from moments that merge exactly."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import may_look
from spectralgrad.errors import NonFiniteError, OptionError, ShapeError
from spectralgrad.validation import as_given, as_matrix, is_number, is_whole, overflow_advice, require_finite

from .precision import hermitian_part, matmul, widest

__all__ = ["Moments", "covariance", "merge_moments", "moments"]


class Moments(NamedTuple):
    """What a set of samples leaves behind: enough for its mean and covariance, and to be merged with another set's.

    Attributes:
        samples: (), how many, in float64 (float32 on a device without it).
        mean: (*B, C), or (*B, groups, group_size).
        scatter: (*B, C, C), or (*B, groups, group_size, group_size): the sum of (x - mean)(x - mean)^H.

    >>> import torch, spectralgrad as sg
    >>> sg.moments(torch.tensor([[1.0, 3.0]])).scatter
    tensor([[2.]])
    """

    samples: Tensor
    mean: Tensor
    scatter: Tensor

    def covariance(self, *, correction: float = 0.0, eps: float = 0.0) -> Tensor:
        """scatter / (samples - correction) + eps I."""
        smallest = torch.finfo(self.scatter.dtype).tiny  # no samples, no scatter: 0, not NaN
        C = self.scatter / (self.samples - correction).to(self.scatter.real.dtype).clamp(min=smallest)
        return C + eps * torch.eye(C.shape[-1], dtype=C.dtype, device=C.device) if eps else C


def moments(X: Tensor, *, group_size: int | None = None) -> Moments:
    """Number, mean and centred second moment of samples in columns, in two passes.

    The first pass finds the mean, the second sums products of centred values and corrects for what rounding left in the
    mean, so that a mean of 1e4 standard deviations costs no digits. Products are taken in full precision whatever
    TF32, autocast or matmul-precision flags say. Half precision is computed, and returned, in float32.

    Args:
        X: (*B, C, n): C channels of n samples.
        group_size: split the channels into C / group_size groups, each with its own covariance; None is one group, with
            no group dimension.

    Returns:
        `Moments`. Values are not looked at: NaN in gives NaN out, and no samples give zeros.

    Raises:
        ShapeError: X is no matrix.
        OptionError: group_size does not divide the channels.
        DtypeError.

    >>> import torch, spectralgrad as sg
    >>> sg.moments(torch.tensor([[1.0, 3.0], [2.0, 2.0]])).mean
    tensor([2., 2.])
    """
    return moments_of(_as_groups("moments", X, group_size))


def moments_of(X: Tensor) -> Moments:
    """`moments` of samples (*B, C, n) that need no checks, in float32 or wider."""
    n = X.shape[-1]
    mean = X.sum(-1) / max(n, 1)
    centred = X - mean.unsqueeze(-1)
    rest = centred.sum(-1) / max(n, 1)  # what rounding left in the mean
    scatter = matmul(centred, centred.mH) - n * rest.unsqueeze(-1) * rest.conj().unsqueeze(-2)
    count = torch.full((), n, dtype=widest(X.real), device=X.device)
    return Moments(count, mean + rest, hermitian_part(scatter))


def merge_moments(parts: Sequence[Moments]) -> Moments:
    """The moments of the union of disjoint sets of samples; an empty set changes nothing.

    n = sum n_i, mean = sum n_i mean_i / n, scatter = sum scatter_i + n_i (mean_i - mean)(mean_i - mean)^H (Chan et al.)

    Args:
        parts: one `Moments` or more, of one shape.

    Raises:
        ShapeError: of different shapes.
        OptionError: none, or something else than `Moments`.

    >>> import torch, spectralgrad as sg
    >>> a, b = sg.moments(torch.tensor([[1.0, 3.0]])), sg.moments(torch.tensor([[5.0]]))
    >>> sg.merge_moments([a, b]).covariance(correction=1.0)
    tensor([[4.]])
    """
    if not isinstance(parts, (list, tuple)) or not parts or not all(isinstance(part, Moments) for part in parts):
        raise OptionError(f"`merge_moments`: parts must be at least one Moments, got {parts!r}. Pass a list of them.")
    shapes = [tuple(part.scatter.shape) for part in parts]
    if any(shape != shapes[0] for shape in shapes):
        raise ShapeError(f"`merge_moments`: all parts must have the same shape, got {sorted(set(shapes))}.")
    counts = torch.stack([part.samples for part in parts])  # (parts,)
    means = torch.stack([part.mean for part in parts])  # (parts, *B, C)
    real = means.real.dtype
    weights = (counts / counts.sum().clamp(min=1)).to(real)
    expand = (-1,) + (1,) * (means.ndim - 1)
    mean = (weights.view(expand) * means).sum(0)
    shift = means - mean
    between = counts.to(real).view(*expand, 1) * shift.unsqueeze(-1) * shift.conj().unsqueeze(-2)
    scatter = torch.stack([part.scatter for part in parts]).sum(0) + between.sum(0)
    return Moments(counts.sum(), mean, scatter)


def covariance(X: Tensor, *, group_size: int | None = None, correction: float = 0.0, eps: float = 0.0) -> Tensor:
    """The covariance of samples in columns, divided by their number, plus eps I.

    Args:
        X: (*B, C, n): C channels of n samples.
        group_size: as in `moments`.
        correction: subtracted from n in the divisor: 0 for the papers' covariance, 1 for the unbiased one.
        eps: a shift of the diagonal.

    Returns:
        (*B, C, C), or (*B, groups, group_size, group_size); half precision is rounded back.

    Raises:
        ShapeError: no more samples than ``correction``, or X is no matrix.
        OptionError: group_size does not divide the channels, eps is negative.
        NonFiniteError: X is not finite, or its covariance is not.
        DtypeError.

    >>> import torch, spectralgrad as sg
    >>> sg.covariance(torch.tensor([[1.0, 3.0], [2.0, 2.0]]))
    tensor([[1., 0.],
            [0., 0.]])
    """
    if not (is_number(eps) and eps >= 0):
        raise OptionError(f"`covariance`: eps must be a finite number >= 0, got {eps!r}.")
    if not is_number(correction):
        raise OptionError(f"`covariance`: correction must be a finite number, got {correction!r}.")
    known = isinstance(X, Tensor) and not X.is_nested and X.ndim >= 2  # others get their error below
    n = X.shape[-1] if known else 1 + correction
    if n <= correction:
        raise ShapeError(f"`covariance`: `X` must have more than {correction:g} samples in its last dimension, got {n}.")
    C = moments_of(_as_groups("covariance", X, group_size)).covariance(correction=correction, eps=eps)
    if may_look(C) and not bool(torch.isfinite(C.detach()).all()):
        require_finite("covariance", X, "X")
        raise NonFiniteError(
            f"`covariance`: the covariance of `X` overflows {C.dtype}: entries reach {float(X.detach().abs().max()):.2e}. "
            f"{overflow_advice('Scale the input down', C.dtype)}"
        )
    return as_given(C, X)


def _as_groups(who: str, X: Tensor, group_size: int | None) -> Tensor:
    X = as_matrix(who, X, square=False, name="X")
    if group_size is None:
        return X
    channels = X.shape[-2]
    if not is_whole(group_size) or channels % group_size:
        raise OptionError(
            f"`{who}`: group_size must be a whole number that divides the {channels} channels, got {group_size!r}."
        )
    grouped: Tensor = X.unflatten(-2, (channels // group_size, group_size))
    return grouped
