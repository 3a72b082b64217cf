"""The small cases of `gradients`: their references against closed forms, their rows, and that a wrong gradient is seen."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch

import spectralgrad as sg
from spectralgrad_lab.bench import comparison, gradients, peers, subjects
from spectralgrad_lab.bench import multiprecision as mp
from spectralgrad_lab.bench.case import Case
from spectralgrad_lab.bench.measure import Effort
from spectralgrad_lab.bench.rows import Row

CPU, INSTANT = torch.device("cpu"), Effort(0.0)
RANDOM = np.random.default_rng(0)
Array = np.ndarray


@pytest.fixture(autouse=True)
def many_digits() -> Iterator[None]:
    with mpmath.workdps(mp.DIGITS):
        yield


def symmetric(n: int) -> Array:
    x = RANDOM.standard_normal((n, n))
    return x + x.T


def rows_of(case: Case) -> list[Row]:
    return gradients.check_gradients(case, CPU, INSTANT)


def find(function: str, dtype: str, kind: str) -> Case:
    (case,) = (c for c in subjects.cases() if (c.function, c.dtype, c.kind) == (function, dtype, kind))
    return case


# References


@pytest.mark.parametrize("M", [np.eye(3), np.diag([1.0, 1.0, 2.0]), symmetric(3)], ids=["identity", "tie", "separated"])
def test_first_and_second_derivative_of_a_cube(M: Array) -> None:
    """<C, M^3>: both derivatives are polynomials, ties or not."""
    C, T = symmetric(3), symmetric(3)
    derivative = mp.gradient(mp.Smooth(lambda x: x**3), mp.exactly(C))
    X = mp.exactly(M)
    assert np.allclose(mp.rounded(derivative(X)), M @ M @ C + M @ C @ M + C @ M @ M, rtol=1e-14)
    second = T @ M @ C + M @ T @ C + T @ C @ M + M @ C @ T + C @ T @ M + C @ M @ T
    assert np.allclose(mp.rounded(mp.along(derivative, mp.exactly(T))(X)), second, rtol=1e-13)


def test_gradient_of_an_inverse_through_the_dilation() -> None:
    A, G = RANDOM.standard_normal((3, 3)), RANDOM.standard_normal((3, 3))
    inverse = mp.odd(lambda x: 1 / x)
    found = mp.of_singular(mp.gradient(inverse, mp.dilation(mp.exactly(G)) / 2))(mp.exactly(A))
    Z = np.linalg.inv(A)
    assert np.allclose(mp.rounded(mp.value_of_singular(inverse)(mp.exactly(A))), Z.T, rtol=1e-12)
    assert np.allclose(mp.rounded(found), -Z.T @ G.T @ Z.T, rtol=1e-10)


@pytest.mark.parametrize("block", ["left", "corner", "right"])
def test_losses_on_singular_vectors(block: str) -> None:
    """Against differences of the loss itself, by numpy's decomposition: eight digits."""
    A, c, h = RANDOM.standard_normal((4, 3)), (1.0, 2.0, 4.0), 1e-6
    G = {"left": symmetric(4), "corner": symmetric(3), "right": RANDOM.standard_normal((4, 3))}[block]

    def loss(A: Array) -> float:
        U, _, Vt = np.linalg.svd(A, full_matrices=False)
        left, right = (U, U.T) if block == "left" else (Vt.T, Vt) if block == "corner" else (U, Vt)
        return float((G * ((left * c[::-1]) @ right)).sum())

    blocks: dict[str, Any] = {block: mp.exactly(G)}
    C = mp.cotangent(4, 3, **blocks)
    found = mp.rounded(mp.of_singular(mp.gradient(mp.ByIndex((0.0,) * 4 + c), C))(mp.exactly(A)))
    steps = h * np.eye(12).reshape(12, 4, 3)
    by_hand = np.array([(loss(A + E) - loss(A - E)) / (2 * h) for E in steps]).reshape(4, 3)
    assert np.allclose(found, by_hand, rtol=1e-6, atol=1e-7)


def test_condition_numbers() -> None:
    X = mp.exactly(symmetric(3))
    linear = mp.gradient(mp.Smooth(lambda x: 2 * x), mp.exactly(symmetric(3)))
    assert mp.condition(linear, X, linear(X), keeps_symmetry=True) < 1e-20  # a gradient that does not change
    proportional = mp.value(mp.Smooth(lambda x: 2 * x))
    assert mp.condition(proportional, X, proportional(X), keeps_symmetry=True) == pytest.approx(1)
    near = mp.exactly(np.diag([1.0, 1.0 + 1e-6, 2.0]))
    seen = mp.gradient(mp.ByIndex((1.0, 2.0, 3.0)), mp.exactly(symmetric(3)))
    assert 1e5 < mp.condition(seen, near, seen(near), keeps_symmetry=True) < 1e8  # 1/gap


# Cases and rows


def test_cases_are_those_that_were_asked_for() -> None:
    cases = subjects.cases()
    names = [(case.function, case.dtype, case.kind) for case in cases]
    assert len(set(names)) == len(names) > 1000
    assert {case.function.partition(",")[0] for case in cases} == set(gradients.SUBJECTS)
    diagonal = [case for case in cases if case.function == "powm, diagonal"]
    assert {case.numbers[0] for case in diagonal} == {-3, -2, -1, -0.5, -0.25, 0.1, 0.3, 0.5, 1, 1.7, 2, 3}
    largest = {dtype: max(case.numbers[1] for case in diagonal if case.dtype == dtype) for dtype in subjects.DTYPES}
    assert largest == {"float32": 1e6, "float64": 1e12}
    assert {case.numbers[0] for case in cases if case.function.startswith("inv_root")} == {1, 2, 3, 4, 8}


