"""Scale at the door: a map is computed at scale 1 and scaled back last, once, in every derivative.

What a scale does to a root, a distance or a mean is known. So with exponents p_i and q_o, constants and one for each
matrix of a batch,

    y_o = 2^(q_o) f(2^(-p_1) x_1, 2^(-p_2) x_2, ...)_o,

where f sees numbers near 1. With 2^T the size of the cotangents 2^(q_o) g_o the gradient is a map of the same kind,

    gx_i = 2^(T - p_i) pull(..., 2^(-p_i) x_i, ..., 2^(q_o - T) g_o, ...)_i,     pull(x, g) = sum_o g_o df_o / dx,

and so are the tangents: one node serves every order. Where a scale does more, as to a logarithm, f is told p
(`Scales.rest`). Ordinary matrices keep their exponent 0, and with it each bit, whatever else is in the batch. Where all are
ordinary f is called as it stands, and one step looks at the cotangent that comes back.

torch.compile cannot differentiate inside a node: there powers of two are steps before and after f. Values are right at every
scale, and so are gradients unless 2^q g or a number on its way through f leaves the range; then they are cut.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import (
    forcing,
    in_batched_backward,
    in_torch_func,
    is_constant,
    may_read,
    readable,
    tracing,
)

from .moves import held, moved
from .node import Some, Step, added, jvp_by_vjps, run, vjp
from .scaling import exponent, is_ordinary, largest_number, shifted

Map = Callable[..., tuple[Tensor, ...]]

_ORDINARY = {torch.float32: 20, torch.float64: 160}  # as in scaling.py: |log2| of scales that leave room for two derivatives
_ROOM = 4  # bits between gradients that are shortened and the largest number, so that sums of them fit


class Scales(NamedTuple):
    """Constants for each matrix (*B,): exponents of the inputs, divided by 2^down (None: by 1), and of the outputs,
    multiplied by 2^up (None: of an output without derivative); and what f takes after its inputs."""

    down: tuple[Tensor | None, ...]
    up: tuple[Tensor | None, ...]
    rest: tuple[Tensor, ...] = ()


def homogeneous(
    f: Map,
    inputs: Sequence[tuple[Tensor, int]],
    scales: Callable[..., Scales],
    *,
    others: Sequence[Tensor] = (),
    out: int = 0,
    bits: int | None = None,
    known: bool = False,
    watched: bool = True,
) -> tuple[Tensor, ...]:
    """f(*inputs, *others), computed at scale 1 where that is needed.

    Args:
        f: differentiable, of any leading shape, closing over no tensor.
        inputs: x_i, each with the number of its dimensions beside those of the batch. Batches broadcast.
        scales: from the exponents of the inputs, 0 for ordinary ones, to those of the formula above.
        others: (*B,), without a scale.
        out: the number of dimensions of each output beside those of the batch.
        bits: |log2| of ordinary scales, where they are fewer than usual.
        known: whether all inputs are known to be ordinary, as float32 is in float64.
        watched: whether cotangents of any scale must come through where all inputs are ordinary.
    """
    tensors = (*(x for x, _ in inputs), *others)
    if known:
        return f(*tensors)
    ranks, traced = (*(dims for _, dims in inputs), *(0,) * len(others)), tracing()
    if not traced and all(_is_seen_ordinary(x, dims, bits) for x, dims in inputs):
        y = f(*tensors)
        return y if not watched or all(map(is_constant, tensors)) else run(_Watch(f, ranks, len(y), out), *y, *tensors)
    tensors = _broadcast(tensors, ranks)
    found = scales(*(_far(x, dims, bits) for x, dims in zip(tensors, ranks, strict=False) if dims))
    down = (*found.down, *(None,) * (len(others) + len(found.rest)))
    if traced:
        y = f(*(x if k is None else moved(x, -k) for x, k in zip(tensors + found.rest, down, strict=True)))
        return tuple(z if k is None else moved(held(z), k) for z, k in zip(y, found.up, strict=True))
    return run(_Scaled(f, len(down)), *tensors, *found.rest, *down, *found.up)  # type: ignore[no-any-return]


def _is_seen_ordinary(x: Tensor, dims: int, bits: int | None) -> bool:
    """Whether the values of ``x`` can be read, also below torch.func's grad and jvp, and are ordinary."""
    seen = _seen(x)
    return seen is not None and is_ordinary(seen, dims, bits)


