"""Grouped moments: the kernel against the twin in Triton's interpreter, its code for a real GPU.

The interpreter knows no precision modes and no races: test_cuda_passes.py looks at those on a GPU.
"""

import pytest
import torch
from torch import Tensor

from spectralgrad.kernels import moments, tiles
from spectralgrad.kernels.moments import grouped_moments
from support import cases
from support.fake_gpu import hopper  # noqa: F401
from support.passes import grouped_moments_twin
from support.triton_kernels import (
    INTERPRETED,
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
    layout_of,
)


def assert_means_agree(mean: Tensor, correction: Tensor, x: Tensor) -> None:
    """The error of mean + correction is one of rounding relative to the spread of the samples, not to their mean."""
    X = x.double().movedim(1, 0).flatten(1)
    spread = X.std(1, correction=0) if X.shape[1] > 1 else torch.zeros_like(X[:, 0])
    error = (mean.double() + correction - X.mean(1)).abs()
    assert bool((error <= 4 * cases.eps(torch.float32) * spread).all()), (error / spread).max()


# How the work is shared out


def testlayout_of() -> None:
    x = torch.empty(2, 3, 4, 5)
    assert layout_of(x) == (20, 60, 20, 1)
    assert layout_of(x.contiguous(memory_format=torch.channels_last)) == (20, 60, 1, 3)
    assert layout_of(x[:, :, :, :1]) == (4, 60, 20, 5)
    assert layout_of(x[:, :, :, 1:]) is None
    assert layout_of(x.mT) is None
    assert layout_of(torch.empty(6, 4)) == (1, 4, 1, 1)


@pytest.mark.parametrize("d", [1, 2, 3, 4, 8, 24, 64, 100, 128])
@pytest.mark.parametrize("samples", [1, 63, 64, 65, 1000, 131072, 10**6 + 1, tiles.MOST_SAMPLES])
def test_plan(d: int, samples: int) -> None:
    """Every channel and every sample has one program, and no program is idle."""
    channels = 6 * d
    config = moments.CONFIGS[tiles.tile_of(d)]
    plan = tiles.plan(channels, d, samples, config, None)
    assert plan.together * d <= plan.tile
    assert (plan.tiles - 1) * plan.together * d < channels <= plan.tiles * plan.together * d
    assert plan.chunk % config.block == 0
    assert (plan.splits - 1) * plan.chunk < samples <= plan.splits * plan.chunk
    assert samples + config.block < 2**31


@pytest.mark.parametrize("d", [4, 8, 16, 32, 64])
def test_an_h200_is_filled(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "_ANY_MULTIPROCESSORS", 132)
    tiles.plan.cache_clear()
    plan = tiles.plan(64, d, 128 * 32 * 32, moments.CONFIGS[tiles.tile_of(d)], None)
    tiles.plan.cache_clear()
    assert plan.tiles * plan.splits >= 1.8 * 132


def test_what_fits() -> None:
    x = torch.ones(2, 256, 3)
    assert not tiles.fits(x.double(), 1)
    assert not tiles.fits(x, 256)
    assert not tiles.fits(x[:0], 1)
    assert not tiles.fits(x.to("meta"), 1)
    assert tiles.fits(x, 128) == INTERPRETED


@pytest.mark.parametrize(("capability", "largest"), [((7, 5), 0), ((8, 0), 32), ((8, 9), 32), ((9, 0), 128), ((12, 0), 32)])
def test_which_gpu_takes_which_group(
    capability: tuple[int, int],
    largest: int,
    hopper: pytest.MonkeyPatch,  # noqa: F811
) -> None:
    hopper.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert tiles.largest_group(torch.device("cuda", 0)) == largest


# The kernel


