"""Matrix products with about 30 digits out of float64 alone, on any machine, for batches of any size.

A number is an unevaluated sum high + low of two float64 (a Pair). A product cuts both matrices into slices of 22 bits.
The product of two slices is a sum of n whole numbers below 2^44, so float64 holds it exactly for n <= 512, in any order
of summation: BLAS does the work and makes no error. The slice products are then added up as Pairs, small ones first.
"""

import numpy as np
from numpy import ndarray

Pair = tuple[ndarray, ndarray]  # (*B, m, n) each

SLICE_BITS = 22
SLICES = 5  # 110 bits below the largest entry of each matrix
MAX_SIZE = 2 ** (53 - 2 * SLICE_BITS)


def as_pair(x: ndarray) -> Pair:
    """The float32 or float64 matrix ``x``, exactly."""
    return x.astype(np.float64), np.zeros(x.shape)


def transpose(x: Pair) -> Pair:
    return x[0].swapaxes(-1, -2), x[1].swapaxes(-1, -2)


def negative(x: Pair) -> Pair:
    return -x[0], -x[1]


def add(x: Pair, y: Pair) -> Pair:
    high, error = _two_sum(x[0], y[0])
    return _two_sum(high, error + x[1] + y[1])


def scaled(x: Pair, power_of_two: float) -> Pair:
    """``x`` times a power of two, exactly."""
    return x[0] * power_of_two, x[1] * power_of_two


def symmetric_part(x: Pair) -> Pair:
    return scaled(add(x, transpose(x)), 0.5)


def matmul(x: Pair, y: Pair) -> Pair:
    """x @ y with an error of about 2^-100 |x| |y|."""
    if x[0].shape[-1] > MAX_SIZE:
        raise ValueError(f"`matmul`: the inner size must be <= {MAX_SIZE} to be exact, got {x[0].shape[-1]}.")
    left, right = _slices(x), _slices(y)
    total = as_pair(np.zeros((*x[0].shape[:-1], y[0].shape[-1])))
    for order in reversed(range(SLICES)):
        for i in range(order + 1):
            total = add(total, as_pair(left[i] @ right[order - i]))
    return total


def _two_sum(a: ndarray, b: ndarray) -> Pair:
    """a + b and its rounding error, exactly."""
    total = a + b
    from_b = total - a
    return total, (a - (total - from_b)) + (b - from_b)


def _slices(x: Pair) -> list[ndarray]:
    """Multiples of falling powers of two whose sum is ``x`` to 110 bits below its largest entry."""
    high, low = x
    largest = np.abs(high).max((-2, -1), keepdims=True)
    _, exponent = np.frexp(largest)  # largest < 2^exponent
    parts = []
    for k in range(1, SLICES + 1):
        unit = np.ldexp(1.0, exponent - k * SLICE_BITS)
        parts.append(np.rint(high / unit) * unit)
        high, low = _two_sum(high - parts[-1], low)
    return parts
