"""Batch statistics of (N, C, *) inputs and the affine map by them, in plain torch operations: the twin of the kernels."""

import torch
from torch import Tensor

from spectralgrad.context import is_transformed, tracing
from spectralgrad.linalg.covariance import moments_of
from spectralgrad.linalg.precision import matmul

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_identities: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}


def as_samples(x: Tensor, d: int, dtype: torch.dtype) -> Tensor:
    """(N, C, *) -> (C/d, d, n), n = N times all positions; no copy where the channels lie last in memory."""
    X = x.to(dtype).transpose(0, 1).flatten(1)
    return X.view(X.shape[0] // d, d, X.shape[1])


def as_input(Y: Tensor, given: Tensor) -> Tensor:
    """The way back from `as_samples`, in the shape, dtype and memory format of ``given``."""
    y = Y.to(given.dtype).reshape(given.shape[1], given.shape[0], *given.shape[2:]).transpose(0, 1)
    return y.contiguous(memory_format=format_of(given))


def format_of(x: Tensor) -> torch.memory_format:
    """channels_last where ``x`` (N, C, *) has only that; else contiguous, as inside vmap, which knows no other."""
    last = _CHANNELS_LAST.get(x.ndim)
    if last is None or x.is_contiguous() or (is_transformed(x)):
        return torch.contiguous_format
    return last if x.is_contiguous(memory_format=last) else torch.contiguous_format


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
    X = as_samples(x, B.shape[-1], B.dtype)
    return as_input(affine(X, B, mean.view(X.shape[:-1]), None, bias), x)


def owned(buffer: Tensor, dtype: torch.dtype) -> Tensor:
    """A buffer for a graph that may save it: a copy, since a training pass may move the buffer before backward.

    What torch.jit traces saves nothing, and must come out the same with and without gradients.
    """
    return buffer.to(dtype, copy=torch.is_grad_enabled() and not torch.jit.is_tracing())  # type: ignore[attr-defined]


def mean_and_scatter(x: Tensor, groups: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(C,) and (groups, d, d) of x (N, C, *)."""
    batch = moments_of(as_samples(x, x.shape[1] // groups, dtype))
    return batch.mean.flatten(), batch.scatter


def covariance_of(scatter: Tensor, samples: int | Tensor, correction: float = 0.0) -> Tensor:
    """scatter / (samples - correction), and 0 where there are no samples."""
    if isinstance(samples, Tensor):
        return scatter / (samples - correction).clamp(min=1).to(scatter.dtype)
    return scatter / max(samples - correction, 1)  # one operation where the number is known


def shifted(M: Tensor, eps: float) -> Tensor:
    """M + eps I (*B, d, d). On CUDA, where making I takes three kernels, a kept one serves."""
    d, dtype, device = M.shape[-1], M.dtype, M.device
    # With alpha `torch.func.linearize` crashes, in torch 2.9 to 2.15.
    if tracing():
        return M + eps * torch.eye(d, dtype=dtype, device=device)
    if device.type != "cuda":
        return torch.add(M, torch.eye(d, dtype=dtype, device=device), alpha=eps)
    identity = _identities.get((d, dtype, device))
    if identity is None:
        with torch.inference_mode(False):
            identity = torch.eye(d, dtype=dtype, device=device)
        # What is made while a CUDA graph is captured lives in the graph's memory, and a fake tensor in no memory at all.
        if type(identity) is Tensor and not torch.cuda.is_current_stream_capturing():
            _identities[d, dtype, device] = identity
    return torch.add(M, identity, alpha=eps)
