"""What scaling.py does as a step of a graph: in every derivative too, what overflows becomes the largest number."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .node import Some, Step, run
from .scaling import bounded, largest_number, on_parts, shifted

REAL_DTYPE = {torch.complex64: torch.float32, torch.complex128: torch.float64}  # Dynamo does not know dtype.to_real()
_SHARE = {torch.float32: 1 / 8, torch.float64: 1}  # of float64's exponents: as much of its bits is held
_TWICE = 200  # bits between the slopes of second derivatives that are held and the largest number


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in another precision; here and in every derivative, what overflows becomes the largest number."""
    return x if x.dtype == dtype else run(_Cast(x.dtype, dtype), x)


def moved(x: Tensor, k: Tensor) -> Tensor:
    """`shifted`; in every derivative too, what overflows becomes the largest number."""
    return run(_MOVE, x, k)  # type: ignore[no-any-return]


def held(x: Tensor, bits: int = 128) -> Tensor:
    """x, with a gradient cut to 2^-bits times the largest number, so that the next steps cannot overflow. NaN stays.

    Second derivatives multiply two such slopes: theirs are cut to 2^-200 times the largest number. In float32 an eighth of
    the bits, as it has an eighth of the exponents.
    """
    return run(_Hold(bits), x)  # type: ignore[no-any-return]


class _Move(Step):
    """x 2^k."""

    def value(self, x: Tensor, k: Tensor) -> Tensor:
        return shifted(x, k)

    kept_inputs = slice(1, None)

    def pull(self, kept: Sequence[Tensor], grads: Sequence[Tensor], needed: Sequence[bool]) -> Some:
        return moved(grads[0], kept[0]), None

    def push(self, kept: Sequence[Tensor], tangents: Sequence[Tensor]) -> Tensor:
        return moved(tangents[0], kept[0])


@dataclass(frozen=True)
class _Hold(Step):
    """x, with a gradient that is cut."""

    bits: int

    def value(self, x: Tensor) -> Tensor:
        return x.clone()

    kept_inputs = slice(0)

    def pull(self, kept: Some, grads: Sequence[Tensor], needed: Sequence[bool]) -> Some:
        (g,) = grads
        return (held(bounded(g, largest_number(g) / 2 ** (self.bits * _SHARE[g.real.dtype])), _TWICE),)

    def push(self, kept: Some, tangents: Sequence[Tensor]) -> Tensor:
        return held(tangents[0], self.bits)


@dataclass(frozen=True)
class _Cast(Step):
    """x in another precision."""

    given: torch.dtype
    dtype: torch.dtype

    def value(self, x: Tensor) -> Tensor:
        if x.is_complex():
            return on_parts(_Cast(REAL_DTYPE[self.given], REAL_DTYPE[self.dtype]).value, x)
        largest = torch.finfo(self.dtype).max
        if largest >= largest_number(x):
            return x.to(self.dtype)
        return (x.clamp(-largest, largest) + (x - x)).to(self.dtype)  # NaN and Inf become NaN, as in `shifted`

    kept_inputs = slice(0)

    def pull(self, kept: Some, grads: Sequence[Tensor], needed: Sequence[bool]) -> Some:
        return (cast(grads[0], self.given),)

    def push(self, kept: Some, tangents: Sequence[Tensor]) -> Tensor:
        return cast(tangents[0], self.dtype)


_MOVE = _Move()