def _seen(x: Tensor) -> Tensor | None:
    """The values of ``x``, if they can be read."""
    seen = x if may_read(x) else readable(x)
    return seen.detach() if seen is not None and may_read(seen) else None


def _far(x: Tensor, dims: int, bits: int | None) -> Tensor:
    """The exponents (*B,) of those that are not ordinary; 0 for the others."""
    k, limit = exponent(x.detach(), dims), bits or _ORDINARY[x.real.dtype]
    return torch.where(k.abs() <= limit, 0, k)


def _broadcast(tensors: Sequence[Tensor], ranks: Sequence[int]) -> tuple[Tensor, ...]:
    """All with the batch that they broadcast to."""
    shapes = [(x.shape[: x.ndim - dims], x.shape[x.ndim - dims :]) for x, dims in zip(tensors, ranks, strict=True)]
    batch = torch.broadcast_shapes(*(each for each, _ in shapes))
    return tuple(x.expand((*batch, *rest)) for x, (_, rest) in zip(tensors, shapes, strict=True))


def _beside(k: Tensor, like: Tensor | None) -> Tensor:
    """k (*B,) with dimensions of size 1 for what ``like`` has more."""
    return k if like is None else k.reshape((*k.shape, *(1,) * (like.ndim - k.ndim)))


def _largest(x: Sequence[Tensor], k: Sequence[Tensor], batch: int) -> Tensor:
    """The largest exponent of all 2^k x that are not zero, for each matrix of ``batch`` dimensions; 0 if ordinary."""
    if _are_batched(x):  # by torch.autograd.grad: nothing of them can be looked at
        return torch.stack(list(k)).amax(0)
    sizes = []
    for z, q in zip(x, k, strict=True):
        z = z.detach().unsqueeze(-1)
        dims = z.ndim - q.ndim
        size = torch.where((z != 0).any(tuple(range(-dims, 0))), exponent(z, dims) + q, -torch.inf)
        sizes.append(size if q.ndim == batch else size.amax(tuple(range(batch, q.ndim))))
    largest = torch.stack(sizes).amax(0)
    return torch.where((largest.abs() <= _ORDINARY[largest.dtype]) | largest.isinf(), 0, largest)


def _batch(*exponents: Sequence[Tensor | None]) -> int:
    """How many dimensions are the batch's: those of the outermost exponents. A set of matrices has more than its mean."""
    return min(k.ndim for each in exponents for k in each if k is not None)


def _are_batched(x: Sequence[Tensor]) -> bool:
    return any(map(in_batched_backward, x))


def _shortened(x: Tensor, k: Tensor) -> Tensor:
    """k, or less where 2^k x would be so large that sums of such numbers are none."""
    most = math.frexp(largest_number(x))[1] - _ROOM
    return torch.minimum(k, most - exponent(x.unsqueeze(-1), x.ndim - k.ndim + 1))


@dataclass(frozen=True)
class _Scaled(Step):
    """2^up f(2^-down x) for x, down and up, ``count`` of the first two."""

    f: Map
    count: int
    shortened: bool = False  # whether outputs are, as gradients, rather than cut
    checked: bool = True

    def _parts(self, given: Sequence[Any]) -> tuple[Any, Any, Any]:
        return given[: self.count], given[self.count : 2 * self.count], given[2 * self.count :]

    def value(self, *given: Any) -> tuple[Tensor, ...]:
        x, down, up = self._parts(given)
        with nullcontext() if self.checked else forcing(False):
            y = self.f(*(z if k is None else shifted(z, -k) for z, k in zip(x, down, strict=True)))
        if self.shortened:
            up = [_shortened(z, k) for z, k in zip(y, up, strict=True)]
        return tuple(z if k is None else shifted(z, k) for z, k in zip(y, up, strict=True))

    def pull(self, kept: Any, grads: Any, needed: Sequence[bool]) -> Some:
        x, down, up = self._parts(kept)
        given = [i for i, g in enumerate(grads) if g is not None]
        wanted = tuple(needed[: self.count])
        g, q = [grads[i] for i in given], [up[i] for i in given]
        T = _largest(g, q, _batch(down, up))
        step = _Scaled(_Pull(self.f, tuple(given), wanted), len(x) + len(g), not _are_batched(g), self.checked)
        rise = (T if k is None else _beside(T, k) - k for k, want in zip(down, wanted, strict=True) if want)
        found = iter(run(step, *x, *g, *down, *(_beside(T, k) - k for k in q), *rise))
        return *(next(found) if want else None for want in wanted), *(None,) * (len(down) + len(up))

    def push(self, kept: Any, tangents: Any) -> Any:
        x, down, up = self._parts(kept)
        moving = [i for i, t in enumerate(tangents[: self.count]) if t is not None]
        t = [tangents[i] for i in moving]
        sizes = [torch.zeros_like(up[0]) if down[i] is None else -down[i] for i in moving]
        T = _largest(t, sizes, _batch(down, up))
        following = tuple(i for i, k in enumerate(up) if k is not None)
        step = _Scaled(_Push(self.f, self.count, tuple(moving), following), len(x) + len(t), False, self.checked)
        of_t = (_beside(T, k) - k for k in sizes)
        found = iter(run(step, *x, *t, *down, *of_t, *(up[i] + _beside(T, up[i]) for i in following)))
        return tuple(k if k is None else next(found) for k in up)

    def unchecked(self) -> "_Scaled":
        return replace(self, checked=False)


