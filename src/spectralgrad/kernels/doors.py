"""Which kernel does a piece of work: a GPU's, the CPU's native one, or none; then plain torch does it.

The twins of a piece are modules with the same functions. None says that plain torch is to do it. What a kernel does not
know by name is ``given``, and computed only where one runs.
"""

from collections.abc import Callable

from torch import Tensor

from spectralgrad.context import may_launch
from spectralgrad.counters import device_counter

from . import eigenpairs, spectral
from .cpu import functions, pullback
from .eigenpairs import Coefficients, Cotangents, Rounding
from .spectral import ScalarFunction

Given = Callable[[], Tensor] | None


def on_a_gpu(x: Tensor) -> bool:
    """Whether a GPU's kernels are asked; the emulator of tests says yes to all."""
    return x.is_cuda


def function_value(
    V: Tensor, w: Tensor, function: ScalarFunction, given: Given, counter: str | None
) -> tuple[Tensor, bool] | None:
    """V f(w) V^T (*B, n, n) with f by name or given (*B, n); and whether an eigenvalue may lie outside the domain of f.

    ``counter``: of the eigenvalues that are clamped; None counts none.
    """
    twin = spectral if on_a_gpu(V) else functions
    if not twin.runs_on(V):
        return None
    clamped = None if counter is None else device_counter(counter, V.device)
    return twin.value(V, w, function, given and given(), clamped)  # type: ignore[no-any-return]


def function_derivative(V: Tensor, w: Tensor, function: ScalarFunction, given: Given, G: Tensor) -> Tensor | None:
    """Its derivative V (F * (V^T sym(G) V)) V^T (*B, n, n), with the Loewner matrix F of f, or given (*B, n, n)."""
    twin = spectral if on_a_gpu(V) else functions
    if G.shape != V.shape or not may_launch(G) or not twin.runs_on(V):  # a kernel does not broadcast
        return None
    return twin.derivative(V, w, function, given and given(), G)  # type: ignore[no-any-return]


def eigenpairs_pullback(
    pairs: tuple[Tensor, Tensor],
    of: Cotangents,
    by: Coefficients,
    given: Given,
    scale_free: bool,
    rounding: Rounding,
) -> Tensor | None:
    """The gradient of a matrix from those of its eigenpairs, where autograd need not see what is done to them."""
    twin = eigenpairs if on_a_gpu(pairs[1]) else pullback
    if of.gV.shape != pairs[1].shape or not twin.runs_on(pairs[1], *of):
        return None
    return twin.pullback(pairs, of, by, given and given(), scale_free, rounding)  # type: ignore[no-any-return]
