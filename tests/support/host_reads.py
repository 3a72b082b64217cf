"""Finds reads of a tensor's values by the host, on the CPU, where they cost nothing and so go unseen."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
READS = {
    aten._local_scalar_dense.default,  # item(), float(), bool() and a tensor in the place of a number
    aten.equal.default,
    aten.is_nonzero.default,
    aten.nonzero.default,  # its size depends on values
    aten.masked_select.default,
    aten.unique_dim.default,
    aten._unique2.default,
}


class HostReads(TorchDispatchMode):
    """Records the operations inside the block for which a host would wait for its GPU.

    >>> with HostReads() as reads:
    ...     if torch.ones(1) + 1 > 0:
    ...         pass
    >>> reads.found
    ['aten._local_scalar_dense.default']
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        # A boolean mask as an index is a hidden nonzero; what matrix_exp reads it reads inside the operator.
        masks = func is aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1])
        if func in READS or masks or func is aten.linalg_matrix_exp.default:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))