@dataclass(frozen=True)
class _Pull:
    """From inputs and the cotangents of the outputs ``given`` to the gradients of those inputs that are ``wanted``."""

    f: Map
    given: tuple[int, ...]
    wanted: tuple[bool, ...]

    def __call__(self, *both: Tensor) -> tuple[Tensor, ...]:
        x, g = both[: len(self.wanted)], both[len(self.wanted) :]

        def outputs(*moving: Tensor) -> tuple[Tensor, ...]:
            left = iter(moving)
            y = self.f(*(next(left) if want else z for z, want in zip(x, self.wanted, strict=True)))
            return tuple(y[i] for i in self.given)

        moving = [z for z, want in zip(x, self.wanted, strict=True) if want]
        if _are_batched(g):  # which torch.func does not take
            with torch.enable_grad():
                leaves = [z.view_as(z) if z.requires_grad else z.detach().requires_grad_() for z in moving]
                y = outputs(*leaves)
            return torch.autograd.grad(y, leaves, g, allow_unused=True, materialize_grads=True)
        found = vjp(outputs, moving, g)
        # Under vmap's rule grad mode may be on where nothing asks for a gradient: what comes out must hold no graph.
        again = in_torch_func() or (torch.is_grad_enabled() and any(z.requires_grad for z in both))
        return found if again else tuple(z.detach() for z in found)


@dataclass(frozen=True)
class _Push:
    """From inputs and the tangents of those that are ``moving`` to those of the outputs that are ``following``."""

    f: Map
    count: int
    moving: tuple[int, ...]
    following: tuple[int, ...]

    def __call__(self, *both: Tensor) -> tuple[Tensor, ...]:
        x, tangents = both[: self.count], both[self.count :]

        def outputs(*moving: Tensor) -> tuple[Tensor, ...]:
            now = dict(zip(self.moving, moving, strict=True))
            y = self.f(*(now.get(i, z) for i, z in enumerate(x)))
            return tuple(y[i] for i in self.following)

        return jvp_by_vjps(outputs, [x[i] for i in self.moving], tangents)


@dataclass(frozen=True)
class _Watch(Step):
    """Outputs of f at ordinary scale, whose cotangents go their way through it, unless they are of another: then this step
    takes them to the inputs by itself."""

    f: Map
    ranks: tuple[int, ...]
    count: int  # of outputs
    out: int

    def value(self, *given: Any) -> tuple[Tensor, ...]:
        return tuple(y.clone() for y in given[: self.count])

    def pull(self, kept: Any, grads: Any, needed: Sequence[bool]) -> Some:
        looked = [seen for g in grads if g is not None and (seen := _seen(g)) is not None]
        if all(is_ordinary(seen.unsqueeze(-1), self.out + 1) for seen in looked):
            return *grads, *(None,) * (len(kept) - self.count)
        kept = kept[self.count :]
        batch = next(g.shape[: g.ndim - self.out] for g in grads if g is not None)
        up = [looked[0].new_zeros(batch, dtype=looked[0].real.dtype)] * self.count
        x, count = _broadcast(kept, self.ranks), len(kept)
        found = _Scaled(self.f, count).pull((*x, *(None,) * count, *up), grads, (*needed[self.count :], *(False,) * count))
        return *(None,) * self.count, *found[:count]  # autograd sums over what was expanded

    def push(self, kept: Any, tangents: Any) -> Any:
        return tuple(t if t is None else added(t) for t in tangents[: self.count])
