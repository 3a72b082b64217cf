"""What the kernels of the whitening layers promise on CUDA: accuracy, same bits, time, CUDA graphs.

`python benchmarks/check_cuda_kernels.py` prints compact tables; exit code 1 if a limit is missed. `--sweep` instead times
other settings for the tables of kernels/moments.py and kernels/affine_launches.py. Every section stands alone. Most of
the time would go into compiling some hundred kernels, so other processes do that first, side by side, into Triton's cache.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

import spectralgrad as sg
from spectralgrad.kernels import affine, affine_launches, launches, moments, tiles
from spectralgrad.nn.decorrelation import DecorrelatedBatchNorm2d

GROUP_SIZES = (4, 8, 16, 32, 64)
SHAPE = (128, 64, 32, 32)
FUSED = ("_WhitenBackward", "_NormalizeBackward")  # the whole step, or its ends
TARGET = 2.0  # times BatchNorm2d, forward and backward
LIMITS = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}  # of results in that dtype
# Group size, shape, mean, dtype, channels_last.
CASES: list[tuple[int, tuple[int, ...], float, torch.dtype, bool]] = [
    *((d, (4, max(1, 128 // d) * d, 16, 16), 1.0, torch.float32, False) for d in (1, 2, 3, 4, 8, 16, 24, 32, 64, 100, 128)),
    *((d, (5, 3 * d, 7, 7), 1.0, torch.float32, last) for d in (3, 16, 64) for last in (False, True)),
    *((d, (1, 2 * d, 1, 3), 1.0, torch.float32, False) for d in (4, 32)),  # hardly any samples
    *((d, (16, 64, 32, 32), 1e4, torch.float32, last) for d in (4, 32, 64) for last in (False, True)),  # a far mean
    *((d, (4, 64, 16, 16), 1.0, torch.bfloat16, last) for d in (4, 64) for last in (False, True)),
    *((d, (4, 64, 16, 16), 1.0, torch.float16, False) for d in (4, 64)),
]
TIMED = [(d, mode, last) for d in GROUP_SIZES for mode, last in (("tf32x3", False), ("tf32x3", True), ("ieee", False))]
failures: list[str] = []


def miss(name: str) -> str:
    failures.append(name)
    return "MISS"


@contextmanager
def precision(mode: str) -> Iterator[None]:
    before, tiles.PRECISION = tiles.PRECISION, mode
    launches.forget_launches()
    try:
        yield
    finally:
        tiles.PRECISION = before
        launches.forget_launches()


def error(got: Tensor, want: Tensor) -> float:
    """Relative, in the Frobenius norm."""
    return float(torch.linalg.norm(got.double() - want.double()) / torch.linalg.norm(want.double()).clamp(min=1e-30))


def features(
    *shape: int, mean: float = 1.0, dtype: torch.dtype = torch.float32, last: bool = False, seed: int = 0
) -> Tensor:
    x = torch.randn(*shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))
    x = x + 0.5 * x.roll(1, 1) + mean
    x = x.to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if last else x


def passes(x: Tensor, g: Tensor, d: int) -> dict[str, tuple[Callable[[], object], Callable[[], object], int]]:
    """Name -> kernel, twin, and how many tensors of the size of x it reads or writes."""
    groups, C = x.shape[1] // d, x.shape[1]
    generator = torch.Generator("cuda").manual_seed(1)
    A, S = (torch.randn(groups, d, d, device="cuda", generator=generator) / d**0.5 for _ in range(2))
    bias, shift = (torch.randn(C, device="cuda", generator=generator) for _ in range(2))
    mean, correction, _ = moments.grouped_moments_twin(x, groups)
    sums, combined = (g, x, groups, mean, correction), (g, x, A, S, mean, correction, shift)
    return {
        "moments": (lambda: moments.grouped_moments(x, groups), lambda: moments.grouped_moments_twin(x, groups), 1),
        "transform": (
            lambda: affine.transform(x, A, mean, correction, bias),
            lambda: affine.transform_twin(x, A, mean, correction, bias),
            2,
        ),
        "transposed": (
            lambda: affine.transform(x, A, None, None, None, True),
            lambda: affine.transform_twin(x, A, None, None, None, True),
            2,
        ),
        "sums": (lambda: affine.transform_sums(*sums), lambda: affine.transform_sums_twin(*sums), 2),
        "combine": (lambda: affine.combine(*combined), lambda: affine.combine_twin(*combined), 3),
    }


def as_tuple(x: object) -> tuple[Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)  # type: ignore[return-value]


def compile_part(part: int, parts: int) -> None:
    """Call every ``parts``-th kernel of all sections once: Triton keeps what it compiles on disk."""
    work = [(d, shape, dtype, last, "tf32x3") for d, shape, _, dtype, last in CASES]
    work += [(d, SHAPE, torch.float32, last, mode) for d, mode, last in TIMED]
    work += [(d, SHAPE, torch.bfloat16, last, "tf32x3") for d in GROUP_SIZES for last in (False, True)]
    work += [(d, (16, 64, 16, 16), torch.float32, last, "tf32x3") for d in GROUP_SIZES for last in (False, True)]
    for d, shape, dtype, last, mode in work[part::parts]:
        x, g = features(*shape, dtype=dtype, last=last), torch.ones(shape, dtype=dtype, device="cuda")
        gradients = [g, features(*shape, dtype=dtype, last=last)]
        for given in gradients if last else gradients[:1]:
            with precision(mode):
                for kernel, _, _ in passes(x, given, d).values():
                    kernel()
    torch.cuda.synchronize()


def compile_all() -> None:
    """All kernels, compiled by as many processes as the machine has cores for."""
    parts = max(1, min(14, (os.cpu_count() or 2) - 1))
    commands = [[sys.executable, __file__, "--compile", str(part), str(parts)] for part in range(parts)]
    workers = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for command in commands]
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        if worker.returncode:  # the sections will meet the same error, and tell
            print(f"  a compiling process failed: {errors.decode().strip().splitlines()[-1][:100]}")


def accuracy() -> None:
    """Every kernel against its float64 twin, and against itself."""
    print("\nlargest relative error against float64, and whether two runs give the same bits")
    worst: dict[tuple[str, str], tuple[float, str]] = {}
    different = []
    for d, shape, mean, dtype, last in CASES:
        x, g = features(*shape, mean=mean, dtype=dtype, last=last), torch.randn(shape, device="cuda").to(dtype)
        where = f"d={d} {shape} mean={mean:g}{' channels_last' if last else ''}"
        for name, (kernel, twin, _) in passes(x, g, d).items():
            if name == "transposed" and mean > 1:
                continue  # not centred: its rounding is the mean's
            got, again, want = as_tuple(kernel()), as_tuple(kernel()), as_tuple(twin())
            if not all(torch.equal(a, b) for a, b in zip(got, again, strict=True)):
                different.append(f"{name} {where}")
            if name == "moments":  # mean + correction relative to the spread, which is about 1; then the scatter
                e = max(float((got[0].double() + got[1] - want[0].double() - want[1]).abs().max()), error(got[2], want[2]))
            else:
                e = max(error(a, b) for a, b in zip(got, want, strict=True))
            key = (name, str(dtype).removeprefix("torch."))
            worst[key] = max(worst.get(key, (0.0, "")), (e, where))
            limit = LIMITS[want[-1].dtype]
            if not e <= limit:
                print(f"{miss(name)} {name} {where} {dtype}: {e:.1e} > {limit:.1e}")
    for (name, dtype), (e, where) in sorted(worst.items()):
        print(f"  {name:11} {dtype:9} {e:.1e}  {where}")
    for case in different:
        print(f"{miss('bits')} different bits: {case}")
    print(f"  two runs: {'the same bits everywhere' if not different else f'{len(different)} cases differ'}")


def gpu_time(call: Callable[[], object], runs: int = 50, warm_up: int = 10) -> float:
    """Median milliseconds between CUDA events."""
    for _ in range(warm_up):
        call()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(runs)]
    for start, end in pairs:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs)


def wall_time(call: Callable[[], object], runs: int = 100) -> float:
    """Milliseconds a call in a loop with one synchronisation at its end."""
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(runs):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / runs * 1e3


def captured(call: Callable[[], object]) -> Callable[[], object]:
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
    return graph.replay


def kernel_times() -> None:
    """Device time of each kernel, without the host's: replayed from a CUDA graph."""
    print(f"\nmicroseconds on the device (GB/s) at {SHAPE} float32, from a CUDA graph; 'cl' is channels_last")
    print(f"  {'':24}" + "".join(f"{name:>17}" for name in ("moments", "transform", "sums", "combine")))
    for d, mode, last in TIMED:
        x, g = features(*SHAPE, last=last), features(*SHAPE, mean=0.0, seed=1, last=last)
        cells = []
        with precision(mode):
            for name, (kernel, _, tensors) in passes(x, g, d).items():
                if name != "transposed":
                    ms = gpu_time(captured(kernel))
                    cells.append(f"{ms * 1e3:8.0f} ({tensors * x.nbytes / ms / 1e6:5.0f})")
        print(f"  d={d:<4}{mode:8}{'cl' if last else '':9}" + "".join(f"{cell:>17}" for cell in cells), flush=True)


