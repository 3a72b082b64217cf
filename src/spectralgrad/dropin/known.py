"""Which of the functions with closed differences a recorded one is: powers, logarithm and exponential, also above a clamp.

They need no quadrature, and kernels know them. Their conventions at zero, where torch's values are others, are not taken
over: such a spectrum goes the general way.
"""

from typing import NamedTuple

from torch import Tensor

from spectralgrad.context import may_read
from spectralgrad.linalg.elementary import Exp, Log
from spectralgrad.linalg.functions import power_of
from spectralgrad.linalg.scalars import Scalar, zero_tolerance
from spectralgrad.validation import is_number

from .recorded import SPECTRUM, Call

_LARGEST_EXPONENT = 80.0  # of e, in every dtype


class _Form(NamedTuple):
    """max(x, floor)^alpha, or the logarithm or exponential of max(x, floor)."""

    alpha: float = 1.0
    floor: float | None = None
    last: str = "power"


_POWERS = {"sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0, "square": 2.0}
_INVERSES = ("__rdiv__", "__rtruediv__")


def known(call: Call, w: Tensor) -> Scalar | None:
    """The closed form of ``call``, if it has one that agrees with it on the ascending spectrum ``w``."""
    form = _form(call)
    if form is None or not may_read(w) or w.numel() == 0:
        return None
    if form.last == "exp":
        return Exp(form.floor) if float(w.max()) < _LARGEST_EXPONENT else None
    if form.floor is None and not bool((w[..., :1] > zero_tolerance(w)).all()):
        return None
    return Log(form.floor, checked=True) if form.last == "log" else power_of(form.alpha, form.floor)


def _form(call: Call) -> _Form | None:
    if call is SPECTRUM:
        return _Form()
    name = call.function.__name__
    given = [*call.arguments, *call.options.values()]
    inner = next((_form(x) for x in given if isinstance(x, Call)), None)
    numbers = [float(x) for x in given if is_number(x)]
    if inner is None or inner.last != "power" or len(numbers) + 1 != len([x for x in given if x is not None]):
        return None
    plain = inner.alpha == 1
    if not numbers:
        if name in _POWERS:
            return inner._replace(alpha=inner.alpha * _POWERS[name])
        return inner._replace(last=name) if name in ("log", "exp") and plain else None
    if len(numbers) > 1:
        return None
    number, first = numbers[0], isinstance(given[0], Call)
    if name in ("pow", "__pow__") and first and number:
        return inner._replace(alpha=inner.alpha * number)
    if number == 1 and (name in _INVERSES if first else name in ("div", "divide", "true_divide")):
        return inner._replace(alpha=-inner.alpha)
    lower = name == "clamp_min" or (name in ("clamp", "clip") and ("min" in call.options or given[1] is not None))
    if lower and "max" not in call.options and plain and inner.floor is None and number > 0:
        return _Form(floor=number)
    return None