@pytest.mark.covering(1)
@compiles
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize(
    ("d", "dtype"), [(16, torch.bfloat16), *(pytest.param(d, torch.float32, marks=pytest.mark.slow) for d in (3, 128))]
)
def test_compiles_for_a_gpu(d: int, dtype: torch.dtype, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's compiler is stricter than its interpreter."""
    x = torch.empty(16, 2 * d, 8, 8, dtype=dtype)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    seen = launches(monkeypatch, lambda: grouped_moments(x, 2))
    assert [kernel.__name__ for kernel, _, _ in seen] == ["moments_of_splits", "merge_moments"]
    for launch in seen:
        assert compile_for_hopper(*launch).metadata.shared <= SHARED_MEMORY


@compiles
def test_compiles_for_one_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton takes a number that is 1 for a constant."""
    for launch in launches(monkeypatch, lambda: grouped_moments(torch.empty(1, 1, 1, 1), 1)):
        compile_for_hopper(*launch)


@in_interpreter
@each_case
def test_interpreted_moments(name: str, layout: str) -> None:
    shape, d = SHAPES[name]
    x, groups = LAYOUTS[layout](features(*shape)), shape[1] // d
    mean, correction, scatter = grouped_moments(x, groups)
    _, _, want = grouped_moments_twin(x, groups)
    assert_means_agree(mean, correction, x)
    assert cases.relative_error(scatter, want) < 1e-6
    assert torch.equal(scatter, scatter.mT)
    for got, again in zip((mean, correction, scatter), grouped_moments(x, groups), strict=True):
        assert torch.equal(got, again)


@in_interpreter
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=cases.ident)
def test_interpreted_half_precision(dtype: torch.dtype) -> None:
    x = features(6, 8, 5, 5).to(dtype)
    mean, _, scatter = grouped_moments(x, 2)
    want_mean, _, want = grouped_moments_twin(x, 2)
    assert mean.dtype == scatter.dtype == torch.float32
    torch.testing.assert_close(mean, want_mean)
    assert cases.relative_error(scatter, want) < 1e-6


@in_interpreter
@pytest.mark.parametrize("what", ["far mean", "drift", "first sample far away"])
def test_interpreted_cancellation(what: str) -> None:
    """Where sums of squares would lose their digits; the naive formula does."""
    x = features(8, 4, 10, 10, mean=1e4 if what == "far mean" else 1.0)
    if what == "drift":
        x = x + 1e3 * torch.arange(8.0).view(8, 1, 1, 1)
    if what == "first sample far away":
        x[0, :, 0, 0] = 100.0
    mean, correction, scatter = grouped_moments(x, 2)
    _, _, want = grouped_moments_twin(x, 2)
    assert cases.relative_error(scatter, want) < 1e-6
    assert_means_agree(mean, correction, x)
    if what == "far mean":
        X = x.movedim(1, 0).reshape(2, 2, -1)
        naive = X @ X.mT - 800 * X.mean(-1)[..., None] * X.mean(-1)[..., None, :]
        assert cases.relative_error(naive, want) > 1e-2


@in_interpreter
def test_interpreted_nan_stays_in_its_channel() -> None:
    x = features(4, 8, 5, 5)
    x[1, 5, 2, 2] = torch.nan
    _, _, scatter = grouped_moments(x, 2)
    assert scatter[0].isfinite().all()
    assert scatter[1][1].isnan().all()
    assert scatter[1][[0, 2, 3]][:, [0, 2, 3]].isfinite().all()


@in_interpreter
def test_interpreted_needs_merging() -> None:
    """Negative control: more than one split, whose scatters alone do not add up."""
    x = features(8, 4, 10, 10) + torch.arange(8.0).view(8, 1, 1, 1)
    plan = tiles.plan(4, 2, 800, moments.CONFIGS[16], None)
    parts = [
        grouped_moments_twin(x.movedim(1, -1).reshape(-1, 4)[i : i + plan.chunk], 2)[2] for i in range(0, 800, plan.chunk)
    ]
    assert len(parts) == plan.splits > 1
    assert cases.relative_error(sum(parts), grouped_moments(x, 2)[2]) > 0.1  # type: ignore[arg-type]


@in_interpreter
def test_interpreted_beyond_32_bits() -> None:
    for x in far_apart(3, 5):
        found, want = grouped_moments(x, 1), grouped_moments_twin(x, 1)
        for value, exact in zip(found, want, strict=True):
            torch.testing.assert_close(value, exact, rtol=1e-6, atol=1e-6)
