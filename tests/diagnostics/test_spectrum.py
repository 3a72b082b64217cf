"""Condition numbers, gaps and ranks against numpy, for every spectrum and layer."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from spectralgrad.diagnostics import ConditionMonitor
from spectralgrad.diagnostics.record import COLUMNS
from spectralgrad.errors import OptionError
from spectralgrad.nn import DecorrelatedBatchNorm1d, PCADenoise1d
from spectralgrad.nn.pooling import CovariancePool2d
from support import cases
from support.monitored import D, model, one, samples


def test_of_a_spectrum_against_numpy() -> None:
    w = torch.tensor([1e-6, 1e-3, 0.5, 0.52, 2.0, 7.0], dtype=torch.float64)
    x = samples(w)
    [record] = one(DecorrelatedBatchNorm1d(D, eps=1e-2, dtype=torch.float64), x)
    found = np.linalg.eigvalsh(np.cov(x.numpy(), rowvar=False, bias=True))[::-1]  # descending
    assert record["condition"] == pytest.approx(found[0] / found[-1], rel=1e-8)
    assert record["condition"] == pytest.approx(7e6, rel=1e-8)  # before eps: with it 700
    assert record["largest"] == pytest.approx(7, rel=1e-12)
    assert record["smallest"] == pytest.approx(1e-6, rel=1e-8)
    assert record["smallest_gap"] == pytest.approx(min(-np.diff(found)) / found[0], rel=1e-8)
    # 1e-6 / 1e-3 is left out: the larger one is below eps
    assert record["mean_ratio"] == pytest.approx(np.mean([2 / 7, 0.52 / 2, 0.5 / 0.52, 1e-3 / 0.5]), rel=1e-8)
    assert (record["at_floor"], record["kept_rank"]) == (2, 4)
    assert (record["step"], record["layer"], record["group"]) == (0, "DecorrelatedBatchNorm1d", 0)
    assert tuple(record) == COLUMNS


@pytest.mark.parametrize("decompose_on", ["cpu", "device"])
@pytest.mark.parametrize("spectrum", cases.SPECTRA, ids=lambda f: f.__name__)
def test_condition_of_every_spectrum(spectrum: Any, decompose_on: str) -> None:
    w = spectrum(8)
    [record] = one(DecorrelatedBatchNorm1d(8, dtype=torch.float64), samples(w), decompose_on=decompose_on)
    if float(w[0]) == 0:
        assert record["condition"] > 1e15  # inf or rounding over rounding
        assert record["at_floor"] == 4
    else:
        assert record["condition"] == pytest.approx(float(w[-1] / w[0]), rel=1e-15 / float(w[0] / w[-1]) + 1e-9)
    assert record["smallest_gap"] == pytest.approx(float(w.diff().min() / w[-1]), abs=1e-14)


def test_float32_is_decomposed_in_float64() -> None:
    x = samples(torch.logspace(-9, 0, D, dtype=torch.float64)).float()
    layer = DecorrelatedBatchNorm1d(D)
    layer.monitored = True
    layer(x)
    C = layer.last_covariance
    assert C is not None
    [record] = one(layer, x)
    wide = np.linalg.eigvalsh(C[0].double().numpy())
    assert record["smallest"] == pytest.approx(wide[0], rel=1e-6)
    assert record["smallest"] != pytest.approx(float(torch.linalg.eigvalsh(C[0])[0]), rel=1e-3)  # what float32 would give
    assert record["condition"] == (pytest.approx(wide[-1] / wide[0]) if wide[0] > 0 else math.inf)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=cases.ident)
def test_constant_input(dtype: torch.dtype) -> None:
    [record] = one(DecorrelatedBatchNorm1d(D, dtype=dtype), torch.full((10, D), 3.0, dtype=dtype))
    assert record["condition"] == math.inf
    assert (record["largest"], record["smallest"], record["smallest_gap"]) == (0, 0, 0)
    assert (record["at_floor"], record["kept_rank"], record["mean_ratio"]) == (D, 0, None)


def test_one_channel_has_no_gap() -> None:
    [record] = one(DecorrelatedBatchNorm1d(1), torch.tensor([[1.0], [3.0]]))
    assert (record["condition"], record["smallest_gap"], record["mean_ratio"]) == (1, None, None)


def test_groups_have_their_own_records() -> None:
    x = torch.cat(
        [samples(torch.tensor(w, dtype=torch.float64), seed=i) for i, w in enumerate(([1.0, 4], [1, 9], [2, 3]))], 1
    )
    records = one(DecorrelatedBatchNorm1d(D, group_size=2, dtype=torch.float64), x)
    assert [record["group"] for record in records] == [0, 1, 2]
    assert [record["condition"] for record in records] == pytest.approx([4, 9, 1.5])


@pytest.mark.parametrize("options", [{"rank": 2}, {"energy": 0.8}, {"energy": 1.0}, {}], ids=str)
def test_kept_rank_of_denoising_is_that_of_the_projector(options: dict[str, Any]) -> None:
    x = samples(torch.tensor([0.001, 0.01, 0.1, 0.2, 0.6, 1.0], dtype=torch.float64), 60)
    layer = PCADenoise1d(D, dtype=torch.float64, affine=False, **options)
    [record] = one(layer, x)
    assert record["kept_rank"] == int(torch.linalg.matrix_rank(layer(x)))
    assert record["at_floor"] == 0  # so that the number above the floor would be wrong
    assert (record["kept_rank"] == D) == (options == {"energy": 1.0})


def test_rank_of_pooling_is_that_of_the_map() -> None:
    pool = CovariancePool2d(16, reduced=None)
    x = cases.random(5, 16, 3, 3, dtype=torch.float32)
    [record] = one(pool, x)
    assert record["kept_rank"] == 8  # 9 positions, centred
    assert record["at_floor"] == 8
    records = one(pool, x, samples=None)
    assert [r["group"] for r in records] == list(range(5))
    assert records[0] == record
    assert len({r["largest"] for r in records}) == 5


def test_a_covariance_that_is_not_finite_is_marked() -> None:
    net, x = model(group_size=3), cases.random(10, D)
    with ConditionMonitor(net) as monitor:
        net(x)
        C = net[1].last_covariance.clone()
        C[0, 0, 0] = torch.nan
        net[1].last_covariance = C
        broken, fine = monitor.step()
    assert all(math.isnan(broken[name]) for name in ("condition", "largest", "smallest", "smallest_gap", "mean_ratio"))
    assert broken["at_floor"] is broken["kept_rank"] is None
    assert math.isfinite(fine["condition"])
    assert "nan" in monitor.table()


# The condition on the range.


def after_a_linear_map(inputs: int, samples: int) -> tuple[DecorrelatedBatchNorm1d, torch.Tensor]:
    """(samples, D) that a map of ``inputs`` numbers made."""
    x = cases.random(samples, inputs, seed=1) @ cases.random(inputs, D, seed=2)
    return DecorrelatedBatchNorm1d(D, dtype=torch.float64), x


@pytest.mark.parametrize(
    ("inputs", "count", "said", "expected"),
    [(3, 40, 3, 3), (3, 40, None, D), (9, 4, 9, 3), (9, 4, None, 3), (9, 40, 9, D), (9, 40, 2, 2)],
)
def test_condition_on_the_range(inputs: int, count: int, said: int | None, expected: int) -> None:
    """l_1 / l_r, before eps: r is the least of channels, inputs and samples less one, and said in the record."""
    layer, x = after_a_linear_map(inputs, count)
    given = {} if said is None else {"inputs": {"DecorrelatedBatchNorm1d": said}}
    [record] = one(layer, x, **given)
    w = np.linalg.eigvalsh(np.cov(x.numpy(), rowvar=False, bias=True))[::-1]
    assert record["range"] == expected
    if min(inputs, count - 1) >= expected:
        assert record["condition_range"] == pytest.approx(w[0] / w[expected - 1], rel=1e-8)
        assert record["condition_range"] < 1e6
    else:
        assert record["condition_range"] > 1e12  # beyond the range there is rounding alone
    assert (record["condition"] == record["condition_range"]) == (expected == D)


def test_samples_of_pooling_are_the_positions_of_one_image() -> None:
    pool = CovariancePool2d(12, reduced=None)
    [record] = one(pool, cases.random(5, 12, 3, 3, dtype=torch.float32))
    assert record["range"] == 8
    assert record["condition_range"] < 1e5 < record["condition"]
    [record] = one(pool, cases.random(5, 7, 12, dtype=torch.float32))  # tokens
    assert record["range"] == 6


def test_inputs_are_whole_numbers() -> None:
    with pytest.raises(OptionError, match="inputs must be whole numbers >= 1, got 0 for 1"):
        ConditionMonitor(model(), inputs={"1": 0})


def test_inputs_are_of_layers_that_are_there() -> None:
    """A name that nobody reads would leave the condition on the range as if nothing had been said."""
    with pytest.raises(OptionError, match=r"inputs must be for layers among .*, got 'nowhere'"):
        ConditionMonitor(model(), inputs={"nowhere": 3})
