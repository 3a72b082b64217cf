"""The public door: what a matrix must be, and when looking at its values is allowed."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from spectralgrad.context import checking, forcing, is_forced, is_transformed, readable
from spectralgrad.errors import DeviceError, DtypeError, NonFiniteError, OptionError, ShapeError, SymmetryError

__all__ = ["checks"]

# What torch.fx hands over has neither shape nor dtype.
_PROXY = "torch.fx.symbolic_trace must keep it whole (Tracer.is_leaf_module, torch.fx.wrap). Or use torch.export."
# What else may have been meant by a matrix that is not Hermitian.
_ASYMMETRIC = {
    "eigh": ' For one triangle, which torch.linalg reads, pass UPLO="L".',
    "eigvalsh": ' For one triangle, which torch.linalg reads, pass UPLO="L".',
    "sqrtm": " The root of a product of two covariances, in FID, is in `frechet_distance`.",
}
# What takes differences of matrices of size 1, such as logarithms, however small they come out: there an asymmetry of so
# many eps is rounding.
_DIFFERENCES, _ROUNDING = ("expm",), 64
_HALF = (torch.bfloat16, torch.float16)
REAL = (*_HALF, torch.float32, torch.float64)  # and not torch's floating point in 8 bits, which knows few operations
LARGEST_EXPONENT = 1e12
_FULL = (torch.float32, torch.float64, torch.complex64, torch.complex128)


@contextmanager
def checks(enabled: bool) -> Iterator[None]:
    """Turn the value checks (finite, Hermitian, positive) on or off inside the block.

    By default they run on the CPU and not where they would make the host wait (CUDA) or where one bad matrix would stop
    the others (vmap). There a matrix with NaN gives NaN and is counted. ``checks(True)`` turns that into the error, at the
    price of a synchronisation; ``checks(False)`` trusts the input on the CPU too. Compiled code never checks.

    Args:
        enabled: True or False, for the current thread or task.

    >>> import torch, spectralgrad as sg
    >>> with sg.checks(False):
    ...     sg.sqrtm(torch.full((1, 1), float("nan")))
    tensor([[nan]])
    """
    require_flag("checks", "enabled", enabled)
    with forcing(enabled):
        yield


def is_checked(x: Tensor, tolerance: float | None) -> bool:
    """Whether the values of ``x`` are checked with this tolerance, and not passed by inside vmap."""
    return tolerance is not None and readable(x) is not None


def under_vmap(tolerance: float | None) -> float | None:
    """The tolerance that holds inside vmap: none, unless checks are forced. For vmap rules, which see the real values."""
    return tolerance if is_forced() else None


def is_number(x: object) -> bool:
    """A finite float, or an int of 64 bits, which is what torch takes, and not a bool."""
    limit = math.inf if isinstance(x, float) else 2**63
    return isinstance(x, (int, float)) and not isinstance(x, bool) and -limit < x < limit


def is_whole(x: object, least: int = 1) -> bool:
    """An int of at least ``least``, and not a bool."""
    return isinstance(x, int) and not isinstance(x, bool) and x >= least


def require_number(
    who: str, name: str, value: object, *, above: float | None = None, least: float = -math.inf, hint: str = ""
) -> None:
    """Raise unless ``value`` is a finite number above ``above``, or at least ``least``; ``hint`` ends the error."""
    if is_number(value) and (value >= least if above is None else value > above):  # type: ignore[operator]
        return
    bound = f" >= {least:g}" if above is None else f" > {above:g}"
    raise OptionError(f"`{who}`: {name} must be a finite number{bound}, got {value!r}.{hint}")


def require_exponent(who: str, name: str, value: float) -> None:
    """Raise for a power so large that its own square, which second derivatives have as a factor, leaves float32."""
    if abs(value) > LARGEST_EXPONENT:
        raise OptionError(
            f"`{who}`: {name} must be a number of at most {LARGEST_EXPONENT:g} in size, got {value!r}. For the limit of "
            "ever larger powers of M / |M| use projector."
        )


def require_part(who: str, name: str, value: object) -> None:
    """Raise unless ``value`` is a number from 0 to 1."""
    if not (is_number(value) and 0 <= value <= 1):  # type: ignore[operator]
        raise OptionError(f"`{who}`: {name} must be a number in [0, 1], got {value!r}.")


def require_flag(who: str, name: str, value: object) -> None:
    """Raise unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise OptionError(f"`{who}`: {name} must be True or False, got {value!r}.")


