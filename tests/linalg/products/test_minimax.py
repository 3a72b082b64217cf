"""The coefficients of the matrix iterations: best quintics by equioscillation, and intervals that hold."""

import math
from itertools import pairwise

import mpmath
import pytest

from spectralgrad.linalg.products.minimax import PLAIN, Quintic, best_quintic, sign_schedule

LOWER = [1e-8, 1e-4, 1e-2, 0.05, 0.3, 0.7, 0.9]


def value(coefficients: Quintic, x: mpmath.mpf) -> mpmath.mpf:
    a, b, c = coefficients
    return x * (a + b * x**2 + c * x**4)


def extrema(coefficients: Quintic) -> list[mpmath.mpf]:
    """Where p' = 0, to forty digits."""
    a, b, c = (mpmath.mpf(x) for x in coefficients)
    root = mpmath.sqrt(9 * b**2 - 20 * a * c)
    return [mpmath.sqrt((-3 * b - root) / (10 * c)), mpmath.sqrt((-3 * b + root) / (10 * c))]


def distance(coefficients: Quintic, lower: float) -> mpmath.mpf:
    """max |1 - p| on [lower, 1]."""
    inside = [x for x in extrema(coefficients) if lower <= x <= 1]
    return max(abs(1 - value(coefficients, x)) for x in [mpmath.mpf(lower), *inside, mpmath.mpf(1)])


@pytest.mark.parametrize("lower", LOWER)
def test_the_best_quintic_equioscillates(lower: float) -> None:
    """Four errors of one size and alternating sign: by Chebyshev's theorem no other quintic is as near to 1."""
    with mpmath.workdps(40):
        coefficients, E = best_quintic(lower)
        points = [mpmath.mpf(lower), *extrema(coefficients), mpmath.mpf(1)]
        assert points == sorted(points)
        for x, sign in zip(points, (1, -1, 1, -1), strict=True):
            assert abs(1 - value(coefficients, x) - sign * E) < 1e-13
        assert abs(distance(coefficients, lower) - E) < 1e-13


@pytest.mark.parametrize("lower", [1e-4, 0.05, 0.3])
def test_no_neighbour_is_better(lower: float) -> None:
    """The test above, without the theorem; a control that the distance can tell."""
    (a, b, c), E = best_quintic(lower)
    for i in range(3):
        for change in (-1e-4, 1e-4):
            other = [a, b, c]
            other[i] *= 1 + change
            assert distance((other[0], other[1], other[2]), lower) > E + 1e-6


def test_newton_schulz_is_the_limit() -> None:
    for got, want in zip(best_quintic(0.97)[0], PLAIN, strict=True):
        assert abs(got - want) < 0.06
    assert best_quintic(0.9)[1] < 1e-4 < abs(float(distance(PLAIN, 0.9)))  # which is good at 1 alone


def carried(lower: float, accuracy: float, x: mpmath.mpf) -> list[mpmath.mpf]:
    """x after each step of the schedule."""
    path = []
    for step in sign_schedule(lower, accuracy):
        x = value(step.coefficients, x)
        path.append(x)
    return path


@pytest.mark.parametrize("lower", [2e-16, 1e-7, 1e-3, 0.05, 0.5])
def test_what_starts_inside_stays_inside(lower: float) -> None:
    with mpmath.workdps(50):
        steps = sign_schedule(lower, 1e-15)
        for k in range(201):
            x = mpmath.mpf(lower) ** (mpmath.mpf(k) / 200)
            for step, y in zip(steps, carried(lower, 1e-15, x), strict=True):
                assert 0 < y < 2
                assert abs(1 - y) <= step.after * (1 + 1e-9)
        assert steps[-1].after <= 1e-15


@pytest.mark.parametrize(
    ("eigenvalue", "accuracy", "steps"), [(1e-7, 1e-15, 9), (1e-7, 1e-7, 8), (1e-11, 1e-6, 11), (1e-15, 1e-15, 16)]
)
def test_number_of_steps(eigenvalue: float, accuracy: float, steps: int) -> None:
    """The plain quintic has growth 15/8 and needs twice as many; the cubic four times."""
    assert len(sign_schedule(math.sqrt(eigenvalue), accuracy)) == steps
    x, plain = mpmath.sqrt(eigenvalue), 0
    while abs(1 - x) > accuracy:
        x, plain = value(PLAIN, x), plain + 1
    assert plain > 1.5 * steps


def test_what_was_at_1_is_never_thrown_back() -> None:
    """The cushion: without it the first steps of a long schedule send part of [0.1, 1] to the size of lower."""
    lower = 1e-8
    for k in range(100):
        assert min(carried(lower, 1e-15, mpmath.mpf(0.1 + 0.009 * k))) > 0.1
    coefficients, _ = best_quintic(lower)  # the control
    assert value(coefficients, extrema(coefficients)[1]) < 1e-6


@pytest.mark.parametrize("x", [1e-9, 1e-30, 0.0])
def test_below_the_interval_nothing_overshoots(x: float) -> None:
    """A singular direction grows by at most 7 a step, and stays below 2."""
    path = [x, *carried(1e-7, 1e-15, mpmath.mpf(x))]
    for before, after in pairwise(path):
        assert before <= after <= 7 * before
        assert after < 2
