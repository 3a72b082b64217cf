"""The gradient of a matrix from those of its eigenpairs on the CPU; see pullback.h. Twin of kernels/eigenpairs.py."""

from ctypes import c_double, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from spectralgrad.counters import count

from ..buffers import contiguous
from ..eigenpairs import Coefficients, Cotangents, Rounding
from .eigh import LARGEST, NO_MEMORY, TIED, work
from .inputs import laid_out, takes
from .load import functions
from .team import threads

_PULLBACK = functions(
    "pullback", c_int, *[c_void_p] * 6, c_int64, c_int, c_int, c_int, c_double, c_double, c_double, c_int
)  # fmt: skip
_RULES = {"GIVEN": 0, "ANALYTIC": 1, "CLIP": 2, "EXACT": 3, "LORENTZIAN": 4, "TAYLOR": 5}  # as in pullback.h
_V_IN_COLUMNS, _GRADIENT_IN_COLUMNS = 1, 4


def runs_on(V: Tensor, *others: Tensor | None) -> bool:
    """Whether the kernel takes eigenvectors (*B, n, n) like ``V``, and autograd need not see what it does to these."""
    given = [V, *(x for x in others if x is not None)]
    return V.shape[-1] <= LARGEST and all(takes(x, _PULLBACK) for x in given) and not torch.is_grad_enabled()


def pullback(
    pairs: tuple[Tensor, Tensor],
    of: Cotangents,
    by: Coefficients,
    given: Tensor | None,
    scale_free: bool,
    rounding: Rounding,
) -> Tensor | None:
    """V (sym(K * X) + diag(gw)) V^T (*B, n, n), X = V^T gV without the rounding of close pairs.

    Args:
        pairs: eigenvalues (*B, n), ascending, and eigenvectors (*B, n, n).
        given: K (*B, n, n) where ``by`` is GIVEN: of the eigenvalues, or with ``scale_free`` of those at scale 1.
        scale_free: whether K of c times the eigenvalues is K / c.
    """
    w = contiguous(pairs[0])
    V, layout = laid_out(pairs[1], _V_IN_COLUMNS)
    gV, more = laid_out(of.gV, _GRADIENT_IN_COLUMNS)
    gw, K = (None if x is None else contiguous(x) for x in (of.gw, given))
    n, out = V.shape[-1], torch.empty_like(V)
    batch = V.numel() // (n * n)
    status = _PULLBACK[V.dtype](
        n, V.data_ptr(), w.data_ptr(), gV.data_ptr(), None if gw is None else gw.data_ptr(),
        None if K is None else K.data_ptr(), out.data_ptr(), batch, layout | more, _RULES[by.kind], scale_free,
        by.number, rounding.CLOSE, rounding.NOISE, threads(batch * work(n)),
    )  # fmt: skip
    if status & TIED:
        count("tied_eigenvectors")
    return None if status & NO_MEMORY else out
