"""A function that a user gives, with divided differences derived from it.

Only f itself is known, so f' and f'' come from automatic differentiation. A divided difference can be had in two ways,
both in float64 (on a device without it in float32),

    far     f[a, b] = (f(a) - f(b)) / (a - b)           f[a, b, c] = (f[b, c] - f[a, b]) / (c - a),  a <= b <= c
    near    f[a, b] = int_0^1 f'(b + t (a - b)) dt      f[a, b, c] = the mean of f'' over a triangle (quadrature.py).

Far loses digits as the points meet; near loses them where f changes its character between the points. How close that is
depends on f, which no fixed distance knows. So each difference is taken in the way with the smaller error: of far by the
rounding of f, of near by a second rule of half the order, relative to what the derivative varies: a constant in it would
hide the error, as x hides that of exp(-8 x) / 20 in their sum. That rule uses the end points, so that it sees a kink there.
Where f bends between all points of both rules, and is straight at them, they know no error; but far differs by more than its
own.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spectralgrad.context import without_hooks
from spectralgrad.errors import OptionError

from .precision import in_widest
from .quadrature import gauss, ordered, quotients
from .scalars import Scalar

_ROUNDING = 8  # times eps, of a first difference, relative: a few operations in f and one subtraction
_SMOOTH = 1e6  # times the error of far: the two ways never differ by more unless f bends or jumps between the points

_UNLIKE = 1 / 64  # of the largest |f|: rounding changes a number by less where others stand beside it, in every dtype
_SHARED = (
    "What the numbers share, as their sum, compute before, and let f close over it: s = eigvalsh(M).sum(); "
    "spectral_map(M, lambda w: w / s). For a factor of each eigenvector use `eigh`."
)

_FEW = 2**18  # numbers whose derivatives are taken at once: 2 MiB
Places = tuple[tuple[float, float, float], ...]

# (u, v, weight) on the triangle a + u (b - a) + u v (c - b), 0 <= u, v <= 1. By Gauss twice: exact up to degree 6.
_TRIANGLE = tuple((u, v, p * q * u) for u, p in gauss() for v, q in gauss())
# Corners, middles of the sides, centre: exact up to degree 3.
_CORNERS = (
    *((0.0, 0.0, 1 / 40), (1.0, 0.0, 1 / 40), (1.0, 1.0, 1 / 40)),
    *((0.5, 0.0, 1 / 15), (0.5, 1.0, 1 / 15), (1.0, 0.5, 1 / 15)),
    (2 / 3, 0.5, 9 / 40),
)


@dataclass(frozen=True)
class Elementwise(Scalar):
    """A user's function with the differences derived from it."""

    at_once: ClassVar[bool] = True  # whether f takes numbers with a dimension in front
    function: Callable[[Tensor], Tensor] = torch.nn.Identity()  # noqa: RUF009  (frozen, never called as a default)

    def f(self, c: Tensor) -> Tensor:
        return self.function(c)

    def slope(self, x: Tensor) -> Tensor:
        """f'(x)."""
        return _derivative(self.function, x)

    def curvature(self, x: Tensor) -> Tensor:
        return _derivative(self.slope, x)

    def difference(self, a: Tensor, b: Tensor) -> Tensor:
        return self.wide_difference(a, b).to(a.dtype)

    def wide_difference(self, a: Tensor, b: Tensor) -> Tensor:
        """f[a, b] in the widest dtype, in which it may be far larger than f."""
        return self._difference_and_error(a, b)[0]

    def _difference_and_error(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """f[a, b] in the widest dtype, and how far off it may be."""
        a, b = in_widest(a), in_widest(b)
        fa, fb = self.function(a), self.function(b)
        gap = a - b
        tie = gap == 0
        far = (fa - fb) / torch.where(tie, 1, gap)
        slopes = list(_at_each(self.slope, [b + t * gap for t, _ in gauss()], self.at_once))
        near, variation = _integral([weight for _, weight in gauss()], slopes)
        with torch.no_grad():
            at_a, between, at_b = _at_each(self.slope, [a.expand_as(gap), b + gap / 2, b.expand_as(gap)], self.at_once)
            cubic, _ = _integral([weight * _third(t) for t, weight in gauss()], slopes)
            coarse = ((at_a + 4 * between + at_b) / 6, near - cubic)
            rounding = torch.finfo(gap.dtype).eps * (fa.abs() + fb.abs()) / gap.abs()
            better, error = _choice(near, far, coarse, variation, rounding, tie)
        return _finite(torch.where(better, near, far)), error

    def second_differences(self, x: Tensor, i: Tensor, k: Tensor, j: Tensor) -> Tensor:
        """f[x_i, x_k, x_j] in the widest dtype for ascending x (*B, n), any indices."""
        i, k, j = torch.broadcast_tensors(i, k, j)
        low, middle, high = ordered(i, k, j)
        x = in_widest(x)
        F, error = self._difference_and_error(x.unsqueeze(-1), x.unsqueeze(-2))
        a, b_a, c_b = x[..., low], x[..., middle] - x[..., low], x[..., high] - x[..., middle]
        spread = b_a + c_b
        below, above = F[..., low, middle], F[..., middle, high]
        tie = spread == 0
        far = (above - below) / torch.where(tie, 1, spread)

        near, variation = _integral([weight for _, _, weight in _TRIANGLE], self._curvatures(a, b_a, c_b, _TRIANGLE))
        at_corners = list(self._curvatures(a, b_a, c_b, _CORNERS))
        coarse = (
            _integral([weight for _, _, weight in _CORNERS], at_corners)[0],
            (at_corners[3] + at_corners[4] + at_corners[5]) / 6,
        )
        error = error + _ROUNDING * torch.finfo(x.dtype).eps * F.abs()
        rounding = (error[..., low, middle] + error[..., middle, high]) / spread
        better, _ = _choice(near, far, coarse, variation, rounding, tie)
        return _finite(torch.where(better, near, far))

    def _curvatures(self, a: Tensor, b_a: Tensor, c_b: Tensor, places: Places) -> Iterable[Tensor]:
        """f'' at places of the triangle with these corners."""
        points = (a + u * b_a + u * v * c_b for u, v, _ in places)  # one after the other: each has n^3 numbers
        return _at_each(self.curvature, list(points) if len(places) * b_a.numel() <= _FEW else points, self.at_once)

    def contract(self, w: Tensor, X: Tensor, Y: Tensor) -> Tensor:
        index = torch.arange(w.shape[-1], device=w.device)
        i, k, j = torch.broadcast_tensors(index[:, None, None], index[:, None], index)
        c, clamped = self.clamp(w)
        second = self.second_differences(c, i, k, j)
        if clamped is not None:
            touched = clamped[..., i] | clamped[..., k] | clamped[..., j]
            second = torch.where(touched, in_widest(quotients(self.loewner(w), w, *ordered(i, k, j))), second)
        largest = torch.finfo(w.dtype).max
        P = (second.clamp(-largest, largest).to(w.dtype) * X.unsqueeze(-1) * Y.unsqueeze(-3)).sum(-2)
        return P + P.mH  # as in Scalar


def _derivative(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """f'(x): in reverse mode, because forward mode cannot be nested and a user may be in it."""
    with without_hooks():
        return torch.func.grad(lambda t: f(t).sum())(x)  # type: ignore[no-any-return]


def _at_each(derivative: Callable[[Tensor], Tensor], points: Iterable[Tensor], at_once: bool) -> Iterable[Tensor]:
    """A derivative at points of one shape; at a list of few at once if it may be, since each call takes 0.1 ms."""
    if at_once and isinstance(points, list) and len(points) * points[0].numel() <= _FEW:
        return derivative(torch.stack(points)).unbind()
    return map(derivative, points)


def _integral(weights: Iterable[float], values: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """The sum of weighted values, and how much they vary: by it a rule may err, whatever constant is in them."""
    first: Tensor | None = None
    for weight, x in zip(weights, values, strict=True):
        if first is None:
            first, total, variation = x, weight * x, torch.zeros_like(x)
        else:
            total, variation = total + weight * x, variation + weight * (x - first).detach().abs()
    return total, variation


def _third(t: float) -> float:
    """Legendre's polynomial of degree 3 on [0, 1], times 7: its integral with a function is the function's part in it."""
    x = 2 * t - 1
    return 7 * x * (5 * x * x - 3) / 2


def _choice(
    near: Tensor, far: Tensor, coarse: tuple[Tensor, Tensor], variation: Tensor, rounding: Tensor, tie: Tensor
) -> tuple[Tensor, Tensor]:
    """Whether near is better than far, whose error is ``rounding``; and the error of the better one.

    The rule of near has twice the order of the first coarse one, so about the square of its error, both relative to what
    the values vary. That error may pass through zero by chance: the second rule, still coarser, sees it. And the two ways
    are as near as they are unless f changes where no point of the rules lies, as relu does.
    """
    varying = torch.where(variation > 0, variation, 1)
    by, by_coarser = ((near - rule).abs() for rule in coarse)
    by = torch.maximum(by, by_coarser * torch.where(variation > 0, by_coarser / varying, 1))
    error = by * torch.where(variation > 0, by / varying, 1)
    agree = (near - far).abs() <= _SMOOTH * rounding
    better = torch.isfinite(near) & (tie | (agree & (error <= rounding)))
    return better, torch.where(tie, 0, torch.where(better, error, rounding))


def _finite(x: Tensor) -> Tensor:
    """x, and 0 where it is infinite: f' of |x|^(1/2) sign(x) is, at zero, and pairs of zeros are to contribute nothing."""
    return torch.where(torch.isfinite(x), x, 0)


def require_elementwise(who: str, function: Elementwise, spectrum: Tensor | None, y: Tensor | None) -> None:
    """Raise where y = f(spectrum) of all m numbers is not about that of a few of them.

    Two from inside, the later one first: they have another sum, another largest one and other places. The value could be
    used; but the differences are those of a function of one number, and a gradient by them would be wrong. Roughly, since a
    network inside of f, in half precision perhaps, rounds two numbers in another way than many; and what f cancels may look
    so too, since torch rounds by place: float64 decides.
    """
    if spectrum is None or y is None or spectrum.numel() < 2:
        return
    m = spectrum.numel()
    few = slice(m // 3, 2 * (m // 3) + 1, m // 3) if m > 3 else slice((m - 1) // 2, (m + 1) // 2)
    x = function.clamp(spectrum)[0]
    if not _differ(*_beside_and_alone(who, function, x, y, few), y):
        return
    x = in_widest(x)
    y = function.f(x)
    beside, alone = _beside_and_alone(who, function, x, y, few)
    if _differ(beside, alone, y):
        raise OptionError(
            f"`{who}`: f must act on each number alone, but gives {beside} for {_numbers(x.flatten()[few].flip(0))} among "
            f"{m} numbers, and {alone} for these alone. {_SHARED}"
        )


def _beside_and_alone(who: str, function: Elementwise, x: Tensor, y: Tensor, few: slice) -> tuple[list[float], list[float]]:
    """What f gives for a few of x, backwards: among all, where it gave y, and without the others."""
    try:
        alone = function.f(x.flatten()[few].flip(0)).flatten()  # of a batch f may close over a number with dimensions
    except (RuntimeError, IndexError) as error:  # shapes that do not go together
        raise OptionError(
            f"`{who}`: f must act on each number alone, but fails for a few of {x.numel()}. {_SHARED}"
        ) from error
    return _numbers(y.flatten()[few].flip(0)), _numbers(alone)


def _differ(a: list[float], b: list[float], y: Tensor) -> bool:
    close = _UNLIKE * float(y.detach().abs().max())
    return len(a) != len(b) or not all(abs(p - q) <= close for p, q in zip(a, b, strict=True))


def _numbers(x: Tensor) -> list[float]:
    """The few values of ``x``, one by one: in a transform of torch.func torch 2.9 knows no `tolist`."""
    return [float(value) for value in x.detach().unbind()]
