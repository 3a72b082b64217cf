"""What tests on a GPU share: errors against the CPU, no waiting, capture, precision flags."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from support import cases

T = TypeVar("T")


def error(got: Tensor, want: Tensor) -> float:
    """Relative, in the Frobenius norm, wherever the two are."""
    return cases.relative_error(got.detach().cpu(), want.detach().cpu())


@contextmanager
def no_host_wait() -> Iterator[None]:
    """Whatever makes the host wait for the device raises RuntimeError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode is a prototype, says torch
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def captured(call: Callable[[], T]) -> tuple[T, T, Callable[[], None]]:
    """What the last of three eager calls on a stream of their own gave, what a CUDA graph of the call writes, its replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            eager = call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        written = call()

    def replay(_owner: Callable[[], T] = call) -> None:  # a graph does not keep alive what it reads
        graph.replay()

    return eager, written, replay
