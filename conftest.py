"""Tests marked `cuda` are skipped where torch finds no GPU; `make test-gpu` runs them, and nothing else."""

import os

# Some virtual machines announce AMX and then refuse it: torch's bfloat16 products die of an illegal instruction there.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
