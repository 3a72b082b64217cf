"""What the kernels take, and how matrices lie in memory."""

import torch
from torch import Tensor
from torch.nn import Parameter

from spectralgrad.compiling import is_tracing

from ..buffers import contiguous
from .load import Functions


def takes(x: Tensor, functions: Functions) -> bool:
    """Whether there is a kernel for ``x``: dense, on the CPU, with entries and memory of its own, traced by nothing."""
    return (
        x.dtype in functions
        and type(x) in (Tensor, Parameter)
        and x.is_cpu
        and x.layout is torch.strided
        and x.numel() > 0
        and torch._C._has_storage(x)
        and not is_tracing()
    )


def laid_out(x: Tensor, bit: int) -> tuple[Tensor, int]:
    """Matrices (*B, n, n) like ``x`` in memory that a kernel reads, and ``bit`` if they lie there in columns, else 0."""
    if x.is_contiguous() and not x.is_neg():
        return x, 0
    columns = x.mT
    if columns.is_contiguous() and not x.is_neg():
        return columns, bit
    return contiguous(x), 0