def require_one_of(who: str, name: str, value: object, known: tuple[object, ...]) -> None:
    """Raise unless ``value`` is one of ``known``."""
    if not any(value is each or (isinstance(value, type(each)) and value == each) for each in known):
        words = [f'"{each}"' if isinstance(each, str) else repr(each) for each in known]
        raise OptionError(f"`{who}`: {name} must be {', '.join(words[:-1])} or {words[-1]}, got {value!r}.")


def require_dense(who: str, x: Tensor, name: str) -> None:
    """Raise for layouts whose entries do not lie in plain strided memory: sparse, mkldnn, nested."""
    if x.layout != torch.strided or x.is_nested:
        layout = "a nested tensor" if x.is_nested else f"layout {x.layout}"
        hint = "Pad it with torch.nested.to_padded_tensor." if x.is_nested else f"Convert it with {name}.to_dense()."
        raise DtypeError(f"`{who}`: `{name}` must be a dense (strided) tensor, got {layout}. {hint}")


def _no_tensor(x: object) -> str:
    """What to do with what is no tensor."""
    return _PROXY if isinstance(x, torch.fx.Proxy) else "Convert it with torch.as_tensor."


def require_real(who: str, x: Tensor, name: str) -> None:
    """Raise unless ``x`` is a dense tensor of real numbers."""
    if not isinstance(x, Tensor) or x.dtype not in REAL:
        came = x.dtype if isinstance(x, Tensor) else type(x).__name__
        hint = "Convert it with .float()."
        if not isinstance(x, Tensor):
            hint = _no_tensor(x)
        elif x.is_complex():
            hint = "Take its parts as channels of their own: torch.view_as_real."
        raise DtypeError(f"`{who}`: `{name}` must be a real floating-point tensor, got {came}. {hint}")
    require_dense(who, x, name)


def require_one_device(who: str, tensors: Sequence[Tensor], names: Sequence[str]) -> None:
    """Raise unless all ``tensors`` lie on the device of the first."""
    first = tensors[0].device
    if all(x.device == first for x in tensors):
        return
    places = ", ".join(f"`{name}` on {x.device}" for name, x in zip(names, tensors, strict=True))
    raise DeviceError(f"`{who}`: all tensors must lie on one device, got {places}. Move them with .to(device).")


def as_matrix(who: str, x: Tensor, *, square: bool, name: str = "M") -> Tensor:
    """``x`` in a dtype that can be decomposed, or the error that says why not. Half precision becomes float32."""
    if not isinstance(x, Tensor):
        raise DtypeError(f"`{who}`: `{name}` must be a torch.Tensor, got {type(x).__name__}. {_no_tensor(x)}")
    require_dense(who, x, name)
    if x.ndim < 2:
        number, row = f"For a single number use {name}.reshape(1, 1).", f"One row is {name}.unsqueeze(0)."
        raise ShapeError(
            f"`{who}`: `{name}` must have at least two dimensions, (*batch, {'n, n' if square else 'm, n'}), "
            f"got shape {tuple(x.shape)}. {number if square or x.ndim == 0 else row}"
        )
    if square and x.shape[-1] != x.shape[-2]:
        raise ShapeError(
            f"`{who}`: `{name}` must be square in its last two dimensions, got {tuple(x.shape)}. "
            "For a rectangular matrix use `svd` or `polar`."
        )
    if x.dtype in _HALF:
        return x.to(torch.float32)
    if x.dtype not in _FULL:
        how = "dequantize()" if x.is_quantized else "to(torch.float64)"
        raise DtypeError(
            f"`{who}`: `{name}` must be floating point or complex, got {x.dtype}. Convert it with {name}.{how}."
        )
    return x


