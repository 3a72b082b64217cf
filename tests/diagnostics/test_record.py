"""Records as a table."""

from spectralgrad.diagnostics import ConditionMonitor
from spectralgrad.diagnostics.record import COLUMNS
from support import cases
from support.monitored import D, model


def test_table() -> None:
    net = model()
    with ConditionMonitor(net) as monitor:
        assert monitor.table().split() == list(COLUMNS)
        net(cases.random(20, D))
        [record] = monitor.step()
        header, row = monitor.table().splitlines()
    assert len(header) == len(row)
    cells = dict(zip(header.split(), row.split(), strict=True))
    assert cells["condition"] == f"{record['condition']:.4g}"
    assert cells["gradient_before"] == "-"
    assert cells["at_floor"] == "0"
