"""What is known of the tensors that a decomposition gave, while somebody else's code goes on with them.

    Numbers   f(w), as a vector (*B, n), a row (*B, 1, n), a column (*B, n, 1) or a diagonal matrix (*B, n, n)
    Basis     V diag(f(w)), or with ``turned`` its adjoint diag(f(w)) V^H; without f as it came

`Parts` finds them by the tensor itself, without keeping it alive, and forgets what was modified in place meanwhile.
"""

import weakref
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .recorded import SPECTRUM, Call
from .whole import Side, Source, in_torchs_dtype, whole

Layout = Literal["vector", "row", "column", "diagonal"]


@dataclass(frozen=True, eq=False)
class Numbers:
    source: Source
    layout: Layout = "vector"
    call: Call = SPECTRUM

    def relaid(self, to: Tensor) -> "Numbers | None":
        """The same for a view of a vector: by its shape."""
        *batch, n = self.source.spectrum.shape
        shapes: dict[Layout, tuple[int, ...]] = {"vector": (*batch, n), "row": (*batch, 1, n), "column": (*batch, n, 1)}
        if self.layout == "diagonal":
            return None
        layout = next((name for name, shape in shapes.items() if shape == tuple(to.shape)), None)
        return None if layout is None else Numbers(self.source, layout, self.call)


@dataclass(frozen=True, eq=False)
class Basis:
    source: Source
    side: Side
    turned: bool = False
    conjugated: bool = False  # of complex ones alone
    call: Call | None = None

    def moved(self, turned: bool, conjugated: bool) -> "Basis":
        flips = conjugated and self.source.M.is_complex()
        return Basis(self.source, self.side, self.turned ^ turned, self.conjugated ^ flips, self.call)

    def scaled(self, by: Call) -> "Basis":
        call = by if self.call is None else Call(torch.mul, self.call, by)
        return Basis(self.source, self.side, self.turned, self.conjugated, call)

    def takes(self, numbers: Numbers) -> bool:
        """Whether a product by broadcasting scales the vectors of the basis."""
        if numbers.source is not self.source:
            return False
        along: Layout = "column" if self.turned else "row"
        return numbers.layout == along or (numbers.layout == "vector" and not self.turned and self.source.M.ndim == 2)


Part = Numbers | Basis


def product(a: Part, b: Part) -> "Basis | tuple[Basis, Basis] | None":
    """What the matrix product of two parts is: a scaled basis, a pair that makes a function, or nothing known."""
    if a.source is not b.source:
        return None
    if isinstance(a, Basis) and isinstance(b, Numbers):
        return a.scaled(b.call) if b.layout == "diagonal" and not a.turned else None
    if isinstance(a, Numbers) and isinstance(b, Basis):
        return b.scaled(a.call) if a.layout == "diagonal" and b.turned else None
    if isinstance(a, Basis) and isinstance(b, Basis) and not a.turned and b.turned:
        adjoint = not a.source.M.is_complex() or (b.conjugated and not a.conjugated)
        return (a, b) if adjoint else None
    return None


def completed(pair: tuple[Basis, Basis], *given: Tensor) -> Tensor | None:
    """The function of the matrix that a pair makes, in the dtype of what torch was given."""
    a, b = pair
    by = a.scaled(b.call) if b.call is not None else a
    Y = whole(a.source, a.side, b.side, by.call)
    return None if Y is None else in_torchs_dtype(Y, *given)


class _Reference(weakref.ref[Tensor]):
    __slots__ = ("key", "part", "version")
    key: int
    version: int
    part: Part


class Parts:
    """From tensors to what is known of them."""

    def __init__(self) -> None:
        self.known: dict[int, _Reference] = {}
        known = self.known  # by id; public, since looking into it is what each call of torch pays for
        self._forget = lambda reference: known.pop(reference.key, None)

    def clear(self) -> None:
        self.known.clear()

    def put(self, x: Tensor, part: Part | None) -> None:
        if part is None:
            self.known.pop(id(x), None)
            return
        reference = _Reference(x, self._forget)
        reference.key, reference.version, reference.part = id(x), x._version, part
        self.known[id(x)] = reference

    def get(self, x: Any) -> Part | None:
        reference = self.known.get(id(x))
        known = None if reference is None else reference()
        if reference is None or known is None or known is not x:
            return None
        return reference.part if known._version == reference.version else None