def step_of(layer: nn.Module, x: Tensor, g: Tensor, half: bool) -> Callable[[], object]:
    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
            y = layer(x)
        torch.autograd.grad(y, [x, *layer.parameters()], g)

    return step


def layer_times() -> None:
    """Forward and backward of the layer over BatchNorm2d."""
    print(f"\nforward + backward at {SHAPE}, ms by events and by the wall clock, over BatchNorm2d's; last, as a CUDA graph")
    for dtype in (torch.float32, torch.bfloat16):
        for last in (False, True):
            x = features(*SHAPE, dtype=dtype, last=last).requires_grad_()
            g = features(*SHAPE, mean=0.0, seed=1, dtype=dtype, last=last)
            half = dtype == torch.bfloat16
            base = step_of(nn.BatchNorm2d(64).cuda(), x, g, half)
            events, wall = gpu_time(base), wall_time(base)
            graph = gpu_time(captured(base))
            name = f"{str(dtype).removeprefix('torch.')}{', channels_last' if last else ''}"
            print(f"  {name}: BatchNorm2d {events:.3f} ms by events, {wall:.3f} wall, {graph:.3f} graph")
            for d in GROUP_SIZES:
                step = step_of(DecorrelatedBatchNorm2d(64, d).cuda(), x, g, half)
                a, b = gpu_time(step), wall_time(step)
                try:
                    c = f"{gpu_time(captured(step)):.3f} ({gpu_time(captured(step)) / graph:.2f}x)"
                except RuntimeError as problem:  # a solver that synchronises cannot be captured
                    c = f"not captured: {str(problem).splitlines()[0][:60]}"
                    torch.cuda.synchronize()
                verdict = "" if max(a / events, b / wall) <= TARGET else miss(f"time d={d} {name}")
                print(
                    f"    d={d:<3} events {a:.3f} ({a / events:.2f}x)  wall {b:.3f} ({b / wall:.2f}x)  graph {c} {verdict}",
                    flush=True,
                )


