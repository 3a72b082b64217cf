"""What is said about kernels on a device: by the predicates that decide, with a reason for each that does not run."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spectralgrad.kernels import clouds, jacobi, nvrtc, spectral, svd, syev, tiles, whitening
from spectralgrad.kernels.availability import status
from support.fake_gpu import hopper  # noqa: F401

GPU = torch.device("cuda", 0)
TRITON, NOT_TRITON = ["moments", "affine"], ["jacobi", "syev", "svd", "spectral", "power", "clouds"]
ALL = [*TRITON, *NOT_TRITON, "whitening"]
Patch = Callable[[pytest.MonkeyPatch], None]


def runs(device: torch.device | str = GPU) -> list[str]:
    return [found.name for found in status(device) if found.runs]


def reasons(device: torch.device | str = GPU) -> dict[str, str]:
    return {found.name: found.reason for found in status(device)}


@pytest.mark.usefixtures("hopper")
def test_all_run_on_a_hopper() -> None:
    assert runs() == ALL
    assert runs("cuda") == ALL
    assert reasons() == {
        "moments": "takes groups of up to 128 channels",
        "affine": "takes groups of up to 128 channels",
        "jacobi": "takes real matrices up to n = 512",
        "syev": "takes batches of any size, real and complex: cuSOLVER's XsyevBatched",
        "svd": "takes real matrices of up to 128 columns or rows, or 512 of both",
        "spectral": "takes real matrices up to n = 128, in float64 96",
        "power": "takes real matrices up to n = 128, in float64 64",
        "clouds": "takes points of float32 with up to 4 coordinates",
        "whitening": "takes groups of up to 128 channels",
    }


# What is missing; who runs nevertheless; a word of the reason of those who do not.
MISSING: dict[str, tuple[Patch, list[str], str]] = {
    "a build with CUDA": (lambda m: m.setattr(torch.version, "cuda", None), [], "built without CUDA"),
    "a GPU": (lambda m: m.setattr(torch.cuda, "is_available", lambda: False), [], "sees no GPU"),
    "this GPU": (lambda m: m.setattr(torch.cuda, "device_count", lambda: 0), [], "there is no cuda:0"),
    "Triton": (lambda m: m.setattr(tiles, "has_triton", lambda: False), NOT_TRITON, "Triton is not installed"),
    "Ampere": (lambda m: m.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5)), NOT_TRITON, "capability 7.5"),
    "NVRTC": (lambda m: m.setattr(nvrtc, "_libraries", lambda: None), TRITON, "without NVRTC"),
    "XsyevBatched": (lambda m: m.setattr(syev, "_library", lambda: None), [x for x in ALL if x != "syev"], "libcusolver"),
}


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_is_named(what: str, hopper: pytest.MonkeyPatch) -> None:  # noqa: F811
    patch, still, word = MISSING[what]
    patch(hopper)
    assert runs() == still
    for name, reason in reasons().items():
        assert (word in reason) == (name not in still), (name, reason)


def stand_in(dtype: torch.dtype = torch.float32) -> Any:
    """A tensor (2, 4, 4) on a GPU, for predicates alone: nothing else of it is asked."""
    x = torch.empty(2, 4, 4, dtype=dtype)
    return SimpleNamespace(is_cuda=True, device=GPU, dtype=dtype, shape=x.shape, numel=x.numel)


@pytest.mark.parametrize("what", ["nothing", *MISSING])
def test_it_agrees_with_what_decides(what: str, hopper: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The predicates of the layers and solvers, for an input that is small enough."""
    if what in MISSING:
        MISSING[what][0](hopper)
    x, found = stand_in(), runs()
    hopper.setattr(nvrtc, "may_launch", lambda _: True)
    assert tiles.fits(x, 4) == ("moments" in found) == ("affine" in found)
    assert jacobi.runs_on(x) == ("jacobi" in found)
    assert syev.runs_on(x) == ("syev" in found)
    assert svd.runs_on(x) == ("svd" in found)
    assert spectral.runs_on(x) == ("spectral" in found)
    assert clouds.runs_on(x) == ("clouds" in found)
    assert whitening.runs_on(x, 4) == ("whitening" in found)


def test_limits_are_those_of_the_device(hopper: pytest.MonkeyPatch) -> None:  # noqa: F811
    hopper.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    hopper.setattr(nvrtc, "shared_memory", lambda _: 99 << 10)
    assert reasons()["moments"] == "takes groups of up to 32 channels"
    assert reasons()["spectral"] == "takes real matrices up to n = 88, in float64 60"
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        n = spectral.largest(dtype, 0)
        assert spectral.fits(n, dtype, 0), name
        assert not spectral.fits(n + 1, dtype, 0), name


def test_the_cpu_without_patches() -> None:
    """Outside Triton's interpreter no kernel runs on the CPU, and each says so in words of its own."""
    found = reasons("cpu")
    assert list(found) == ALL
    assert runs("cpu") == (TRITON if tiles.is_interpreted() else [])
    assert "TRITON_INTERPRET" in found["moments"] or tiles.is_interpreted()
    assert found["jacobi"] == "needs a CUDA device, and this is cpu"