FIRST = {case.function: case for case in reversed(subjects.cases()) if case.dtype == "float64"}


@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_a_row_of_every_function(case: Case) -> None:
    (row,) = rows_of(case)
    assert row.verdict == "met", (row.errors, row.failed, row.target)
    assert {row.method, *row.also} <= set(row.errors)
    assert set(row.errors) & {peers.TORCH, peers.TORCH_SVD, peers.TORCH_OWN}


HARD = [
    ("powm, diagonal", "float32", "alpha = -1, singular, floor, condition 1e6"),
    ("powm, diagonal", "float64", "alpha = -2, ties, condition 1e12"),
    ("svd, U V^H", "float32", "s_min/s_max 1e-4, square"),
    ("svd, U V^H", "float64", "tie, diagonal, tall"),
    ("pinv", "float32", "graded 1e-4, wide"),
    ("singular_map, tanh", "float64", "rank-deficient, tall"),
    ("generalized_eigh, V", "float64", "gap 1e-6, span, condition of B 1e3"),
    ("second derivative, inv_sqrtm", "float64", "gap 1e-12"),
    ("second derivative, polar", "float32", "tie, tall"),
]


@pytest.mark.parametrize("name", HARD, ids=lambda name: ", ".join(name))
def test_hard_rows_are_met(name: tuple[str, str, str]) -> None:
    (row,) = rows_of(find(*name))
    assert row.verdict == "met", (row.errors, row.failed, row.target)


def test_values_stand_beside_scipy() -> None:
    for name in ("powm, value", "inv_root, value", "generalized_eigh, value"):
        case = next(case for case in subjects.cases() if case.function == name and case.dtype == "float64")
        (row,) = rows_of(case)
        assert row.errors[peers.SCIPY] <= row.target  # type: ignore[operator]


# Negative controls: what others do, in our place


def test_torchs_formulas_miss_in_our_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def svd(A: torch.Tensor, gradient: Any = None) -> Any:
        return torch.linalg.svd(A, full_matrices=False)

    def powm(M: torch.Tensor, alpha: float, floor: float | None = None) -> torch.Tensor:
        return peers.by_eigenpairs(lambda w: w**alpha)(M)

    tie = find("svd, U V^H", "float64", "tie, diagonal, square")
    ties = find("powm, diagonal", "float64", "alpha = -1, ties, condition 1e3")
    assert [row.verdict for case in (tie, ties) for row in rows_of(case)] == ["met"] * 2
    monkeypatch.setattr(sg, "svd", svd)
    monkeypatch.setattr(sg, "powm", powm)
    rows = [row for case in (tie, ties) for row in rows_of(case)]
    assert [row.verdict for row in rows] == ["missed"] * 2
    text = "\n".join(comparison.report(rows))
    assert "MISSED by spectralgrad: svd, U V^H, float64, tie, diagonal, square" in text
    assert "MISSED by spectralgrad Exact: powm, diagonal, float64, alpha = -1, ties, condition 1e3" in text


def test_a_biased_rule_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = sg.svd

    def biased(A: torch.Tensor, gradient: Any = None) -> Any:
        return exact(A, gradient=sg.Lorentzian(rtol=1e-5))

    case = find("svd, U", "float64", "separated, tall")
    assert rows_of(case)[0].verdict == "met"
    monkeypatch.setattr(sg, "svd", biased)
    assert rows_of(case)[0].verdict == "missed"


def test_quotients_without_care_miss_a_hundred_eps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Loewner matrix by plain difference quotients, as it is first written."""

    class Plain(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, M: torch.Tensor, alpha: float) -> torch.Tensor:
            w, V = torch.linalg.eigh(M)
            y = w**alpha
            gap = w.unsqueeze(-1) - w.unsqueeze(-2)
            equal = gap == 0
            quotient = (y.unsqueeze(-1) - y.unsqueeze(-2)) / torch.where(equal, 1, gap)
            ctx.save_for_backward(V, torch.where(equal, (alpha * w ** (alpha - 1)).unsqueeze(-1), quotient))
            return (V * y) @ V.mT

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
            V, F = ctx.saved_tensors
            return V @ (F * (V.mT @ grads[0] @ V)) @ V.mT, None

    near = Case(
        "gradients",
        4,
        1,
        function="powm, diagonal",
        dtype="float64",
        kind="alpha = -1, condition 1.000001",
        numbers=(-1.0, 1.000001),
    )
    assert rows_of(near)[0].verdict == "met"
    monkeypatch.setattr(sg, "powm", lambda M, alpha, **_: Plain.apply(M, alpha))
    assert rows_of(near)[0].verdict == "missed"


def test_others_of_ours_are_held_too() -> None:
    row = Row("gradients", "x", 4, 1, "error", 1e-16, target=1e-14, at_least=False, errors={"a": 1e-16, "b": 1e-3})
    make = partial(Row, "gradients", "x", 4, 1, "error", 1e-16, target=1e-14, at_least=False, errors=row.errors)
    assert row.verdict == "met"
    assert make(also={"b": 1e-2}).verdict == "met"
    assert make(also={"b": 1e-4}).verdict == "missed"
    assert Row.from_record(make(also={"b": 1e-4}).for_record()) == make(also={"b": 1e-4})
