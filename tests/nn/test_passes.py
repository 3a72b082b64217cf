"""The passes of one node on a CPU, block by block, against their twins in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from spectralgrad.nn import passes
from support import cases
from support.passes import combine_twin, grouped_moments_twin, transform_sums_twin, transform_twin

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels first": lambda x: x,
    "channels last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "images last": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "every other": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "one number": lambda x: x[:1, :1].mean().expand(x.shape),
}
SHAPES = {
    "2D": ((40, 6), 3),
    "3D": ((4, 6, 11), 2),
    "4D": ((5, 6, 7, 4), 6),
    "4D, small groups": ((5, 6, 7, 4), 2),
    "5D": ((2, 4, 3, 2, 5), 1),
    "one": ((2, 3, 1, 1), 3),
}
SIZES = {  # numbers of a block, samples of a matrix, channels of a product that lie last
    "one block": (2**18, 2**10, 32),
    "images": (6 * 60, 20, 1),
    "several images a matrix": (6 * 120, 40, 6),
    "several matrices an image": (6 * 90, 7, 5),
    "parts of an image": (6 * 9, 3, 2),
    "least": (1, 1, 6),
}
each_layout = pytest.mark.parametrize("laid", LAYOUTS.values(), ids=LAYOUTS)
each_shape = pytest.mark.parametrize(("shape", "d"), SHAPES.values(), ids=SHAPES)


@pytest.fixture(params=SIZES.values(), ids=list(SIZES))
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Of blocks and matrices, as the passes take them here."""
    block, columns, width = request.param
    monkeypatch.setattr(passes, "BLOCK", block)
    monkeypatch.setattr(passes, "COLUMNS", columns)
    monkeypatch.setattr(passes, "WIDTH", width)
    return block, columns


class Inputs:
    """Maps around a mean, and random matrices for them."""

    def __init__(
        self, shape: tuple[int, ...], d: int, laid: Callable[[Tensor], Tensor], dtype: torch.dtype, mean: float = 3.0
    ):
        C, own = shape[1], torch.promote_types(dtype, torch.float32)
        x = cases.random(*shape)
        self.x = laid((x + 0.5 * x.roll(1, 1) + mean).to(dtype))
        self.g = laid(cases.random(*shape, seed=1).to(dtype))
        self.groups = C // d
        self.A, self.S = (cases.random(C // d, d, d, seed=seed, dtype=own) for seed in (2, 3))
        self.bias, self.shift = (cases.random(C, seed=seed, dtype=own) for seed in (4, 5))
        self.mean, self.rest, _ = grouped_moments_twin(self.x, self.groups)


PASSES: dict[str, Callable[[Inputs], tuple[Any, Any]]] = {  # in blocks, and the twin
    "moments": lambda i: (passes.grouped_moments(i.x, i.groups), grouped_moments_twin(i.x, i.groups)),
    **{
        f"transform, {name}": lambda i, args=args: (
            passes.transform(i.x, i.A, *args(i)),
            transform_twin(i.x, i.A, *args(i)),
        )
        for name, args in {
            "all": lambda i: (i.mean, i.rest, i.bias),
            "mean alone": lambda i: (i.mean, None, None),
            "transposed": lambda _: (None, None, None, True),
        }.items()
    },
    **{
        f"sums, {name}": lambda i, rest=rest: (
            passes.transform_sums(i.g, i.x, i.groups, i.mean, i.rest if rest else None),
            transform_sums_twin(i.g, i.x, i.groups, i.mean, i.rest if rest else None),
        )
        for name, rest in {"all": True, "mean alone": False}.items()
    },
    **{
        f"combine, {name}": lambda i, rest=rest: (
            passes.combine(i.g, i.x, i.A, i.S, i.mean, i.rest if rest else None, i.shift),
            combine_twin(i.g, i.x, i.A, i.S, i.mean, i.rest if rest else None, i.shift),
        )
        for name, rest in {"all": True, "mean alone": False}.items()
    },
}
each_pass = pytest.mark.parametrize("call", PASSES.values(), ids=PASSES)


def error(got: Any, want: Any) -> float:
    """The largest error of a result, relative to its largest entry, or to 1 if that is smaller."""
    if isinstance(got, Tensor):
        got, want = (got,), (want,)
    for a, b in zip(got, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    return max(
        float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1))
        for a, b in zip(got, want, strict=True)
    )


@each_pass
@each_layout
@each_shape
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=cases.ident)
@pytest.mark.parametrize("size", SIZES.values(), ids=list(SIZES), indirect=True)
@pytest.mark.covering(2)
def test_against_the_twin(
    call: Any, laid: Any, shape: tuple[int, ...], d: int, dtype: torch.dtype, size: tuple[int, int]
) -> None:
    got, want = call(Inputs(shape, d, laid, dtype))
    assert error(got, want) < 16 * cases.eps(dtype)
    if isinstance(got, Tensor):
        assert got.stride() == want.stride() or got.shape[2:].numel() == 1


