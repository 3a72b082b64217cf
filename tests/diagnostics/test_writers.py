"""The CSV file, cut and whole, and a writer of scalars."""

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spectralgrad.diagnostics import ConditionMonitor
from spectralgrad.diagnostics.writers import CsvFile
from spectralgrad.errors import OptionError
from spectralgrad.nn import DecorrelatedBatchNorm1d, PCADenoise1d
from support import cases
from support.monitored import D, model, train


def read(path: Path) -> list[dict[str, Any]]:
    def value(name: str, text: str) -> Any:
        return text if name == "layer" else None if text == "" else float(text)

    with path.open(newline="") as file:
        return [{name: value(name, text) for name, text in row.items()} for row in csv.DictReader(file)]


def test_csv_round_trip_and_append(tmp_path: Path) -> None:
    path, net = tmp_path / "log.csv", model(group_size=3)
    new: list[dict[str, Any]] = []
    for start in (0, 2):
        with ConditionMonitor(net, to=path if start else str(path), start=start) as monitor:
            new += train(net, monitor, steps=2)
            assert read(path) == new  # flushed already
        assert monitor.records == new[-2:]  # the last step only
    with ConditionMonitor(net[1], to=path, start=4) as monitor:
        net[1](torch.ones(4, D, dtype=torch.float64))
        new += monitor.step()
    assert read(path) == new
    assert new[-1]["condition"] == math.inf
    assert [r["step"] for r in new] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert path.read_text().count("smallest_gap") == 1


def test_csv_cut_in_a_line_is_repaired(tmp_path: Path) -> None:
    path, net = tmp_path / "log.csv", model()
    with ConditionMonitor(net, to=path) as monitor:
        train(net, monitor, steps=3)
    whole = path.read_bytes()
    for cut in (3, len(whole.splitlines()[0]), len(whole) - 1, len(whole) - 40):
        path.write_bytes(whole[:cut])
        if cut < len(whole) // 3:  # in the header: nothing to report
            CsvFile(path).file.close()
            assert path.read_bytes() == whole.splitlines(keepends=True)[0]
        else:
            with pytest.warns(UserWarning, match="not finished"):
                CsvFile(path).file.close()
            assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:-1])


@pytest.mark.parametrize("text", ["step,loss\n0,1.5\n", "a letter", "\n"])
def test_csv_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    path, net = tmp_path / "log.csv", model()
    path.write_text(text)
    with pytest.raises(OptionError, match="must have the columns"):
        ConditionMonitor(net, to=path)
    assert path.read_text() == text
    assert not net[1]._forward_hooks
    assert not net[1].monitored


class Writer:
    def __init__(self) -> None:
        self.seen: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.seen.append((tag, value, step))


def test_writer_of_scalars() -> None:
    net = nn.Sequential(DecorrelatedBatchNorm1d(D, group_size=3), PCADenoise1d(D, rank=2)).double()
    writer = Writer()
    with ConditionMonitor(net, to=writer, start=7) as monitor:
        net(cases.random(20, D)).square().sum().backward()
        first, second, denoise = monitor.step()
    assert {step for *_, step in writer.seen} == {7}
    seen = {tag: value for tag, value, _ in writer.seen}
    assert len(seen) == len(writer.seen)
    assert seen["0/0/condition"] == first["condition"]
    assert seen["0/1/condition"] == second["condition"]
    assert seen["1/kept_rank"] == denoise["kept_rank"] == 2
    assert seen["0/gradient_before"] == first["gradient_before"]
    assert "0/gradient_after" not in seen  # None: the input needs no gradient
    assert seen["1/gradient_after"] == denoise["gradient_after"]
