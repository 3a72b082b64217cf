"""The layers' passes over (N, C, *) inputs as plain torch operations, for all that kernels and plain nodes cannot do."""

import torch
from torch import Tensor

from spectralgrad.linalg.covariance import moments
from spectralgrad.linalg.precision import matmul
from spectralgrad.validation import is_transformed

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def as_samples(x: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """(N, C, *) -> (groups, C/groups, n), n = N times all positions; no copy where the channels lie last in memory."""
    X = x.to(dtype).transpose(0, 1).flatten(1)
    return X.view(groups, X.shape[0] // groups, X.shape[1])


def as_input(Y: Tensor, given: Tensor) -> Tensor:
    """The way back from `as_samples`, in the shape, dtype and memory format of ``given``."""
    y = Y.to(given.dtype).reshape(given.shape[1], given.shape[0], *given.shape[2:]).transpose(0, 1)
    last = _CHANNELS_LAST.get(given.ndim)
    if last is None or given.is_contiguous() or (not torch.compiler.is_compiling() and is_transformed(given)):
        return y.contiguous()  # vmap knows no other format
    return y.contiguous(memory_format=last if given.is_contiguous(memory_format=last) else torch.contiguous_format)


def affine(X: Tensor, A: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """weight * A (X - mean) + bias for X (groups, d, n), centred first: after it a large mean would cost digits."""
    centred = X - mean.unsqueeze(-1)
    shape = (*X.shape[:-1], 1)
    diagonal = A.ndim == 2
    A = A.unsqueeze(-1) if diagonal else A
    if weight is not None:
        A = weight.to(X.dtype).view(shape) * A
    Y = A * centred if diagonal else matmul(A, centred)
    return Y if bias is None else Y + bias.to(X.dtype).view(shape)


def transform(x: Tensor, B: Tensor, mean: Tensor, bias: Tensor | None) -> Tensor:
    """B (x - mean) + bias for x (N, C, *), B (groups, d, d) and mean (C,)."""
    X = as_samples(x, len(B), B.dtype)
    return as_input(affine(X, B, mean.view(X.shape[:-1]), None, bias), x)


def mean_and_scatter(x: Tensor, groups: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(C,) and (groups, d, d) of x (N, C, *)."""
    batch = moments(as_samples(x, groups, dtype))
    return batch.mean.flatten(), batch.scatter
