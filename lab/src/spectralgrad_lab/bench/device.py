"""Times on a CUDA device that are not those of `measure`: work that is queued, the wall clock, the device alone."""

import statistics
import time
from collections.abc import Callable

import torch

WARM_UP = 10


def queued_ms(call: Callable[[], object], runs: int = 50, warm_up: int = WARM_UP) -> float:
    """Median milliseconds between CUDA events, of calls that are queued one behind the other."""
    for _ in range(warm_up):
        call()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(runs)]
    for start, end in pairs:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(float(start.elapsed_time(end)) for start, end in pairs)


def wall_ms(call: Callable[[], object], runs: int = 100) -> float:
    """Milliseconds of a call in a loop with one synchronisation at its end."""
    for _ in range(WARM_UP):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(runs):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / runs * 1e3


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """The call as a CUDA graph, so that its time is the device's alone."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def replay(_owner: Callable[[], object] = call) -> None:  # a graph does not keep alive what it reads and writes
        graph.replay()

    return replay