@each_pass
def test_memory_format(call: Any) -> None:
    for laid in LAYOUTS.values():
        i = Inputs((3, 6, 4, 5), 3, laid, torch.float32)
        is_last = laid is LAYOUTS["channels last"]
        for y in call(i)[:1]:
            if isinstance(y, Tensor):
                assert y.is_contiguous() == (not is_last)
                assert y.is_contiguous(memory_format=torch.channels_last) == is_last


@each_pass
def test_a_far_mean_costs_no_digits(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What rounding leaves in the mean, of a block and of all, is carried along."""
    monkeypatch.setattr(passes, "BLOCK", 600)
    monkeypatch.setattr(passes, "COLUMNS", 40)
    i = Inputs((50, 6, 4, 4), 3, LAYOUTS["channels first"], torch.float32, mean=1e5)
    assert error(*call(i)) < 16 * cases.eps(torch.float32)


def test_blocks_hold_every_sample_once(size: tuple[int, int]) -> None:
    block, columns = size
    for shape, d in SHAPES.values():
        for laid in LAYOUTS.values():
            x = laid(torch.arange(float(torch.Size(shape).numel())).view(shape))
            parts = [part.movedim((2, 3), (0, 1)).reshape(shape[1], -1) for (part,) in passes.parts(shape[1] // d, x)]
            assert torch.equal(torch.cat(parts, 1).sort(1).values, x.movedim(1, 0).flatten(1).sort(1).values)
            assert max(part.shape[1] for part in parts) <= max(block // shape[1], columns, passes.SAMPLES_OF_D * d)


def test_two_maps_are_cut_alike(size: tuple[int, int]) -> None:
    """Whatever their layouts are, and the last one is not copied."""
    for shape, d in SHAPES.values():
        numbers = torch.arange(float(torch.Size(shape).numel())).view(shape)
        for laid in LAYOUTS.values():
            for last in [LAYOUTS["channels first"](numbers), LAYOUTS["channels last"](numbers)]:
                for one, other in passes.parts(shape[1] // d, laid(numbers), last):
                    assert torch.equal(one, other) or laid is LAYOUTS["one number"]
                    assert other.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("channels", "d", "width", "products"),
    [(64, 4, 32, 2), (64, 4, 4, 16), (64, 64, 32, 1), (12, 2, 8, 2), (10, 2, 8, 5), (6, 1, 6, 1), (6, 6, 1, 1)],
)
def test_neighbouring_groups_share_a_product_where_channels_lie_last(
    channels: int, d: int, width: int, products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as fit into the width and divide the groups."""
    monkeypatch.setattr(passes, "WIDTH", width)
    taken, groups = [], channels // d
    monkeypatch.setattr(passes, "parts", lambda count, *_: taken.append(count) or iter(()))
    x = cases.random(4, channels, 3, 3)
    A = cases.random(groups, d, d)
    for laid, count in (("channels last", products), ("channels first", groups)):
        passes.transform(LAYOUTS[laid](x), A, None, None, None)
        assert taken.pop() == count


@pytest.mark.parametrize(
    ("count", "positions", "columns", "is_last", "matrices"),
    [
        (8, 1024, 1024, False, (8, 1, 1, 1024)),
        (8, 64, 128, False, (4, 1, 2, 64)),
        (9, 64, 128, False, (1, 1, 9, 64)),  # no whole number of pairs
        (2, 4096, 1024, False, (2, 4, 1, 1024)),
        (2, 3136, 1024, False, (2, 1, 1, 3136)),  # no whole number of parts
        (1, 4096, 1024, True, (1, 1, 1, 4096)),
    ],
)
def test_matrices_of_a_block(count: int, positions: int, columns: int, is_last: bool, matrices: tuple[int, ...]) -> None:
    assert passes._matrices_of(count, positions, columns, is_last) == matrices


@each_pass
def test_inputs_stay(call: Any) -> None:
    """A block that needs no copy is the map itself, and nothing is written there."""
    i = Inputs((3, 6, 4, 8), 2, LAYOUTS["channels first"], torch.float32)
    before = [t.clone() for t in (i.x, i.g, i.A, i.S)]
    call(i)
    assert all(map(torch.equal, before, (i.x, i.g, i.A, i.S)))


@each_pass
def test_precision_flags_are_not_felt(call: Any) -> None:
    i = Inputs((5, 16, 7, 4), 16, LAYOUTS["channels first"], torch.float32)
    want = call(i)[1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = call(i)[0]
        assert torch.mm(i.A[0], i.S[0]).dtype == torch.bfloat16  # control
    assert error(got, want) < 4 * cases.eps(torch.float32)


def test_nan_stays_in_its_group() -> None:
    i = Inputs((5, 6, 7, 4), 3, LAYOUTS["channels first"], torch.float32)
    i.x[0, 0, 0, 0] = torch.nan
    mean, _, scatter = passes.grouped_moments(i.x, 2)
    y = passes.transform(i.x, i.A, None, None, None)
    assert mean[0].isnan()
    assert scatter[0].isnan().any()
    assert y[:, :3].isnan().any()
    assert not any(t.isnan().any() for t in (mean[3:], scatter[1], y[:, 3:]))


def test_the_same_bits_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "BLOCK", 600)
    monkeypatch.setattr(passes, "COLUMNS", 40)
    i = Inputs((50, 6, 4, 4), 3, LAYOUTS["channels last"], torch.float32)
    for _ in range(3):
        assert all(map(torch.equal, passes.grouped_moments(i.x, 2), passes.grouped_moments(i.x, 2)))


@pytest.mark.parametrize("d", [4, 8])
def test_sums_keep_their_digits_where_channels_lie_last(d: int) -> None:
    """A block is one matrix of 65536 samples there; a product of float32 would lose two digits."""
    x = torch.randn(64, 8, 32, 32, generator=cases.generator()) * torch.logspace(0, -1, 8).view(8, 1, 1)
    g = torch.randn(64, 8, 32, 32, generator=cases.generator(1))
    for layout in (torch.contiguous_format, torch.channels_last):
        mean, correction, scatter = passes.grouped_moments(x.contiguous(memory_format=layout), 8 // d)
        X, G = (y.double().transpose(0, 1).reshape(8 // d, d, -1) for y in (x, g))
        X -= X.mean(-1, keepdim=True)
        assert cases.relative_error(scatter, X @ X.mT) < 2e-7
        Q, _ = passes.transform_sums(g.contiguous(memory_format=layout), x, 8 // d, mean, correction)
        assert float((Q.double() - G @ X.mT).abs().max() / (G.norm() * X.norm())) < 1e-9
