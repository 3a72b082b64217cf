"""Passes over an input with a matrix for each group: kernels against twins, code for a real GPU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from spectralgrad.kernels import affine
from spectralgrad.kernels.affine import transform
from support import cases, passes
from support.passes import grouped_moments_twin
from support.triton_kernels import (
    LAYOUTS,
    SHAPES,
    SHARED_MEMORY,
    compile_for_hopper,
    compiles,
    each_case,
    far_apart,
    features,
    in_interpreter,
    launches,
)

Inputs = dict[str, Tensor]


def inputs(shape: tuple[int, ...], d: int, laid: Callable[[Tensor], Tensor] = LAYOUTS["contiguous"]) -> Inputs:
    C = shape[1]
    x = laid(features(*shape))
    mean, correction, _ = grouped_moments_twin(x, C // d)
    A, S = (cases.random(C // d, d, d, seed=seed, dtype=torch.float32) for seed in (1, 2))
    bias, shift = (cases.random(C, seed=seed, dtype=torch.float32) for seed in (3, 4))
    g = features(*shape, mean=0.0, seed=5)
    return {"x": x, "g": g, "A": A, "S": S, "mean": mean, "correction": correction, "bias": bias, "shift": shift}


def kernel_or_twin(name: str, end: str) -> Callable[..., object]:
    return getattr(passes if end else affine, name + end)  # type: ignore[no-any-return]


CALLS: dict[str, Callable[[Inputs, str], object]] = {
    "transform": lambda i, end: kernel_or_twin("transform", end)(i["x"], i["A"], i["mean"], i["correction"], i["bias"]),
    "transform plain": lambda i, end: kernel_or_twin("transform", end)(i["x"], i["A"], i["mean"], None, None),
    "transform transposed": lambda i, end: kernel_or_twin("transform", end)(i["x"], i["A"], None, None, None, True),
    "transform_sums": lambda i, end: kernel_or_twin("transform_sums", end)(
        i["g"], i["x"], len(i["A"]), i["mean"], i["correction"]
    ),
    "transform_sums plain": lambda i, end: kernel_or_twin("transform_sums", end)(
        i["g"], i["x"], len(i["A"]), i["mean"], None
    ),
    "combine": lambda i, end: kernel_or_twin("combine", end)(
        i["g"], i["x"], i["A"], i["S"], i["mean"], i["correction"], i["shift"]
    ),
    "combine plain": lambda i, end: kernel_or_twin("combine", end)(
        i["g"], i["x"], i["A"], i["S"], i["mean"], None, i["shift"]
    ),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def as_tuple(x: object) -> tuple[Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)  # type: ignore[return-value]


# The kernels


@pytest.mark.covering(1)
@compiles
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize(
    ("d", "dtype"), [(16, torch.bfloat16), *(pytest.param(d, torch.float32, marks=pytest.mark.slow) for d in (3, 64))]
)
def test_compiles_for_a_gpu(d: int, dtype: torch.dtype, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    i = inputs((16, 2 * d, 8, 8), d, LAYOUTS["channels last"] if last else LAYOUTS["contiguous"])
    i |= {name: i[name].to(dtype) for name in ("x", "g")}
    names = {
        "transform plain": ["transform"],
        "transform_sums": ["products_of_splits", "add_splits"],
        "combine": ["combine"],
    }
    for call, expected in names.items():
        seen = launches(monkeypatch, lambda call=call: CALLS[call](i, ""))
        assert [kernel.__name__ for kernel, _, _ in seen] == expected
        for launch in seen:
            assert compile_for_hopper(*launch).metadata.shared <= SHARED_MEMORY


@pytest.mark.slow
@compiles
def test_compiles_for_one_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    i = inputs((1, 1, 1, 1), 1)
    for call in CALLS.values():
        for launch in launches(monkeypatch, lambda call=call: call(i, "")):
            compile_for_hopper(*launch)


@compiles
@pytest.mark.slow
@pytest.mark.parametrize("call", ["transform", "transform_sums", "combine"])
def test_compiles_the_largest_tile(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    i = inputs((16, 128, 8, 8), 128)
    for launch in launches(monkeypatch, lambda: CALLS[call](i, "")):
        assert compile_for_hopper(*launch).metadata.shared <= SHARED_MEMORY


@pytest.mark.covering(1)
@in_interpreter
@pytest.mark.parametrize("call", ["transform", "transform_sums", "combine"])
@each_case
def test_interpreted(name: str, layout: str, call: str) -> None:
    agree(CALLS[call], inputs(*SHAPES[name], LAYOUTS[layout]))


@in_interpreter
@each_call
def test_interpreted_options(call: Callable[[Inputs, str], object]) -> None:
    agree(call, inputs(*SHAPES["d=4"]))


def agree(call: Callable[[Inputs, str], object], i: Inputs) -> None:
    """The kernel, twice, with its twin."""
    want = as_tuple(call(i, "_twin"))
    for got, again, wanted in zip(as_tuple(call(i, "")), as_tuple(call(i, "")), want, strict=True):
        assert cases.relative_error(got, wanted) < 1e-6
        assert torch.equal(got, again)
        assert got.is_contiguous() == wanted.is_contiguous()


@in_interpreter
def test_interpreted_large_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix in more than one part, as in the largest tile, and a group that does not fill its tile."""
    for table in (affine.CONFIGS, affine.COMBINE_CONFIGS):
        monkeypatch.setitem(table, 64, table[64]._replace(depth=16))
    i = inputs((2, 40, 5, 5), 40)
    for call in ("transform", "transform transposed", "transform_sums", "combine"):
        for got, want in zip(as_tuple(CALLS[call](i, "")), as_tuple(CALLS[call](i, "_twin")), strict=True):
            assert cases.relative_error(got, want) < 1e-6


@in_interpreter
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=cases.ident)
def test_interpreted_half_precision(dtype: torch.dtype) -> None:
    i = inputs((3, 8, 5, 5), 4)
    i |= {name: i[name].to(dtype) for name in ("x", "g")}
    for call in CALLS.values():
        for got, want in zip(as_tuple(call(i, "")), as_tuple(call(i, "_twin")), strict=True):
            assert got.dtype == want.dtype
            assert cases.relative_error(got, want) < (cases.eps(dtype) if got.dtype == dtype else 1e-6)


@in_interpreter
def test_interpreted_far_mean() -> None:
    """Centred before the product, with what rounding left in the mean; without that the result shows it."""
    x = features(8, 4, 10, 10, mean=1e4)
    mean, correction, _ = grouped_moments_twin(x, 1)
    A = cases.random(1, 4, 4, dtype=torch.float32)
    exact = x.double() - x.double().mean((0, 2, 3), keepdim=True)
    want = torch.einsum("ij,njhw->nihw", A[0].double(), exact)
    assert cases.relative_error(transform(x, A, mean, correction, None), want) < 1e-6
    assert cases.relative_error(transform(x, A, mean, None, None), want) > 1e-5


@in_interpreter
def test_interpreted_beyond_32_bits() -> None:
    near = inputs((1, 3, 5), 3)
    for x in far_apart(3, 5):
        for call in CALLS.values():
            i = near | {"x": x, "g": x}
            for got, want in zip(as_tuple(call(i, "")), as_tuple(call(i, "_twin")), strict=True):
                assert cases.relative_error(got, want) < (cases.eps(x.dtype) if got.dtype == x.dtype else 1e-6)
