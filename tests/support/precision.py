"""float32 products in fewer bits, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def matmul_precision(level: str) -> Iterator[None]:
    """torch's setting for float32 products. Both of its records are put back, the word and what backends made of it.

    A word that stays is what the next test puts back, and "highest" in a backend outranks the flags above it.
    """
    owners = (torch.backends.mkldnn.matmul, torch.backends.cuda.matmul)
    word, before = torch.get_float32_matmul_precision(), [owner.fp32_precision for owner in owners]
    torch.set_float32_matmul_precision(level)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(word)
        for owner, value in zip(owners, before, strict=True):
            owner.fp32_precision = value
