"""Power iteration with deflation from a random start: the papers' «PI»."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spectralgrad.context import compiling, transforming
from spectralgrad.errors import OptionError
from spectralgrad.kernels import power
from spectralgrad.validation import is_whole

from ..moves import moved
from ..node import Shortcut, Some, run
from ..precision import matmul
from ..scaling import exponent


@dataclass(frozen=True)
class PowerDeflation:
    """The papers' «PI» baseline: power iterations with deflation, differentiated through by autograd.

    Each eigenvector starts at random, takes ``steps`` iterations v <- M v / |M v|, and is then removed from the matrix,
    M <- M - M v v^T; eigenvalues are Rayleigh quotients. The convergence rate is the ratio of neighbouring eigenvalues,
    so close ones come out mixed, and the errors pile up through the deflation: that is the baseline's known fault.

    It brings its own gradient, so it cannot be combined with ``gradient=``.

    Args:
        steps: power iterations for each eigenvector.
        generator: source of the random starts; torch's default generator if None.

    Raises:
        OptionError: an option out of its range.

    >>> import torch, spectralgrad as sg
    >>> M = torch.diag(torch.tensor([1.0, 2.0, 4.0]))
    >>> w, V = sg.eigh(M, solver=sg.PowerDeflation(50, torch.Generator().manual_seed(0)))
    >>> w
    tensor([1., 2., 4.])
    """

    steps: int
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.steps):
            raise OptionError(f"`PowerDeflation`: steps must be a whole number >= 1, got {self.steps!r}.")
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            raise OptionError(f"`PowerDeflation`: generator must be a torch.Generator or None, got {self.generator!r}.")

    def iterate(self, H: Tensor) -> tuple[Tensor, Tensor]:
        """Differentiable approximate eigenpairs, ascending: w (*B, n), V (*B, n, n)."""
        if H.numel() == 0:
            return H.new_empty(H.shape[:-1], dtype=H.real.dtype), H
        start = torch.empty(H.shape, dtype=H.dtype, device=H.device).normal_(generator=self.generator)
        if compiling() or transforming() or not power.runs_on(H):
            return iterated(H, start, self.steps)
        return run(_Iterated(self.steps, H.requires_grad and torch.is_grad_enabled()), H, start)  # type: ignore[no-any-return]


class _Iterated(Shortcut):
    """`iterated` in kernels."""

    def __init__(self, steps: int, needed: bool) -> None:
        self.steps, self.needed = steps, needed

    def value(self, H: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        w, V, self.kept = power.iterate(H, start, self.steps, keep=self.needed)
        return w, V

    def composition(self, H: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        return iterated(H, start, self.steps)

    def pull_shortly(self, kept: Sequence[Tensor], grads: Some, needed: Sequence[bool]) -> Some:
        gw, gV = (torch.zeros_like(y) if g is None else g for g, y in zip(grads, (kept[0][..., 0], kept[0]), strict=True))
        return power.retrace(kept[0], self.kept, gw, gV, self.steps), None


def iterated(H: Tensor, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """`PowerDeflation.iterate` of (*B, n, n) matrices from the columns of ``start`` (*B, n, n), in plain torch."""
    k = exponent(H.detach())
    H = moved(H, -k)  # squares below neither overflow nor underflow
    values, vectors = [], []
    for i in range(H.shape[-1]):
        v = _normalize(start[..., i, None])  # (*B, n, 1)
        for _ in range(steps):
            v = _normalize(matmul(H, v), otherwise=v)
        Hv = matmul(H, v)
        values.append((v.conj() * Hv).sum((-2, -1)).real)
        vectors.append(v[..., 0])
        H = H - matmul(Hv, v.mH)
    w, order = moved(torch.stack(values, -1), k).sort(-1)
    V = torch.stack(vectors, -1)
    return w, V.gather(-1, order.unsqueeze(-2).expand_as(V))


def _normalize(v: Tensor, otherwise: Tensor | None = None) -> Tensor:
    """v / |v|, or ``otherwise`` where the matrix has nothing left and M v is zero."""
    size = (v.real.square() + v.imag.square() if v.is_complex() else v.square()).sum(-2, keepdim=True)
    alive = size > 0
    unit = v * torch.where(alive, size, 1).rsqrt()
    return unit if otherwise is None else torch.where(alive, unit, otherwise)
