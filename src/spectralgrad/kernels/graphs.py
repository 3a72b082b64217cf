"""Functions of tensors that a GPU replays: one launch instead of a hundred, where the host takes most of the time."""

import threading
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Replayed"]

Computation = Callable[..., Tensor]
MOST = 16  # records that a function keeps, with the memory of their intermediate results


class Record:
    """A function's launches for tensors of one kind, as a CUDA graph with memory of its own."""

    def __init__(self, function: Computation, inputs: tuple[Tensor, ...]) -> None:
        self.graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(False), torch.no_grad():  # what is kept must serve inside inference mode and outside
            self.inputs = tuple(x.clone() for x in inputs)
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.result = function(*self.inputs)

    def __call__(self, *inputs: Tensor) -> Tensor:
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        self.graph.replay()
        return self.result.clone()


class Replayed:
    """A function that is recorded when it meets tensors of a kind for the second time, and replayed from then on.

    A kind is shapes, dtypes, device and stream. What is met once is not worth a record, which takes longer than the
    function. A function that cannot be recorded is called. On the CPU, inside another capture and where a gradient is
    wanted it is called too.

    Args:
        function: of CUDA tensors, to one tensor. It depends on nothing but them, and the host reads none of their values.

    >>> twice = Replayed(lambda x: 2 * x)
    >>> twice(torch.ones(2)), len(twice.records)
    (tensor([2., 2.]), 0)
    """

    def __init__(self, function: Computation) -> None:
        self.function = function
        self.records: OrderedDict[tuple[object, ...], Record | None] = OrderedDict()  # None: met once
        self.refused: set[tuple[object, ...]] = set()
        self.lock = threading.Lock()  # a record's memory serves one call at a time

    def __call__(self, *inputs: Tensor) -> Tensor:
        if not replayable(inputs):
            return self.function(*inputs)
        with self.lock, torch.cuda.device(inputs[0].device):
            kind = kind_of(inputs)
            record = self._record_of(kind, inputs)
            return self.function(*inputs) if record is None else record(*inputs)

    def _record_of(self, kind: tuple[object, ...], inputs: tuple[Tensor, ...]) -> Record | None:
        if kind in self.refused:
            return None
        if kind in self.records:
            try:
                self.records[kind] = self.records[kind] or Record(self.function, inputs)
            except RuntimeError:  # a library call that cannot be captured
                del self.records[kind]
                self.refused.add(kind)
                return None
        else:
            self.records[kind] = None
        self.records.move_to_end(kind)
        if len(self.records) > MOST:
            self.records.popitem(last=False)
        return self.records[kind]


def replayable(inputs: tuple[Tensor, ...]) -> bool:
    """Whether a record may stand in for a call with these."""
    if not all(type(x) is Tensor and x.is_cuda for x in inputs) or torch.cuda.is_current_stream_capturing():
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in inputs))


def kind_of(inputs: tuple[Tensor, ...]) -> tuple[object, ...]:
    return (*((x.shape, x.dtype, x.device) for x in inputs), torch.cuda.current_stream().cuda_stream)
