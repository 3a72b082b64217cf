"""Which operations of torch are followed, and what they make of the parts of a decomposition.

Every handler has one form: it gets the mode's parts, torch's function and its arguments, and returns what torch would.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .parts import Basis, Numbers, Part, Parts, completed, product
from .recorded import Call, as_number, masked, shared

Handler = Callable[[Parts, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

# Names of functions, attributes and methods, in torch and where else it keeps them.
_MATH = """abs absolute add arctan asinh atan ceil clamp clamp_max clamp_min clip cosh cos cube div divide elu erf exp exp2
expm1 fmax fmin gelu hardtanh leaky_relu lerp log log10 log1p log2 logit masked_fill maximum minimum mul multiply nan_to_num
neg negative positive pow reciprocal relu rsqrt rsub sgn sigmoid sign sin sinh softplus sqrt square sub subtract tan tanh
threshold true_divide where xlogy zeros_like ones_like full_like eq ne lt le gt ge less less_equal greater greater_equal
isfinite isnan isinf logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not float_power
__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __div__ __rdiv__ __pow__ __rpow__ __neg__
__and__ __or__ __invert__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __abs__"""
_COPIES = "clone contiguous resolve_conj resolve_neg to float double type type_as half bfloat16 cfloat cdouble"
_VIEWS = "unsqueeze reshape view view_as reshape_as __getitem__"
_TURNS = "mT mH T H t transpose swapaxes swapdims permute adjoint conj conj_physical"


def _everywhere(name: str) -> list[Any]:
    """A function by all its names in torch; an attribute by its getter, by which torch hands it over."""
    found = [getattr(owner, name, None) for owner in (torch, torch.Tensor, torch.special, F, torch.linalg)]
    return [x.__get__ if type(x).__name__ == "getset_descriptor" else x for x in found if x is not None]


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], name: str = "input") -> Any:
    return args[0] if args else kwargs.get(name)


# f(w): elementwise operations.


def _elementwise(replay: Callable[..., Any] | None = None) -> Handler:
    """``replay``: what has the same value where torch's function writes into its argument."""

    def handle(parts: Parts, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = [parts.get(x) if isinstance(x, Tensor) else None for x in (*args, *kwargs.values())]
        out = function(*args, **kwargs)
        if any(known) and isinstance(out, Tensor):
            parts.put(out, _applied(replay or function, known, args, kwargs, out))
        return out

    return handle


def _applied(
    function: Callable[..., Any], known: list[Part | None], args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor
) -> Numbers | None:
    first = next(part for part in known if part is not None)
    if not isinstance(first, Numbers) or first.layout == "diagonal" or kwargs.get("out") is not None:
        return None
    flat = first.layout == "vector"
    given: list[Any] = []
    for x, part in zip((*args, *kwargs.values()), known, strict=True):
        if part is None:
            value = shared(x, flat) if isinstance(x, Tensor) else x
            if value is None and x is not None:
                return None
            given.append(value)
        elif isinstance(part, Numbers) and part.source is first.source and part.layout == first.layout:
            given.append(part.call)
        else:
            return None
    call = Call(function, *given[: len(args)], **dict(zip(kwargs, given[len(args) :], strict=True)))
    made = Numbers(first.source, first.layout, call)
    same = made.relaid(out)
    return made if same is not None and same.layout == made.layout else None


def _set_item(parts: Parts, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """x[mask] = y."""
    known = [parts.get(x) if isinstance(x, Tensor) else None for x in args]
    out = function(*args, **kwargs)
    if len(known) == 3 and isinstance(known[0], Numbers) and isinstance(known[1], Numbers):
        plain = not isinstance(args[2], Tensor) or args[2].ndim == 0
        made = _applied(masked, [*known[:2], None], args, {}, args[0]) if plain else None
        parts.put(args[0], made)
    return out


def _scale(divide: bool, elementwise: Handler) -> Handler:
    """V * f(w) and V / f(w), by broadcasting; else as other elementwise operations."""

    def handle(parts: Parts, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) == 2 and not kwargs:
            a, b = (parts.get(x) if isinstance(x, Tensor) else None for x in args)
            if isinstance(b, Basis) and not divide:
                a, b = b, a
            if isinstance(a, Basis):
                out = function(*args)
                if isinstance(b, Numbers) and a.takes(b):
                    parts.put(out, a.scaled(Call(torch.reciprocal, b.call) if divide else b.call))
                elif b is None and a.call is not None and any(isinstance(x, (int, float)) for x in args):
                    number = next(x for x in args if isinstance(x, (int, float)))
                    parts.put(out, a.scaled(Call(torch.full_like, a.call, 1 / number if divide else number)))
                return out
        return elementwise(parts, function, args, kwargs)

    return handle


# The same in another form: casts, copies, views, transposes, diagonal matrices.


def _cast(parts: Parts, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = function(*args, **kwargs)
    if isinstance(out, Tensor) and (part := parts.get(_argument(args, kwargs))) is not None:
        if isinstance(part, Numbers) and not args[0].is_floating_point() and not args[0].is_complex():
            part = Numbers(part.source, part.layout, Call(as_number, part.call))
        kind = out.is_floating_point() or out.is_complex()
        parts.put(out, part if kind and (isinstance(part, Numbers) or out.is_complex() == args[0].is_complex()) else None)
    return out


def _view(parts: Parts, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = function(*args, **kwargs)
    if isinstance(out, Tensor) and isinstance(part := parts.get(args[0]), Numbers):
        # By reshaping nothing but ones can come and go where the shapes fit; by an index too, if it selects nothing.
        whole = "getitem" not in function.__name__ or _selects_nothing(args[1])
        parts.put(out, part.relaid(out) if whole else None)
    return out


def _selects_nothing(index: Any) -> bool:
    each = index if isinstance(index, tuple) else (index,)
    return all(x is None or x is Ellipsis or (isinstance(x, slice) and x == slice(None)) for x in each)


def _turn(parts: Parts, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = function(*args, **kwargs)
    if isinstance(out, Tensor) and (part := parts.get(x := _argument(args, kwargs))) is not None:
        name = _name(function)
        if isinstance(part, Basis):
            turned = _swaps(name, x.ndim, args[1:], kwargs)
            parts.put(out, None if turned is None else part.moved(turned, name in ("mH", "H", "adjoint", *_CONJ)))
        elif name in _CONJ or part.layout == "diagonal":
            parts.put(out, part if out.shape == x.shape else None)
        else:
            parts.put(out, None)
    return out


_CONJ = ("conj", "conj_physical")


def _name(function: Callable[..., Any]) -> str:
    descriptor = getattr(function, "__self__", None)  # of the getter of an attribute
    return descriptor.__name__ if function.__name__ == "__get__" and descriptor is not None else function.__name__


def _swaps(name: str, ndim: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    """Whether a transposition exchanges the last two dimensions and none else; None where it moves others."""
    if name in _CONJ:
        return False
    if name in ("mT", "mH", "adjoint"):
        return True
    if name in ("T", "H", "t"):
        return True if ndim == 2 else None
    dims = args or tuple(kwargs.values())
    if name == "permute":
        order = [d % ndim for d in (dims[0] if isinstance(dims[0], (tuple, list)) else dims)]
        return True if order == [*range(ndim - 2), ndim - 1, ndim - 2] else False if order == [*range(ndim)] else None
    return True if {d % ndim for d in dims} == {ndim - 2, ndim - 1} else None


def _diagonal(parts: Parts, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = function(*args, **kwargs)
    part = parts.get(_argument(args, kwargs))
    if isinstance(part, Numbers) and part.layout == "vector" and len(args) + len(kwargs) == 1:
        square = out.shape == (*part.source.spectrum.shape, part.source.spectrum.shape[-1])
        parts.put(out, Numbers(part.source, "diagonal", part.call) if square else None)
    return out


# Products, in which the parts meet.


def _multiplied(parts: Parts, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 2 and not kwargs and (a := parts.get(args[0])) and (b := parts.get(args[1])):
        made = product(a, b) if args[0].ndim == args[1].ndim else None
        if isinstance(made, tuple) and (Y := completed(made, *args)) is not None:
            return Y
        out = function(*args)
        if isinstance(made, Basis):
            parts.put(out, made)
        return out
    return function(*args, **kwargs)


def _chain(parts: Parts, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch.linalg.multi_dot, chain_matmul: from the left, if all of it is known."""
    tensors = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
    if not kwargs and len(tensors) == 3 and all(isinstance(x, Tensor) and parts.get(x) for x in tensors):
        first = _multiplied(parts, torch.matmul, (tensors[0], tensors[1]), {})
        if parts.get(first) is not None:
            return _multiplied(parts, torch.matmul, (first, tensors[2]), {})
    return function(*args, **kwargs)


_TERM = re.compile(r"(\.\.\.|[a-zA-Z]*?)([a-zA-Z]{1,2})$")


def _einsum(parts: Parts, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """V f(w) V^H as "...ij,...j,...kj->...ik", with its operands in any order, or in two steps."""
    if not kwargs and len(args) in (3, 4) and isinstance(args[0], str):
        known = [parts.get(x) if isinstance(x, Tensor) else None for x in args[1:]]
        if all(known):
            made = _contracted(args[0].replace(" ", ""), known)  # type: ignore[arg-type]
            if isinstance(made, tuple) and (Y := completed(made, *args[1:])) is not None:
                return Y
            out = function(*args)
            parts.put(out, made if isinstance(made, Basis) else None)
            return out
    return function(*args, **kwargs)


def _contracted(equation: str, known: list[Part]) -> Basis | tuple[Basis, Basis] | None:
    terms, _, result = equation.partition("->")
    names = terms.split(",")
    if len(names) != len(known) or any(part.source is not known[0].source for part in known):
        return None
    bases = [(part, name) for part, name in zip(known, names, strict=True) if isinstance(part, Basis)]
    numbers = [(part, name) for part, name in zip(known, names, strict=True) if isinstance(part, Numbers)]
    batch = bases[0][1][:-2] if bases else ""
    if any(name[:-2] != batch for _, name in bases) or any(len(name) < 2 for _, name in bases):
        return None
    # Each basis has a letter for its rows and one for the spectrum.
    letters = [(part, name[-1], name[-2]) if part.turned else (part, name[-2], name[-1]) for part, name in bases]
    spectral = letters[0][2] if letters else ""
    if any(each[2] != spectral or each[1] == spectral for each in letters):
        return None
    if any(part.layout != "vector" or name != batch + spectral for part, name in numbers):
        return None
    if len(bases) == 1 and len(numbers) == 1:
        return bases[0][0].scaled(numbers[0][0].call) if result == bases[0][1] else None
    if len(bases) != 2 or letters[0][1] == letters[1][1]:
        return None
    (a, row, _), (b, column, _) = letters
    if result == batch + column + row:
        a, b = b, a
    elif result != batch + row + column:
        return None
    for part, _ in numbers:
        a = a.scaled(part.call)
    # What each operand stands for is now said by its letters: the left one plain, the right one turned.
    plain = Basis(a.source, a.side, False, a.conjugated, a.call)
    pair = product(plain, Basis(b.source, b.side, True, b.conjugated, b.call))
    return pair if isinstance(pair, tuple) else None


def _table() -> dict[Any, Handler]:
    table: dict[Any, Handler] = {}
    for name in _MATH.split():
        for function in _everywhere(name):
            table[function] = _elementwise()
        if not name.startswith("_") and hasattr(torch.Tensor, f"{name}_"):
            table[getattr(torch.Tensor, f"{name}_")] = _elementwise(getattr(torch.Tensor, name))
            if hasattr(torch, f"{name}_"):
                table[getattr(torch, f"{name}_")] = _elementwise(getattr(torch.Tensor, name))
    groups: dict[str, Handler] = {
        "mul multiply __mul__ __rmul__": _scale(False, _elementwise()),
        "div divide true_divide __truediv__ __div__": _scale(True, _elementwise()),
        _COPIES: _cast,
        _VIEWS: _view,
        _TURNS: _turn,
        "diag_embed diag diagflat": _diagonal,
        "matmul mm bmm __matmul__": _multiplied,
        "multi_dot chain_matmul": _chain,
        "einsum": _einsum,
        "__setitem__": _set_item,
    }
    for names, handler in groups.items():
        for name in names.split():
            for function in _everywhere(name):
                table[function] = handler
    return table


FOLLOWED = _table()
TAKES_LISTS = {function for name in ("multi_dot", "chain_matmul") for function in _everywhere(name)}
