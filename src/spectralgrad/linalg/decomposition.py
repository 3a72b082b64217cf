"""A decomposition and its derivatives, at any scale: one autograd node for `eigh`, `svd` and `generalized_eigh`.

A decomposition turns matrices x_j into factors o_i. It gives two linear maps as plain torch operations on the factors,

    pushforward   directions dx_j -> do_i          pullback   cotangents g_i of the factors -> those of x_j,

and says how both scale: x_j = 2^(q_j) x'_j has factors o_i = 2^(p_i) o'_i, where o' has scale 1. Gradients are computed
there and scaled back last. For t with g_i = 2^(t - p_i) g'_i of scale 1,

    pullback(o, g)_j = 2^(t - q_j) pullback(o', g')_j,

and the derivative of this in a direction c_j = 2^(s + q_j) c'_j, needed for double backward, is

    by o_i: 2^(s + t - p_i) times that of <c', pullback(o', g')> by o'_i        by g_i: 2^(s + p_i) times that by g'_i.

So nothing overflows before the end, and there it becomes the largest number with its sign. Where the values are at hand
and of an ordinary size none of this is needed: then the pullback is used as it stands, and autograd differentiates it as
often as asked.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import in_batched_backward, may_read

from .node import Some, Step, jvp_by_vjps, run, run_again, vjp
from .scaling import exponent, is_ordinary, shifted


class Scales(NamedTuple):
    """Exponents (*B,) of each factor and each matrix; None is 0."""

    factors: tuple[Tensor | None, ...]
    matrices: tuple[Tensor | None, ...]


@dataclass(frozen=True, kw_only=True)
class Decomposition(Step):
    """Matrices -> factors, with the two derivatives at scale 1.

    Args:
        tolerance: as in `solvers.decompose`: None forbids looking at values.
    """

    tolerance: float | None = None

    kept_inputs, kept_outputs = slice(0), slice(None)

    @abstractmethod
    def scales(self, factors: Sequence[Tensor]) -> Scales:
        """How far the factors and their matrices are from scale 1."""

    @abstractmethod
    def sizes(self, factors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The factors whose size says how far that is."""

    @abstractmethod
    def pullback(self, factors: Sequence[Tensor], cotangents: Some) -> tuple[Tensor, ...]:
        """Cotangents of the matrices; at least one of ``cotangents`` is not None."""

    def pullback_in_kernel(self, factors: Sequence[Tensor], cotangents: Some) -> tuple[Tensor, ...] | None:
        """`pullback` at any scale by a kernel; None leaves it to plain torch."""
        return None

    @abstractmethod
    def pushforward(self, factors: Sequence[Tensor], directions: Some) -> tuple[Tensor, ...]:
        """Derivatives of the factors; at least one of ``directions`` is not None."""

    def pull(self, kept: Sequence[Tensor], grads: Some, needed: Sequence[bool]) -> Some:
        if (pulled := self.pullback_in_kernel(kept, grads)) is not None:
            return pulled
        if _is_ordinary(self, kept, grads):
            return self.pullback(kept, grads)
        return run_again(_Pull(self, len(kept)), *kept, *grads)  # type: ignore[no-any-return]

    def push(self, kept: Sequence[Tensor], tangents: Some) -> tuple[Tensor, ...]:
        return run(_Push(self, len(kept)), *kept, *tangents)  # type: ignore[no-any-return]

    def unchecked(self) -> Step:
        return replace(self, tolerance=None)


# At any scale.


def _sum(*exponents: Tensor | None) -> Tensor | None:
    given = [k for k in exponents if k is not None]
    return sum(given[1:], given[0]) if given else None


def _minus(k: Tensor | None) -> Tensor | None:
    return None if k is None else -k


def _at(x: Tensor | None, *exponents: Tensor | None) -> Tensor | None:
    """x times 2 to the sum of the exponents."""
    k = _sum(*exponents)
    return x if x is None or k is None else shifted(x, k)


def _common(xs: Some, exponents: Sequence[Tensor | None], dims: Sequence[int]) -> Tensor:
    """The exponent (*B,) of the largest of all x_i 2^(k_i)."""
    each = [_sum(exponent(x, d), k) for x, k, d in zip(xs, exponents, dims, strict=True) if x is not None]
    first, *others = [k for k in each if k is not None]
    for k in others:
        first = torch.maximum(first, k)
    return first


