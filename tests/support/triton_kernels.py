"""Triton kernels without a GPU: in its interpreter, and compiled for one."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from spectralgrad.kernels import launches as kernel_launches
from spectralgrad.kernels import tiles
from spectralgrad.kernels.buffers import Memory
from support import cases

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
SHARED_MEMORY = 227 * 1024  # of one block on sm_90

in_interpreter = pytest.mark.skipif(not INTERPRETED, reason="runs inside kernels/test_interpreter.py")
starts_interpreter = pytest.mark.skipif(INTERPRETED or not tiles.has_triton(), reason="needs Triton, and starts it")
compiles = pytest.mark.skipif(INTERPRETED or not tiles.has_triton(), reason="needs Triton's compiler")

# Shape, group size: several groups in a tile, one, odd ones, a last tile that is not full, one sample, more than one split.
SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "d=1": ((3, 18, 5, 7), 1),
    "d=2": ((70, 2, 3), 2),
    "d=3": ((3, 18, 5, 7), 3),
    "d=4": ((2, 8, 4, 16), 4),
    "d=16": ((5, 16, 9, 3), 16),
    "d=20": ((70, 20), 20),
    "one sample": ((1, 6, 1, 1), 3),
    "3d": ((2, 4, 2, 3, 5), 2),
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "strided": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "part": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "expanded": lambda x: x[:1, :, ...].expand_as(x),
    "lazy minus": lambda x: torch._neg_view(-x),
}

each_shape = pytest.mark.parametrize(("shape", "d"), SHAPES.values(), ids=SHAPES)
each_layout = pytest.mark.parametrize("laid", LAYOUTS.values(), ids=LAYOUTS)
OTHERS = {"d=2": "strided", "d=3": "contiguous", "d=4": "expanded"}  # quick: these shapes so, the others channels last
SLOW = ("d=1", "d=16")
each_case = pytest.mark.parametrize(  # few of them: the interpreter is slow
    ("name", "layout"),
    [
        *((name, OTHERS.get(name, "channels last")) for name in SHAPES if name not in SLOW),
        ("d=20", "lazy minus"),
        *(pytest.param(name, "channels last", marks=pytest.mark.slow) for name in (*OTHERS, *SLOW)),
        *(pytest.param("d=3", layout, marks=pytest.mark.slow) for layout in ("strided", "expanded")),
    ],
)


def features(*shape: int, mean: float = 1.0, seed: int = 0) -> Tensor:
    """Correlated channels around a mean of their own, in float32."""
    x = cases.random(*shape, seed=seed)
    mixed = x + 0.5 * x.roll(1, 1)
    centre = mean * (1 + torch.arange(shape[1], dtype=torch.float64)).view(1, -1, *[1] * (len(shape) - 2))
    return (mixed + centre).float()


def far_apart(*shape: int, device: str = "cpu") -> list[Tensor]:
    """`features` of one image whose channels, or positions, lie so far apart that 32 bits do not count what is between."""
    x = features(1, *shape).bfloat16()
    C, P = x.shape[1], x[0, 0].numel()
    try:
        memory = torch.empty(2**31 + 64, dtype=x.dtype, device=device)  # addresses alone: a page is there when it is written
    except RuntimeError:
        pytest.skip("needs 4 GiB of addresses")
    channels = memory.as_strided((1, C, P), (1, 2**31 // (C - 1), 1))
    positions = memory.as_strided((1, C, P), (1, 1, 2**31 // (P - 1)))
    return [view.copy_(x.flatten(2)) for view in (channels, positions)]


each_speed = pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])


def run_in_interpreter(files: list[str], marked: str) -> None:
    """The tests of ``files`` with "interpreted" in their names that are so ``marked``, in a process of their own: Triton
    decides at import."""
    command = [sys.executable, "-m", "pytest", *files, "-k", "interpreted", "-m", marked, "-p", "no:cacheprovider", "-rs"]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "[100%]" in done.stdout
    assert "SKIPPED" not in done.stdout


class Recorded(NamedTuple):
    """A launch that was asked for: what `compile_for_hopper` takes."""

    kernel: Any  # of Triton, which has no types
    arguments: tuple[Memory | float | None, ...]  # pointers and numbers
    constants: dict[str, int | str]


def launches(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> list[Recorded]:
    """The kernels that ``call`` would launch on an H200, with their arguments; none of them runs."""
    seen: list[Recorded] = []

    def record(launch: kernel_launches.Launch, device: int | None, *pointers: Memory | None) -> None:
        seen.append(Recorded(launch.kernel, (*pointers, *launch.numbers), launch.constants))

    with monkeypatch.context() as patch:
        patch.setattr(tiles, "fits", lambda *_: True)
        patch.setattr(kernel_launches.Launch, "__call__", record)
        patch.setattr(tiles, "_ANY_MULTIPROCESSORS", 132)
        kernel_launches.forget_launches()
        call()
    kernel_launches.forget_launches()
    return seen


def layout_of(x: Tensor) -> tiles.Layout | None:
    return tiles.layout(x.shape, x.stride())


def compile_for_hopper(kernel: Any, args: tuple[Memory | float | None, ...], options: dict[str, int | str]) -> Any:
    """What Triton makes of one launch, specialised as it does: numbers that are 1, multiples of 16, and missing tensors."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    pointers = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.int64: "*i64"}
    settings = {name: options[name] for name in ("num_warps", "num_stages") if name in options}
    settings["enable_fp_fusion"] = True  # as `launches.Launch` says
    signature, constants, attributes = {}, {}, {}
    for i, name in enumerate(kernel.arg_names):
        value = args[i] if i < len(args) else options[name]
        if i >= len(args) or value is None or (isinstance(value, int) and value == 1):
            signature[name], constants[(i,)] = "constexpr", value
        else:
            is_pointer = hasattr(value, "data_ptr")
            signature[name] = pointers[value.dtype] if is_pointer else "fp32" if isinstance(value, float) else "i32"
            if is_pointer or (isinstance(value, int) and value % 16 == 0):
                attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=settings)
