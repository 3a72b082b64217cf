"""A failing matrix made small, and the snippet that shows it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import spectralgrad

from .catalogue import by_name
from .examine import SECOND, Check, examine
from .numbers import unit

_SECONDS = 5.0  # for one failure
_DIGITS = 17  # that tell every float64 from its neighbours


@dataclass(frozen=True)
class Failure:
    """One matrix (1, m, n) on which a target breaks one promise."""

    target: str
    options: dict[str, Any]
    check: str
    X: Tensor
    family: str
    ratio: float
    seed: int = 0
    index: int = 0

    def found(self, X: Tensor, library: Any = spectralgrad) -> tuple[Check, float] | None:
        """The same failure on another matrix, if it is there."""
        target = by_name(self.target)
        if not target.takes(X):
            return None
        for name, _, size, check, _ in examine(target, self.options, X, library).failures():
            if name == self.check:
                return check, size
        return None


def _set(X: Tensor, i: int, j: int, value: complex, symmetric: bool) -> Tensor:
    new = X.clone()
    new[0, i, j] = value if X.is_complex() else value.real
    if symmetric:
        new[0, j, i] = value.conjugate() if X.is_complex() else value.real
    return new


def _rounded(x: float, digits: int) -> float:
    return float(f"{x:.{digits - 1}e}")


def _smaller(X: Tensor, symmetric: bool) -> Iterator[Tensor]:
    """Candidates with fewer rows and columns, then simpler entries. Each is simpler than X in one respect."""
    m, n = X.shape[-2:]
    for i in range(m if m > 1 else 0):
        keep = [k for k in range(m) if k != i]
        yield X[:, keep][:, :, keep] if symmetric else X[:, keep]
    for j in range(n if n > 1 and not symmetric else 0):
        yield X[:, :, [k for k in range(n) if k != j]]
    if int(unit(X)[1]) not in (0, 1):
        yield unit(X)[0].to(X.dtype).to(X.device)
    if X.is_complex() and bool((X.imag != 0).any()):
        yield X.real.to(X.dtype)
    for digits in (1, 2, 3):
        parts = torch.view_as_real(X) if X.is_complex() else X
        flat = [_rounded(x, digits) for x in parts.flatten().tolist()]
        new = torch.tensor(flat, dtype=parts.dtype, device=X.device).reshape(parts.shape)
        new = torch.view_as_complex(new) if X.is_complex() else new
        if torch.isfinite(new).all() and not torch.equal(new, X):
            yield new
    for i in range(m):
        for j in range(i if symmetric else 0, n):
            yield from _simpler_entry(X, i, j, symmetric)


def _simpler_entry(X: Tensor, i: int, j: int, symmetric: bool) -> Iterator[Tensor]:
    value = complex(X[0, i, j])
    for simple in (0j, *(complex(_rounded(value.real, d), _rounded(value.imag, d)) for d in (1, 2, 3, 5))):
        new = _set(X, i, j, simple, symmetric)
        if not torch.equal(new, X) and torch.isfinite(new).all():
            yield new
        if new.equal(X):  # already as simple as that
            return


def minimised(failure: Failure, library: Any = spectralgrad, seconds: float = _SECONDS) -> Failure:
    """The smallest matrix found, in the time given, that fails in the same way."""
    end = time.monotonic() + seconds
    symmetric = failure.X.shape[-1] == failure.X.shape[-2] and torch.equal(failure.X, failure.X.mH)
    X, size = failure.X, failure.ratio
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for candidate in _smaller(X, symmetric):
            if time.monotonic() > end:
                break
            if (again := failure.found(candidate, library)) is not None:
                X, size, progress = candidate, again[1], True
                break
    return Failure(failure.target, failure.options, failure.check, X, failure.family, size, failure.seed, failure.index)


def _literal(x: float, dtype: torch.dtype) -> str:
    """The shortest decimal number that is read back as x.

    >>> _literal(float(torch.tensor(0.1)), torch.float32)
    '0.1'
    """
    exact = torch.tensor(x, dtype=dtype)
    for digits in range(1, _DIGITS + 1):
        text = f"{x:.{digits}g}"
        if torch.equal(torch.tensor(float(text), dtype=dtype), exact):
            return text if any(c in text for c in ".en") else f"{text}.0"
    return repr(x)


def _written(X: Tensor) -> str:
    real = X.real.dtype if X.is_complex() else X.dtype

    def entry(x: complex) -> str:
        if not X.is_complex():
            return _literal(x.real, real)
        return f"complex({_literal(x.real, real)}, {_literal(x.imag, real)})"

    rows = ["[" + ", ".join(entry(complex(x)) for x in row) + "]" for row in X[0].cpu()]
    return "[" + ",\n                   ".join(rows) + "]"


def _comment(word: str, x: Tensor | None) -> list[str]:
    """One matrix of numbers, with the digits that may tell it from another."""
    if x is None:
        return []
    rows = torch.atleast_2d(x[0].detach().cpu())
    form = "{:.9g}" if x.dtype in (torch.float32, torch.complex64) else "{:.16g}"
    return [f"# {word}: " + ", ".join(form.format(v) for v in row.tolist()) for row in rows]


_CALL = """def weight(y, which):  # fixed numbers
    x = torch.arange(1, y[0].numel() + 1, dtype=torch.float64) + which
    return (torch.complex(x.sin(), x.cos()) if y.is_complex() else x.sin()).to(y).reshape(y.shape)
Y = Y if isinstance(Y, tuple) else (Y,)
(g,) = torch.autograd.grad(Y, X, [weight(y, i) for i, y in enumerate(Y)], create_graph=True)
"""


def snippet(failure: Failure, library: Any = spectralgrad, formatted: Callable[[float], str] = "{:.3g}".format) -> str:
    """Lines that a person can paste: the matrix, the call, what came and what was expected."""
    again = failure.found(failure.X, library)
    lines = [
        f"# {failure.target}: {failure.check}, error {formatted(failure.ratio)} times the bound; found in «{failure.family}»"
        f" (SEED={failure.seed}, batch {failure.index})",
        "import torch, spectralgrad as sg",
        f"X = torch.tensor([{_written(failure.X)}],\n                 dtype={failure.X.dtype}"
        + (f', device="{failure.X.device.type}"' if failure.X.device.type != "cpu" else "")
        + ", requires_grad=True)",
        by_name(failure.target).code(failure.options),
    ]
    if not failure.check.startswith("raises") and failure.check != "value":
        lines.append(_CALL.rstrip())
        if failure.check.startswith("second"):
            lines.append(f"(h,) = torch.autograd.grad(g, X, weight(g, {SECOND}))")
        lines.append(
            "print(h)" if failure.check.startswith("second") else "print(g)" if "gradient" in failure.check else "print(Y)"
        )
    if again is not None:
        check = again[0]
        if (message := getattr(check, "message", None)) is not None:
            lines.append(f"# came: {failure.check.removeprefix('raises ')}: {message}")
        lines += _comment("came", check.got) + _comment("expected", check.expected)
    return "\n".join(lines)
