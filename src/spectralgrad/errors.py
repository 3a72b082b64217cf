"""The named errors. Each message says who refused, what is required, what came and what to do."""

from torch.linalg import LinAlgError  # type: ignore[attr-defined]

__all__ = [
    "ConvergenceError",
    "DefinitenessError",
    "DeviceError",
    "DtypeError",
    "LinAlgError",
    "NonFiniteError",
    "OptionError",
    "ShapeError",
    "SpectralError",
    "SymmetryError",
]


class SpectralError(Exception):
    """Base of every error that spectralgrad raises on purpose."""


class ShapeError(SpectralError, ValueError):
    """A tensor has the wrong shape. Also a `ValueError`."""


class DtypeError(SpectralError, TypeError):
    """A tensor has a dtype that cannot be decomposed, or is not a dense tensor. Also a `TypeError`."""


class DeviceError(SpectralError, RuntimeError):
    """Tensors that belong together lie on different devices. Also a `RuntimeError`."""


class OptionError(SpectralError, ValueError):
    """An option is out of its range, of the wrong kind, or clashes with another. Also a `ValueError`."""


class SymmetryError(SpectralError, ValueError):
    """A matrix is further from Hermitian than rounding explains: more than eps^(1/2) of its largest entry.

    `expm`, which is given differences of logarithms, allows 64 eps besides. If only the Hermitian part is meant, pass
    (M + M.mH) / 2. Also a `ValueError`.
    """


class NonFiniteError(SpectralError, LinAlgError, ValueError):
    """A tensor holds NaN or Inf, or a result would overflow.

    Look for NaN where the tensor was computed, since nothing is repaired here; scale down what overflows, or use float64.
    Also a `torch.linalg.LinAlgError`, which is what torch raises there and a `RuntimeError`; and a `ValueError`.
    """


class DefinitenessError(SpectralError, ValueError):
    """An eigenvalue lies outside the domain of the function that was asked for: negative, or zero where none may be.

    Add eps times the identity to the matrix, or pass ``floor=``, which clamps eigenvalues. Also a `ValueError`.
    """


class ConvergenceError(SpectralError, LinAlgError):
    """No solver of the fallback chain could decompose a finite matrix, or an iteration did not converge.

    Also a `torch.linalg.LinAlgError`.
    """
