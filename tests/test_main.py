"""`python -m spectralgrad`: what it prints, its exit codes, and that a broken library fails its own check."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spectralgrad as sg
from spectralgrad import selfcheck
from spectralgrad.__main__ import kernel_lines, main, native_line
from spectralgrad.kernels.availability import KernelStatus
from spectralgrad.kernels.cpu import load

CPU = torch.device("cpu")
TIE, EIGH, WHITENING = selfcheck.CHECKS


def command(*arguments: str, before: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run as a user would, after the code in ``before``, with these environment variables."""
    code = f"{before}\nimport runpy, sys\nsys.argv[1:] = {arguments}\nrunpy.run_module('spectralgrad', run_name='__main__')"
    called = ["-c", code] if before else ["-m", "spectralgrad", *arguments]
    return subprocess.run(
        [sys.executable, *called], capture_output=True, text=True, check=False, env={**os.environ, **variables}
    )


def test_a_sound_library_passes() -> None:
    done = command()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"spectralgrad {sg.__version__}, torch {torch.__version__}, Python ")
    assert "\ncpu: " in done.stdout
    assert f"\n  {native_line()}\n" in done.stdout
    assert "kernel jacobi     does not run: needs a CUDA device, and this is cpu" in done.stdout
    for dtype in ("float32", "float64"):
        for name in selfcheck.CHECKS:
            assert re.search(rf"^ok +cpu +{dtype} +{name}: .*\d\.\de[+-]\d\d$", done.stdout, re.MULTILINE)
    devices = 1 + torch.cuda.device_count()
    assert done.stdout.endswith(f"\nAll {6 * devices} checks passed.\n")


def test_a_broken_library_fails() -> None:
    done = command(before="import spectralgrad as sg\nsg.inv_sqrtm = sg.sqrtm")
    assert done.returncode == 1
    assert "FAILED  cpu     float32  gradient of inv_sqrtm at a tie: error " in done.stdout
    assert "ok      cpu     float32  eigh: residual " in done.stdout
    assert done.stdout.endswith(f"\n2 of {6 * (1 + torch.cuda.device_count())} checks FAILED.\n")


@pytest.mark.parametrize("arguments", [("demo",), ("--versions",), ("--version", "x"), ("",)])
def test_wrong_use_is_one_line(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(arguments)) == 2
    done = capsys.readouterr()
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert f"takes --version or nothing, got {' '.join(arguments)}." in done.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's full device")
@pytest.mark.parametrize("arguments", [(), ("--version",), ("--help",)])
def test_a_full_disk_is_one_line(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        call = [sys.executable, "-m", "spectralgrad", *arguments]
        done = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "python -m spectralgrad: No space left on device.\n")


def test_without_doc_strings_it_works() -> None:
    done = subprocess.run([sys.executable, "-OO", "-m", "spectralgrad", "--version"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"spectralgrad {sg.__version__}\n"
    assert main(["--help"]) == main(["-h"]) == 0
    assert "python -m spectralgrad [--version | --help]" in capsys.readouterr().out


# Every check finds what it is there for.


def wrong_eigenvalues(M: Tensor) -> tuple[Tensor, Tensor]:
    w, V = torch.linalg.eigh(M)
    return w * (1 + 1e-3), V


def wrong_eigenvectors(M: Tensor) -> tuple[Tensor, Tensor]:
    w, V = torch.linalg.eigh(M)
    return w, V * (1 + 1e-3)


def raising(*_: Any) -> Any:
    raise sg.errors.ConvergenceError("no solver\ncould do it")


class BatchNorm(nn.BatchNorm2d):
    """Does not decorrelate."""

    def __init__(self, *args: Any, group_size: int, **options: Any) -> None:
        super().__init__(*args, **options)


class Frozen(sg.nn.DecorrelatedBatchNorm2d):
    """Forgets that the statistics depend on the input: whitens, but sends the wrong gradient back."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach()) + x - x.detach()


class Silent(sg.nn.DecorrelatedBatchNorm2d):
    """Sends no gradient back."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach()) + 0 * x


SOUND = sg.inv_sqrtm


@pytest.mark.parametrize(
    ("owner", "name", "broken", "failing"),
    [
        (sg, "inv_sqrtm", lambda M: torch.linalg.inv(torch.linalg.cholesky(M)), TIE),
        (sg, "inv_sqrtm", lambda M: SOUND(M, gradient=sg.Clip(1.0)), TIE),
        (sg, "inv_sqrtm", raising, TIE),
        (sg, "eigh", wrong_eigenvalues, EIGH),
        (sg, "eigh", wrong_eigenvectors, EIGH),
        (sg.nn, "DecorrelatedBatchNorm2d", BatchNorm, WHITENING),
        (sg.nn, "DecorrelatedBatchNorm2d", Frozen, WHITENING),
        (sg.nn, "DecorrelatedBatchNorm2d", Silent, WHITENING),
    ],
)
def test_each_check_can_fail(
    owner: Any, name: str, broken: Callable[..., Any], failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    found = list(selfcheck.results([CPU]))
    assert [(r.dtype, r.name) for r in found if not r.passed] == [(dtype, failing) for dtype in selfcheck.TOLERANCE]


def test_what_is_raised_is_shown_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sg, "eigh", raising)
    assert {r.figure for r in selfcheck.results([CPU]) if r.name == EIGH} == {"ConvergenceError: no solver"}


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    list(selfcheck.results([CPU]))
    assert torch.equal(before, torch.get_rng_state())


# Kernels.


def test_kernel_lines_say_what_runs_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [KernelStatus("moments", True, "takes groups of up to 32 channels"), KernelStatus("jacobi", False, "no NVRTC")]
    monkeypatch.setattr("spectralgrad.__main__.status", lambda _: found)
    assert kernel_lines(CPU) == [
        native_line(),
        "kernel moments    runs, takes groups of up to 32 channels",
        "kernel jacobi     does not run: no NVRTC",
    ]
    assert kernel_lines(torch.device("meta")) == kernel_lines(CPU)[1:]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [("off", "do not run: SPECTRALGRAD_CPU=off"), ("sse9", "do not run: SPECTRALGRAD_CPU must be one of baseline, avx2, ")],
)
def test_native_kernels_that_do_not_run_say_why_and_plain_torch_is_right(wanted: str, said: str) -> None:
    done = command(SPECTRALGRAD_CPU=wanted)
    assert done.returncode == 0
    assert f"\n  native kernels {said}" in done.stdout


@pytest.mark.skipif(load.obstacle() is not None, reason=f"no native kernels: {load.obstacle()}")
@pytest.mark.parametrize("wanted", load.levels())
def test_native_kernels_that_run_name_their_instructions(wanted: str) -> None:
    done = command(SPECTRALGRAD_CPU=wanted)
    assert done.returncode == 0
    assert f"\n  native kernels run, with the instructions {wanted} of baseline" in done.stdout
