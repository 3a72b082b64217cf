"""Artifacts without data: the papers' numbers come out, by another way too, and a changed one would be noticed."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import mpmath
import pytest
import torch

import spectralgrad as sg
from spectralgrad.errors import OptionError
from spectralgrad_lab.artifacts import computed, registry
from spectralgrad_lab.artifacts.eccv22 import table6 as eccv22_table6
from spectralgrad_lab.artifacts.nips19 import table1 as nips19_table1
from spectralgrad_lab.artifacts.nips19 import time as nips19_time
from spectralgrad_lab.artifacts.pami import eq60 as pami_eq60
from spectralgrad_lab.artifacts.pami import fig7 as pami_fig7
from spectralgrad_lab.artifacts.protocols import protocol as _protocol
from spectralgrad_lab.records.results import Computed, Printed
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.training import timing

EXACT = ("nips19-table1", "nips19-fig1", "pami-fig3", "pami-fig4", "pami-fig11", "pami-eq60")
BY_TABLES: dict[str, Callable[[tuple[Printed, ...]], Computed]] = {
    "nips19-table1": computed.iterations_needed,
    "pami-fig3": lambda printed: computed.directions(*printed),
    "pami-fig4": lambda printed: computed.remainder_surface(*printed),
    "pami-fig11": lambda printed: computed.angle_residuals(*printed),
    "pami-eq60": computed.worked_example,
}


def compute(id: str, scale: str = "smoke") -> Computed:
    spec = registry.find(id)
    assert spec.compute is not None
    return spec.compute(scale)  # type: ignore[arg-type]


@pytest.mark.parametrize("id", EXACT)
@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_the_papers_own_numbers_come_out(id: str, scale: str) -> None:
    result = compute(id, scale)
    assert result.agrees is True
    assert all(len(row) == len(table.columns) for table in result.tables for row in table.rows.values())
    for surface in result.surfaces:
        assert len(surface.z) == len(surface.y)
        assert {len(row) for row in surface.z} == {len(surface.x)}
        assert all(math.isfinite(z) for row in surface.z for z in row)


def changed_tables(id: str) -> list[tuple[Printed, ...]]:
    """The printed tables, each time with another digit changed; words and empty cells are left."""
    printed = registry.find(id).printed
    found = []
    for i, table in enumerate(printed):
        for row, cells in table.rows.items():
            for j, text in enumerate(cells):
                if not text or not text.strip("-°%.").replace(".", "").isdigit() or (id == "pami-fig11" and j > 0):
                    continue
                digit = max(k for k, letter in enumerate(text) if letter.isdigit())
                other = text[:digit] + str((int(text[digit]) + 2) % 10) + text[digit + 1 :]
                rows = {**table.rows, row: (*cells[:j], other, *cells[j + 1 :])}
                found.append((*printed[:i], replace(table, rows=rows), *printed[i + 1 :]))
    return found


@pytest.mark.parametrize("id", BY_TABLES)
def test_a_number_that_differs_is_noticed(id: str) -> None:
    """Negative control: with any one printed digit changed the artifact no longer agrees, but where a misprint is marked."""
    changed = changed_tables(id)
    assert len(changed) >= 3
    disagree = [not BY_TABLES[id](printed).agrees for printed in changed]
    marked = {"pami-fig4": 1, "pami-eq60": 1}.get(id, 0)  # C; K32 of eq. 61, which differs anyhow
    assert disagree.count(False) == marked


def test_a_marked_misprint_must_be_one() -> None:
    taylor = pami_eq60.TAYLOR
    right = replace(taylor, rows={**taylor.rows, "3": ("-99.90", "-1000", "0")})
    assert computed.worked_example((pami_eq60.EXACT, right, pami_eq60.ANGLES)).agrees is False


def test_nothing_compared_is_no_agreement() -> None:
    assert not computed.agreement(Printed(("a",), {"b": (None,)}), {("b", "a"): 1.0})


def test_smallest_powers_by_multiplication() -> None:
    shown = compute("nips19-table1").tables[0].rows["k"]
    assert shown[:7] == ("2", "2", "3", "4", "5", "6", "9")  # those that the text lost
    assert nips19_table1.NIPS19.rows["k"][:7] == (None,) * 7  # and that are not filled in
    for ratio, text in zip(computed.RATIOS, shown, strict=True):
        k, product = 0, Decimal(1)
        while product > Decimal("0.05"):
            k, product = k + 1, product * Decimal(ratio)
        assert int(text or 0) == k


def test_a_power_on_the_bound_counts() -> None:
    assert computed.smallest_power("0.5", computed.Fraction(1, 8)) == 3
    assert computed.smallest_power("0.01") == 1


def test_the_surface_of_powers() -> None:
    (surface,) = compute("nips19-fig1").surfaces
    assert surface.levels == (0.05,)
    k, ratio = surface.y.index(19), min(range(101), key=lambda i: abs(surface.x[i] - 0.85))
    assert surface.z[k][ratio] == pytest.approx(float(mpmath.mpf("0.85") ** 19), rel=1e-12)
    assert surface.z[0] == pytest.approx(surface.x)


def test_the_surface_of_remainders_and_its_points() -> None:
    result = compute("pami-fig4")
    (surface,) = result.surfaces
    assert surface.levels == (0.05, 0.2)
    assert surface.z[9][50] == pytest.approx(0.5**10, rel=1e-12)  # K = 9 leaves x^10
    points = {name: (x, degree) for name, x, degree in surface.points}
    assert points["A"][0] ** 10 == pytest.approx(0.05)
    discarded = {row: float(cells[2] or 0) for row, cells in result.tables[0].rows.items()}
    for name, (x, degree) in points.items():
        assert discarded[name] == pytest.approx(100 * float(mpmath.mpf(x) ** (degree + 1)), rel=1e-3)


def rho(q2: mpmath.mpf, q3: mpmath.mpf) -> mpmath.mpf:
    """PAMI eq. 42, in degrees."""
    bare = (1 - q3) / (q2 - q3)
    return mpmath.degrees(mpmath.atan(bare * (1 - (q3 / q2) ** 10) / (1 - q3**10)) - mpmath.atan(bare))


def test_angle_residuals_by_equation_42() -> None:
    result = compute("pami-fig11")
    with mpmath.workdps(40):
        close = 1 - mpmath.mpf(10) ** -6
        shown = [float(cells[0] or 0) for cells in result.tables[0].rows.values()]
        assert shown[0] == pytest.approx(float(rho(close + mpmath.mpf(10) ** -10, close)), abs=1e-4)
        for i, q in ((1, "0.5"), (2, "0.01")):  # its limit for q2 -> q3
            assert shown[i] == pytest.approx(
                float(rho(mpmath.mpf(q) * (1 + mpmath.mpf(10) ** -25), mpmath.mpf(q))), abs=1e-9
            )
        surface = result.surfaces[1]
        i, j = 30, 12  # q2 at x[30] is above q3 at y[12]
        expected = float(rho(mpmath.mpf(surface.x[i]), mpmath.mpf(surface.x[j])))
        assert surface.z[j][i] == pytest.approx(expected, abs=1e-9)
        assert surface.z[i][j] == surface.z[j][i]


def test_nowhere_is_the_residual_larger() -> None:
    result = compute("pami-fig11")
    for surface, cells in zip(result.surfaces, result.tables[0].rows.values(), strict=True):
        assert min(map(min, surface.z)) >= float(cells[0] or 0) - 1e-9
    for surface in result.surfaces[1:]:  # the corner is the minimum
        assert min(map(min, surface.z)) == surface.z[-1][-1]


def test_directions_are_drawn_as_arrows_of_length_one() -> None:
    curves = compute("pami-fig3").curves
    assert [curve.label for curve in curves] == ["original", "clipped at 100", "Taylor, K = 9"]
    angles = [math.degrees(math.atan2(curve.y[1], curve.x[1])) for curve in curves]
    assert angles == pytest.approx([90, 45, math.degrees(math.atan(10 / (1 - 0.5**10)))])
    assert all(math.hypot(curve.x[1], curve.y[1]) == pytest.approx(1) for curve in curves)


def test_equation_59_by_threshold() -> None:
    """Case c is the misprint: a larger threshold turns the column less."""
    values = [float((cells[0] or "").strip("°")) for cells in compute("pami-fig3").tables[1].rows.values()]
    assert values[:2] == [-45, -45]
    assert values == sorted(values)
    assert values[-1] > -5.71


# Figure 1a


def test_gaps_are_those_of_an_undivided_product() -> None:
    gaps = computed.smallest_gaps(5, 3, "normal", torch.Generator().manual_seed(3))
    X = torch.randn(3, 5, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for gap, points in zip(gaps, X, strict=True):
        rows = points - points.mean(1, keepdim=True)
        w = torch.linalg.svdvals(rows).square()
        assert float(gap) == pytest.approx(min(float(a - b) for a, b in itertools.pairwise(w)), rel=1e-9)


def test_gaps_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = computed.smallest_gaps(4, 10, "uniform", torch.Generator().manual_seed(0))
    monkeypatch.setattr(computed, "CHUNK", 3 * 32)
    parts = computed.smallest_gaps(4, 10, "uniform", torch.Generator().manual_seed(0))
    assert parts.shape == whole.shape == (10,)
    torch.testing.assert_close(parts, whole)


def test_close_pairs_are_more_likely_in_large_matrices() -> None:
    """Uniform points: eigenvalues are twelve times as dense as for normal ones, and so are close pairs, squared."""
    generator = torch.Generator().manual_seed(0)
    rates = [float((computed.smallest_gaps(d, 500, "uniform", generator) < 2**-5).double().mean()) for d in (6, 20, 60)]
    assert rates == sorted(rates)
    assert rates[0] < 0.1 < 0.3 < rates[-1]
    assert float((computed.smallest_gaps(60, 500, "normal", generator) < 2**-5).double().mean()) < 0.1


def test_the_curves_of_close_eigenvalues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(computed.MATRICES, "smoke", 40)
    result = compute("pami-fig1a")
    assert [curve.label for curve in result.curves] == [f"2^-{e}" for e in (10, 11, 12, 13, 14)]
    for wide, narrow in zip(result.curves[:-1], result.curves[1:], strict=True):
        assert all(a >= b for a, b in zip(wide.y, narrow.y, strict=True))
    assert "40 matrices" in result.remarks[0]
    assert result.agrees is None  # a probability is not an exact number


@pytest.mark.slow
def test_the_probability_that_the_paper_names() -> None:
    """More than 0.1 % at d = 150 within 2^-10, with uniform points; not with normal ones."""
    generator = torch.Generator().manual_seed(1)
    rates = {
        kind: float((computed.smallest_gaps(150, 10_000, kind, generator) < 2**-10).double().mean())
        for kind in ("uniform", "normal")
    }
    assert rates["uniform"] > 0.001
    assert rates["normal"] < 0.0005


# Times


@pytest.mark.parametrize("module", [nips19_time, pami_fig7, eccv22_table6], ids=lambda module: module.SPEC.id)
def test_times_are_measured_and_state_the_machine(module: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(timing.ROUNDS, "smoke", 1)
    spec = module.SPEC  # type: ignore[attr-defined]
    result = spec.compute("smoke")
    assert all(float(cell) > 0 for table in result.tables for cells in table.rows.values() for cell in cells)
    assert "torch threads" in result.remarks[0]
    assert "batch 128" in result.remarks[0]
    for printed in spec.printed:
        assert printed.columns == result.tables[0].columns
        assert list(printed.rows) == list(result.tables[0].rows)


def test_the_forward_pass_stands_beside_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """PAMI 5.1.2: forward takes 2 to 10 times as long as backward."""
    monkeypatch.setitem(timing.ROUNDS, "smoke", 1)
    backward, forward, ratio = pami_fig7.SPEC.compute("smoke").tables  # type: ignore[misc]
    for row, cells in ratio.rows.items():
        for share, one, other in zip(cells, forward.rows[row], backward.rows[row], strict=True):
            assert float(share) == pytest.approx(float(one) / float(other), rel=2e-3)


def test_a_larger_network_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(timing.ROUNDS, "smoke", 3)
    small = replace(_protocol.DIGITS, width=4, batch=32)
    times, _ = timing.measure({"large": replace(small, width=64, batch=256), "small": small}, "smoke")
    assert times["large"].forward > times["small"].forward
    assert times["large"].backward > times["small"].backward
    assert times["large"].step > max(times["large"].forward, times["large"].backward)


TREATMENTS = {
    "SN": "spectral_norm",
    "OL": "orthogonal_loss",
    "OW": "orthogonal_weight",
    "NOG": "NearestOrthogonalGradient",
    "OLR": "OptimalLearningRate",
}


@pytest.mark.parametrize("asked", [(), *((name,) for name in TREATMENTS), ("OW", "NOG", "OLR")], ids="+".join)
def test_treatments_take_part_in_the_timed_step(asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[str] = set()
    for name, attribute in TREATMENTS.items():
        original = getattr(sg.orthogonal, attribute)

        def noted(*args: object, name: str = name, original: Callable[..., object] = original, **how: object) -> object:
            used.add(name)
            return original(*args, **how)

        monkeypatch.setattr(sg.orthogonal, attribute, noted)
    trial: Trial = replace(_protocol.DIGITS, layer="zca", method="taylor", d=8, batch=16, treatments=asked)
    forward, backward = timing.training_step(trial, torch.device("cpu"))()
    assert used == set(asked)
    assert forward > 0
    assert backward > 0


def test_what_training_refuses_is_not_timed() -> None:
    trial = replace(_protocol.DIGITS, layer="zca", method="taylor", d=8, batch=16, treatments=("SN", "OW"))
    with pytest.raises(OptionError, match="take one of them"):
        timing.training_step(trial, torch.device("cpu"))


def test_the_clock_ends_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(timing.SECONDS, "smoke", 0.0)
    _, remarks = timing.measure({"BN": replace(_protocol.DIGITS, batch=16)}, "smoke")
    assert f"medians of {timing.FEWEST} rounds" in remarks[0]