def layer_results() -> None:
    """The layer on CUDA against the CPU in float64, and in a CUDA graph against itself."""
    print("\nthe layer's output and gradients against the CPU in float64")
    for d in GROUP_SIZES:
        for last in (False, True):
            x = features(16, 64, 16, 16, last=last)
            g = features(16, 64, 16, 16, mean=0.0, seed=1)
            found = []
            for device, dtype in (("cuda", torch.float32), ("cpu", torch.float64)):
                layer = DecorrelatedBatchNorm2d(64, d).to(device, dtype)
                given = x.to(device, dtype).requires_grad_()
                y = layer(given)
                grads = torch.autograd.grad(y, [given, *layer.parameters()], g.to(device, dtype))
                found.append([y.detach(), *grads, layer.running_covariance, layer.running_mean])
                if device == "cuda" and type(y.grad_fn).__name__ not in FUSED:
                    print(f"{miss('fused')} d={d}: the layer does not take the kernels")
            e = [error(a.cpu(), b) for a, b in zip(*found, strict=True)]
            names = ("y", "dx", "dweight", "dbias", "covariance", "mean")
            text = "  ".join(f"{name} {value:.1e}" for name, value in zip(names, e, strict=True))
            print(
                f"  d={d:<3}{' cl' if last else '   '} {text} {'' if max(e) <= 1e-4 else miss(f'layer d={d}')}", flush=True
            )