def _dims(factors: Sequence[Tensor], xs: Sequence[Tensor | None]) -> list[int]:
    """How many dimensions of each x are a matrix's own; the last factor is a matrix."""
    batch = factors[-1].ndim - 2
    return [0 if x is None else x.ndim - batch for x in xs]


def _scaled(decomposition: Decomposition, factors: Sequence[Tensor]) -> tuple[Scales, list[Tensor]]:
    scales = decomposition.scales(factors)
    unit = [_at(o, _minus(p)) for o, p in zip(factors, scales.factors, strict=True)]
    return scales, unit  # type: ignore[return-value]


def _both_scaled(
    decomposition: Decomposition, factors: Sequence[Tensor], cotangents: Some
) -> tuple[Scales, list[Tensor], Tensor, list[Tensor | None]]:
    """The scales, the factors at scale 1, t, and the cotangents at scale 1."""
    scales, unit = _scaled(decomposition, factors)
    t = _common(cotangents, scales.factors, _dims(factors, cotangents))
    return scales, unit, t, [_at(x, p, -t) for x, p in zip(cotangents, scales.factors, strict=True)]


def _pull_scaled(decomposition: Decomposition, factors: Sequence[Tensor], cotangents: Some) -> tuple[Tensor, ...]:
    scales, unit, t, g = _both_scaled(decomposition, factors, cotangents)
    pulled = decomposition.pullback(unit, g)
    return tuple(_at(x, t, _minus(q)) for x, q in zip(pulled, scales.matrices, strict=True))  # type: ignore[misc]


def _push_scaled(decomposition: Decomposition, factors: Sequence[Tensor], directions: Some) -> tuple[Tensor, ...]:
    scales, unit = _scaled(decomposition, factors)
    minus = [_minus(q) for q in scales.matrices]
    s = _common(directions, minus, _dims(factors, directions))
    unit_directions = [_at(x, q, -s) for x, q in zip(directions, minus, strict=True)]
    pushed = decomposition.pushforward(unit, unit_directions)
    return tuple(_at(x, s, p) for x, p in zip(pushed, scales.factors, strict=True))  # type: ignore[misc]


def _is_ordinary(decomposition: Decomposition, factors: Sequence[Tensor], cotangents: Some) -> bool:
    """Whether values can be read and neither they nor first or second derivatives come near the ends of the range."""
    given = [x for x in cotangents if x is not None]
    if not all(may_read(x) for x in (*factors, *given)):
        return any(in_batched_backward(x) for x in given)  # it could not be done otherwise
    batch = factors[-1].ndim - 2
    return all(is_ordinary(o, o.ndim - batch) for o in decomposition.sizes(factors)) and all(
        is_ordinary(g, g.ndim) for g in given
    )


