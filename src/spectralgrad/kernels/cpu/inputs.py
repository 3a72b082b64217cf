"""What the kernels take, and how matrices lie in memory."""

import torch
from torch import Tensor

from spectralgrad.context import may_launch

from ..buffers import contiguous
from .load import Functions


def takes(x: Tensor, functions: Functions) -> bool:
    """Whether there is a kernel for ``x``: dense, on the CPU, with entries and memory of its own, traced by nothing."""
    return x.is_cpu and x.dtype in functions and may_launch(x) and x.layout is torch.strided


def as_rows(x: Tensor) -> Tensor:
    """``x`` as kernels read it."""
    return x if x.is_contiguous() and not x.is_neg() else contiguous(x)


def laid_out(x: Tensor, bit: int) -> tuple[Tensor, int]:
    """Matrices (*B, n, n) like ``x`` in memory that a kernel reads, and ``bit`` if they lie there in columns, else 0."""
    if x.is_contiguous() and not x.is_neg():
        return x, 0
    columns = x.mT
    if columns.is_contiguous() and not x.is_neg():
        return columns, bit
    return contiguous(x), 0
