"""Launches by torch's launcher, and sequences of them, with a launcher that only notes what it is told."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from spectralgrad.kernels import buffers, launcher
from spectralgrad.kernels.launcher import Function

DEVICE = 0
ADD = Function(7, (2, 1, 1), 4, 96, "OOOid")
KEEP = Function(8, (1, 3, 1), 1, 0, "OOl")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the launcher was called with."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(launcher, "launch_kernel", lambda *call: calls.append(call))
    monkeypatch.setattr(launcher, "raw_stream", lambda device: 100 + device)
    monkeypatch.setattr(launcher, "_kept", launcher._kept.__class__())
    return calls


def step(x: Tensor, y: Tensor, steps: list[str] | None = None) -> None:
    """Two launches; the first leaves something in scratch memory that the second reads."""
    if steps is not None:
        steps.append("step")
    first, second = buffers.parts(x, 3, 5)
    launcher.launch(ADD, (x.data_ptr(), 0, second.data_ptr(), 3, 0.5), DEVICE)
    launcher.launch(KEEP, (first.data_ptr(), y.data_ptr() + 8, 9), DEVICE)


def run(x: Tensor, y: Tensor, steps: list[str] | None = None, kind: object = "kind", **changed: Any) -> None:
    options: dict[str, Any] = {"device": DEVICE, "memory": (x, None, y), "step": lambda: step(x, y, steps), **changed}
    launcher.sequence(kind, **options)  # type: ignore[arg-type]


def test_a_launch(told: list[tuple[Any, ...]]) -> None:
    assert launcher.launch(ADD, (1, 2, 3, 4, 5.0), 1)
    assert told == [(7, 2, 1, 1, 4, 96, "OOOid", (1, 2, 3, 4, 5.0), 101)]


@pytest.mark.parametrize("error", [TypeError, OverflowError])
def test_a_launcher_that_wants_other_arguments_is_not_asked_again(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def other(*call: Any) -> None:
        asked.append(call)
        raise error

    monkeypatch.setattr(launcher, "launch_kernel", other)
    monkeypatch.setattr(launcher, "raw_stream", lambda device: device)
    assert not launcher.launch(ADD, (1, 2, 3, 4, 5.0), DEVICE)
    assert not launcher.launch(ADD, (1, 2, 3, 4, 5.0), DEVICE)
    assert len(asked) == 1


def test_a_sequence_goes_on_in_other_memory(told: list[tuple[Any, ...]]) -> None:
    steps: list[str] = []
    kept = [(torch.zeros(6), torch.zeros(6)) for _ in range(3)]
    for x, y in kept:
        run(x, y, steps)
    assert len(steps) == 1
    assert len(told) == 6
    for (x, y), (add, keep) in zip(kept, zip(told[::2], told[1::2], strict=True), strict=True):
        assert add[:7] == told[0][:7]
        assert keep[:7] == told[1][:7]
        assert add[7][:2] == (x.data_ptr(), 0)
        assert add[7][3:] == (3, 0.5)
        assert keep[7][1:] == (y.data_ptr() + 8, 9)
        assert add[7][2] - keep[7][0] == 16  # the second part of the scratch memory begins 16 bytes after the first


def test_scratch_memory_is_of_its_own_in_every_run(told: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.zeros(6), torch.zeros(6)
    run(x, y)
    sizes = []
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda size, **options: sizes.append((size, options)) or empty(size, **options))
    run(x, y)
    assert sizes == [(48, {"dtype": torch.uint8, "device": x.device})]  # 3 and 5 numbers, each in whole sixteens of bytes


def test_kinds_are_apart(told: list[tuple[Any, ...]]) -> None:
    x, y = torch.zeros(6), torch.zeros(6)
    steps: list[str] = []
    for kind in ("one", "another", "one"):
        run(x, y, steps, kind)
    assert len(steps) == 2
    launcher.forget()
    run(x, y, steps, "one")
    assert len(steps) == 3


def test_as_many_as_are_kept(told: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "MOST", 2)
    x, y = torch.zeros(6), torch.zeros(6)
    for kind in range(3):
        run(x, y, kind=kind)
    assert list(launcher._kept) == [1, 2]


def elsewhere(x: Tensor, y: Tensor) -> dict[str, Any]:
    """A launch that reads what the sequence was not told of."""
    other = torch.zeros(4)
    return {"step": lambda: (launcher.launch(KEEP, (x.data_ptr(), other.data_ptr(), 1), DEVICE), gc.collect())}


def by_triton(x: Tensor, y: Tensor) -> dict[str, Any]:
    return {"step": lambda: (step(x, y), launcher.note_other_launch())}


def ambiguous(x: Tensor, y: Tensor) -> dict[str, Any]:
    """One tensor twice: the next time they may be two."""
    return {"memory": (x, x, y)}


def on_the_cpu(x: Tensor, y: Tensor) -> dict[str, Any]:
    return {"device": None}


def nothing(x: Tensor, y: Tensor) -> dict[str, Any]:
    return {"step": lambda: None}


def not_aligned(x: Tensor, y: Tensor) -> dict[str, Any]:
    return {"memory": (x[1:], None, y)}


@pytest.mark.parametrize("changed", [elsewhere, by_triton, ambiguous, on_the_cpu, nothing, not_aligned])
def test_what_is_not_kept(changed: Callable[[Tensor, Tensor], dict[str, Any]], told: list[tuple[Any, ...]]) -> None:
    x, y = torch.zeros(6), torch.zeros(6)
    run(x, y, **changed(x, y))
    assert not launcher._kept
    assert launcher._thread.recorder is None


def test_a_step_that_fails_leaves_no_recorder(told: list[tuple[Any, ...]]) -> None:
    def fails() -> None:
        raise ValueError("no")

    x, y = torch.zeros(6), torch.zeros(6)
    with pytest.raises(ValueError, match="no"):
        run(x, y, step=fails)
    assert launcher._thread.recorder is None
    assert not launcher._kept


def test_a_misaligned_input_does_not_take_a_kept_sequence(told: list[tuple[Any, ...]]) -> None:
    x, y = torch.zeros(8), torch.zeros(6)
    steps: list[str] = []
    for given in (x, x[1:], x):
        run(given, y, steps)
    assert len(steps) == 2