def cuda_graph() -> None:
    """A captured step gives what an eager one gives; the running averages move at every replay."""
    print("\nforward + backward captured in a CUDA graph, against eager")
    for d in GROUP_SIZES:
        x, g = features(*SHAPE).requires_grad_(), features(*SHAPE, mean=0.0, seed=1)
        layer = DecorrelatedBatchNorm2d(64, d).cuda()
        out: list[Tensor] = []

        def step(layer: nn.Module = layer, x: Tensor = x, g: Tensor = g, out: list[Tensor] = out) -> None:
            y = layer(x)
            out[:] = [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], g)]

        try:
            replay = captured(step)
        except RuntimeError as problem:
            print(f"  d={d:<3} {miss(f'graph d={d}')} not captured: {str(problem).splitlines()[0][:90]}")
            torch.cuda.synchronize()
            continue
        replay()
        got = [value.clone() for value in out]
        before = layer.num_batches_tracked.clone()
        replay()
        counted = int(layer.num_batches_tracked - before)
        step()
        e = max(error(a, b) for a, b in zip(got, out, strict=True))
        ok = e <= 1e-6 and counted == 1
        print(
            f"  d={d:<3} largest difference {e:.1e}, a replay counts {counted} batch {'' if ok else miss(f'graph d={d}')}",
            flush=True,
        )


def sweep() -> None:
    """Other settings, timed from a CUDA graph: the best are for the tables in kernels/."""
    tables = {
        "moments": (moments.CONFIGS, 1),
        "transform": (affine_launches.CONFIGS, 2),
        "sums": (affine_launches.SUM_CONFIGS, 2),
        "combine": (affine_launches.COMBINE_CONFIGS, 3),
    }
    x, g = features(*SHAPE), features(*SHAPE, mean=0.0, seed=1)
    for d in (16, 32, 64):
        calls = passes(x, g, d)
        for name, (table, tensors) in tables.items():
            usual, tried = table[d], []
            for block in (usual.block // 2, usual.block, usual.block * 2):
                for warps in {max(1, usual.warps // 2), usual.warps, usual.warps * 2}:
                    for programs in {max(1, usual.programs // 2), usual.programs, usual.programs * 2}:
                        table[d] = usual._replace(block=block, warps=warps, programs=programs)
                        if block < 16:
                            continue
                        launches.forget_launches()
                        try:
                            tried.append((gpu_time(captured(calls[name][0]), runs=20, warm_up=3), table[d]))
                        except Exception as problem:  # out of shared memory, mostly
                            print(f"  {name} d={d} {table[d]}: {type(problem).__name__}")
                            torch.cuda.synchronize()
            table[d] = usual
            launches.forget_launches()
            for ms, config in sorted(tried)[:3]:
                print(f"  {name} d={d} {ms * 1e3:.0f} us ({tensors * x.nbytes / ms / 1e6:.0f} GB/s) {config}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", action="store_true", help="time other settings of the kernels instead")
    parser.add_argument("--compile", type=int, nargs=2, metavar=("PART", "PARTS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("check_cuda_kernels.py needs a CUDA device, and torch sees none here.")
    if not tiles.has_triton():
        sys.exit("check_cuda_kernels.py needs Triton, which comes with torch's CUDA builds for Linux.")
    if options.compile:
        compile_part(*options.compile)
        sys.exit(0)
    import triton

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, {sg.__version__=}")
    sections = (sweep,) if options.sweep else (compile_all, accuracy, kernel_times, layer_results, layer_times, cuda_graph)
    for section in sections:
        start = time.perf_counter()
        try:
            section()
        except Exception:
            traceback.print_exc(file=sys.stdout)
            miss(section.__name__)
        print(f"  ({section.__name__}: {time.perf_counter() - start:.0f} s)", flush=True)
    print(f"\n{len(failures)} missed{': ' if failures else ''}{', '.join(failures)}")
    sys.exit(bool(failures))