def as_square(who: str, M: Tensor) -> tuple[Tensor, float | None]:
    """`as_matrix` for a square ``M``, and the asymmetry that passes for rounding; None: do not look."""
    return as_matrix(who, M, square=True), asymmetry_tolerance(M)


def as_given(x: Tensor, given: Tensor) -> Tensor:
    """A result, rounded back to half precision where the input had it; what overflows there becomes the largest number."""
    if given.dtype not in _HALF:
        return x
    largest = torch.finfo(given.dtype).max
    return x.clamp(-largest, largest).to(given.dtype)


def asymmetry_tolerance(M: Tensor) -> float | None:
    """Largest |M - M^H| / 2 relative to max |M| that passes for rounding, the square root of eps; None: do not look."""
    return float(torch.finfo(M.dtype).eps) ** 0.5 if checking(M) else None


def require_hermitian(who: str, M: Tensor, H: Tensor, tolerance: float, name: str = "M") -> None:
    """Raise unless ``M`` (*B, n, n) is finite and equals its Hermitian part ``H`` to ``tolerance``. Reads the host once."""
    asymmetry = (M - H).abs().amax((-2, -1))  # (*B,); NaN and Inf fail the comparison below too
    scale = H.abs().amax((-2, -1))
    if who in _DIFFERENCES:
        scale = scale.clamp(min=_ROUNDING * float(torch.finfo(M.dtype).eps) / tolerance)
    if bool((asymmetry <= tolerance * scale).all()):
        return
    require_finite(who, M, name)
    relative = float((asymmetry / scale).nan_to_num(posinf=float("inf")).max())
    raise SymmetryError(
        f"`{who}`: `{name}` must be symmetric (Hermitian) to {tolerance:.1e} of its largest entry, but differs from its "
        f"symmetric part by {relative:.1e}. If only the symmetric part is meant, pass ({name} + {name}.mH) / 2."
        f"{_ASYMMETRIC.get(who, '')}"
    )


def adjoint(who: str, A: Tensor) -> Tensor:
    """A^H of a wide ``A``, for a function that takes tall ones: it would tell where in A^H a NaN is, so look here."""
    values = readable(A) if checking(A) else None
    if values is not None:
        require_finite(who, values.detach(), "A")
    if not A.is_complex() or is_transformed(A):  # vmap has no rule for the other
        return A.mH
    return torch.conj_physical(A.mT)  # A.mH leaves its conjugation for later, and so would its gradient


def returned_adjoint(Y: Tensor) -> Tensor:
    """Y^H as a result: with memory of its own where torch's results have that, and no conjugation left for later."""
    return Y.mH.resolve_conj().contiguous()


def require_finite(who: str, x: Tensor, name: str = "M") -> None:
    """Raise if ``x`` holds NaN or Inf, and say how many and where the first one is."""
    if math.isfinite(largest_part(x)):
        return
    finite = torch.isfinite(x)
    nans = int(torch.isnan(x).sum())
    infs = int((~finite).sum()) - nans
    where = tuple(int(i) for i in (~finite).nonzero()[0])
    raise NonFiniteError(
        f"`{who}`: `{name}` must be finite, got {nans} NaN and {infs} Inf among {x.numel()} entries, the first at index "
        f"{where}. Look for the overflow where `{name}` was computed; nothing was repaired."
    )


def overflow_advice(what: str, dtype: torch.dtype) -> str:
    """What to do where something overflows this dtype."""
    return f"{what}{'' if dtype in (torch.float64, torch.complex128) else ', or use float64'}."


def largest_part(x: Tensor) -> float:
    """The largest |x|, of a complex ``x`` among its real and imaginary parts; NaN if one is, 0 for no entries."""
    if x.numel() == 0:
        return 0.0
    x = torch.view_as_real(x.detach().resolve_conj()) if x.is_complex() else x.detach()
    low, high = x.aminmax()  # one pass, a fifth of isfinite's time
    return max(-float(low), float(high))
