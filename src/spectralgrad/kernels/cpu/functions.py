"""V diag(f(w)) V^T and its derivative on the CPU; see functions.h. Twin of kernels/spectral.py."""

from ctypes import c_double, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from ..spectral import ScalarFunction
from .eigh import FAR, LARGEST, NO_MEMORY, OUTSIDE, work
from .inputs import as_rows, laid_out, takes
from .load import functions
from .team import threads

_NUMBERS = (c_int64, c_int, c_int, c_int, c_double, c_double, c_int)
_VALUE = functions("value", c_int, *[c_void_p] * 5, *_NUMBERS)
_DERIVATIVE = functions("derivative", c_int, *[c_void_p] * 5, *_NUMBERS)
_KINDS = {"GIVEN": 0, "SQRT": 1, "INVERSE_SQRT": 2, "POWER": 3, "LOG": 4, "EXP": 5}  # as in functions.h
_BORDERS = {"NOTHING": 0, "TO_ZERO": 1, "TO_ROUNDING": 2, "NOT_NEGATIVE": 3}
_FLOORED = 8


def runs_on(V: Tensor) -> bool:
    """Whether the kernels take eigenvectors (*B, n, n) like ``V``."""
    return V.shape[-1] <= LARGEST and takes(V, _VALUE)


def value(
    V: Tensor, w: Tensor, function: ScalarFunction, given: Tensor | None, clamped: Tensor | None
) -> tuple[Tensor, bool] | None:
    """V diag(f(w)) V^T (*B, n, n), or with diag(given (*B, n)), symmetric to the last bit; and whether an eigenvalue may lie
    outside the domain of f.

    Args:
        clamped: an int64 counter that gets the number of eigenvalues that were zero to rounding; None counts none.
    """
    V, layout = laid_out(V, 1)
    w, given = as_rows(w), None if given is None else as_rows(given)
    n, out = V.shape[-1], torch.empty_like(V)
    batch = V.numel() // (n * n)
    status = _VALUE[V.dtype](
        n, V.data_ptr(), w.data_ptr(), None if given is None else given.data_ptr(), out.data_ptr(),
        None if clamped is None else clamped.data_ptr(), batch, layout, *_described(function), threads(batch * work(n)),
    )  # fmt: skip
    return None if status & NO_MEMORY else (out, bool(status & OUTSIDE))


def derivative(V: Tensor, w: Tensor, function: ScalarFunction, given: Tensor | None, G: Tensor) -> Tensor | None:
    """V (F * (V^T sym(G) V)) V^T (*B, n, n), F the Loewner matrix of the function, or given (*B, n, n).

    None for spectra that plain torch must take care of: near the ends of the range of numbers, or that wide.
    """
    V, layout = laid_out(V, 1)
    G, _ = laid_out(G, 1)  # its symmetric part alone counts
    w, given = as_rows(w), None if given is None else as_rows(given)
    n, out = V.shape[-1], torch.empty_like(V)
    batch = V.numel() // (n * n)
    status = _DERIVATIVE[V.dtype](
        n, V.data_ptr(), w.data_ptr(), G.data_ptr(), None if given is None else given.data_ptr(), out.data_ptr(),
        batch, layout, *_described(function), threads(batch * work(n)),
    )  # fmt: skip
    return None if status & (FAR | NO_MEMORY) else out


def _described(function: ScalarFunction) -> tuple[int, int, float, float]:
    floor = function.floor
    border = _BORDERS[function.border] | (0 if floor is None else _FLOORED)
    return _KINDS[function.kind], border, function.alpha, 0.0 if floor is None else floor
