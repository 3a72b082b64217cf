"""Odd polynomials that carry [lower, 1] to 1 in as few steps as can be: the coefficients of the matrix iterations.

A step is x <- x (a + b x^2 + c x^4). Among all of these the best on [l, u] is the one with the smallest E = max |1 - p|, and
it is the only one whose error reaches E with alternating signs at four points (Chebyshev): there are three coefficients.
For an odd quintic they are l, the two interior extrema q < r, and u:

    p(l) = 1 - E,   p(q) = 1 + E,   p(r) = 1 - E,   p(u) = 1 + E,   p'(q) = p'(r) = 0.

The first four equations are linear in (a, b, c, E), the last is a quadratic in x^2. Remez' exchange takes them in turn. The
image of [l, u] is [1 - E, 1 + E], on which the next step is the best again; the composition of best steps is the best
composition (greedy choice loses nothing, for the smaller interval is easier whatever follows).

A tiny l comes out at p(l) = a l, with a/(1 + E) -> 4.26: the ratio l/u grows by that, where Newton-Schulz has 1.5 (cubic)
and 1.875 (quintic).

Two departures from the best, for the sake of rounding. With l -> 0 also E -> 1, so p(r) -> 0: directions that were of size
1 would be thrown back to the size of l and lose that many digits. So no step is made for l/u below `_CUSHION`; this costs
5 % of the growth and nothing comes back below 0.2 u. And an interval is taken wider than it is by `_MARGIN`. The last steps,
on intervals so short that the equations degenerate, are those of Newton-Schulz, x (15 - 10 x^2 + 3 x^4)/8, with error
(5/2) e^3: they need no interval. See docs/newton.md.
"""

import math
from functools import lru_cache
from typing import NamedTuple

Quintic = tuple[float, float, float]

PLAIN: Quintic = (15 / 8, -10 / 8, 3 / 8)
_CUSHION = 0.05  # the least l/u that a step is made for
_MARGIN = 1e-3  # of the distance from 1: intervals are widened by it, against rounding
_SHORT = 0.02  # half an interval below which the plain step is as good: it reaches 2e-5, then 2e-14
_EXCHANGES = 50  # more than enough: from l = 1e-8 to 0.98 it settles in five
_SETTLED = 1e-13


class SignStep(NamedTuple):
    """A quintic, and how far from 1 it may find and leave what started inside the interval."""

    coefficients: Quintic
    before: float
    after: float


def best_quintic(lower: float) -> tuple[Quintic, float]:
    """The odd quintic nearest to 1 on [lower, 1], and its distance E.

    >>> (a, b, c), E = best_quintic(0.1)
    >>> [round(1 - (a * x + b * x**3 + c * x**5), 6) for x in (0.1, 1.0)], round(E, 6)
    ([0.453417, -0.453417], 0.453417)
    """
    q, r = lower + 0.25 * (1 - lower), lower + 0.75 * (1 - lower)
    for _ in range(_EXCHANGES):
        a, b, c, E = _solve([[x, x**3, x**5, sign] for x, sign in ((lower, 1), (q, -1), (r, 1), (1.0, -1))], [1.0] * 4)
        root = math.sqrt(9 * b * b - 20 * a * c)  # p'(x) = a + 3 b x^2 + 5 c x^4 = 0, with b < 0 < c
        moved = (math.sqrt((-3 * b - root) / (10 * c)), math.sqrt((-3 * b + root) / (10 * c)))
        settled = abs(moved[0] - q) + abs(moved[1] - r) < _SETTLED
        q, r = moved
        if settled:
            break
    return (a, b, c), E


@lru_cache(maxsize=256)
def sign_schedule(lower: float, accuracy: float) -> tuple[SignStep, ...]:
    """The steps that carry all of [lower, 1] to within ``accuracy`` of 1.

    >>> [f"{step.after:.0e}" for step in sign_schedule(0.05, 1e-15)]
    ['7e-01', '2e-01', '7e-03', '7e-07', '1e-18']
    """
    low, high = lower, 1.0
    away = 1 - lower  # how far from 1 the interval reaches
    steps: list[SignStep] = []
    while away > accuracy:
        before = away
        if steps and before < _SHORT:
            # 1 - e becomes 1 - (5/2) e^3 + (15/8) e^4 - (3/8) e^5, and 1 + e lies further off by twice the second term
            coefficients, away = PLAIN, 2.5 * before**3 + 2 * before**4
        else:
            low, high = low - _MARGIN * min(low, before), high + _MARGIN * before
            (a, b, c), E = best_quintic(max(low / high, _CUSHION))
            coefficients = (a / high, b / high**3, c / high**5)
            low, high = min(1 - E, _value(coefficients, low)), 1 + E
            away = max(1 - low, E)
        steps.append(SignStep(coefficients, before, away))
    return tuple(steps)


def _value(coefficients: Quintic, x: float) -> float:
    a, b, c = coefficients
    return x * (a + x * x * (b + x * x * c))


def _solve(rows: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination with pivots, for four unknowns."""
    n = len(right)
    table = [[*row, value] for row, value in zip(rows, right, strict=True)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(table[k][i]))
        table[i], table[pivot] = table[pivot], table[i]
        for k in range(i + 1, n):
            factor = table[k][i] / table[i][i]
            table[k] = [x - factor * y for x, y in zip(table[k], table[i], strict=True)]
    solution = [0.0] * n
    for i in reversed(range(n)):
        known = sum(table[i][j] * solution[j] for j in range(i + 1, n))
        solution[i] = (table[i][n] - known) / table[i][i]
    return solution