@dataclass(frozen=True)
class _Pull(Step):
    """`_pull_scaled`, whose own derivative is taken at scale 1 too, in both modes. Inputs: factors, ``count`` of them, then
    cotangents."""

    decomposition: Decomposition
    count: int

    def value(self, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        return _pull_scaled(self.decomposition, tensors[: self.count], tensors[self.count :])  # type: ignore[arg-type]

    def pull(self, kept: Sequence[Tensor], grads: Some, needed: Sequence[bool]) -> Some:
        factors, cotangents = kept[: self.count], kept[self.count :]
        scales, unit, t, g = _both_scaled(self.decomposition, factors, cotangents)
        minus = [_minus(q) for q in scales.matrices]
        s = _common(grads, minus, _dims(factors, grads))
        directions = [_at(x, q, -s) for x, q in zip(grads, minus, strict=True)]
        by_factor, by_cotangent = _differentiate(self.decomposition, unit, g, directions)
        return (
            *(_at(x, s, t, _minus(p)) for x, p in zip(by_factor, scales.factors, strict=True)),
            *(_at(x, s, p) for x, p in zip(by_cotangent, scales.factors, strict=True)),
        )

    def push(self, kept: Sequence[Tensor], tangents: Some) -> tuple[Tensor, ...]:
        """With tangents 2^(r + p_i) o'_i and 2^(r + t - p_i) g'_i of scale 1: 2^(r + t - q_j) times that of o' and g'."""
        factors, cotangents = kept[: self.count], kept[self.count :]
        scales, unit, t, g = _both_scaled(self.decomposition, factors, cotangents)
        down = [*(_minus(p) for p in scales.factors), *(_sum(p, -t) for p in scales.factors)]
        r = _common(tangents, down, _dims(factors, tangents))
        along = [_at(x, k, -r) for x, k in zip(tangents, down, strict=True)]
        pushed = _along(self.decomposition, [*unit, *g], along, self.count)
        return tuple(_at(x, r, t, _minus(q)) for x, q in zip(pushed, scales.matrices, strict=True))  # type: ignore[misc]


def _at_places(places: Sequence[int], xs: Sequence[Tensor], count: int) -> list[Tensor | None]:
    """``count`` entries, those at ``places`` from xs, the others None."""
    every: list[Tensor | None] = [None] * count
    for i, x in zip(places, xs, strict=True):
        every[i] = x
    return every


def _along(decomposition: Decomposition, tensors: Some, tangents: Some, count: int) -> tuple[Tensor, ...]:
    """The derivative of the pullback by all its tensors. By two reverse passes, since forward mode cannot be nested:
    u -> vjp(u) is linear, and its adjoint is the jvp."""
    given = [i for i, x in enumerate(tensors) if x is not None]

    def pulled(*present: Tensor) -> tuple[Tensor, ...]:
        every = _at_places(given, present, len(tensors))
        return decomposition.pullback(every[:count], every[count:])  # type: ignore[arg-type]

    return jvp_by_vjps(pulled, [tensors[i] for i in given], [tangents[i] for i in given])


def _differentiate(
    decomposition: Decomposition, factors: list[Tensor], cotangents: list[Tensor | None], directions: Some
) -> tuple[list[Tensor], list[Tensor | None]]:
    """The derivatives of <directions, pullback(factors, cotangents)> by the factors and by the cotangents given."""
    given = [i for i, g in enumerate(cotangents) if g is not None]
    wanted = [j for j, c in enumerate(directions) if c is not None]

    def pulled(*tensors: Tensor) -> tuple[Tensor, ...]:
        g = _at_places(given, tensors[len(factors) :], len(cotangents))
        out = decomposition.pullback(tensors[: len(factors)], g)
        return tuple(out[j] for j in wanted)

    at = (*factors, *(cotangents[i] for i in given))
    by_all = vjp(pulled, at, tuple(directions[j] for j in wanted))
    return list(by_all[: len(factors)]), _at_places(given, by_all[len(factors) :], len(cotangents))


@dataclass(frozen=True)
class _Push(Step):
    """`_push_scaled`. A node of its own because inside jvp torch drops the tangents of plain operations: without it the
    jvp of a jvp would be 0."""

    decomposition: Decomposition
    count: int

    def value(self, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        return _push_scaled(self.decomposition, tensors[: self.count], tensors[self.count :])  # type: ignore[arg-type]

    def _of_given(self, tensors: Some) -> tuple[list[int], Callable[..., tuple[Tensor, ...]]]:
        """Which tensors are there, and `value` as a function of those."""
        given = [i for i, x in enumerate(tensors) if x is not None]
        return given, lambda *present: self.value(*_at_places(given, present, len(tensors)))

    def pull(self, kept: Some, grads: Some, needed: Sequence[bool]) -> Some:
        given, value = self._of_given(kept)
        present = [kept[i] for i in given]
        zeros = (torch.zeros_like(y) for y in self.value(*kept)) if None in grads else grads
        cotangents = tuple(z if g is None else g for g, z in zip(grads, zeros, strict=True))
        return _at_places(given, vjp(value, present, cotangents), len(kept))

    def push(self, kept: Some, tangents: Some) -> tuple[Tensor, ...]:
        given, value = self._of_given(kept)
        return jvp_by_vjps(value, [kept[i] for i in given], [tangents[i] for i in given])
