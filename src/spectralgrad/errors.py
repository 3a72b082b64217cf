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
    """A tensor has the wrong shape."""


class DtypeError(SpectralError, TypeError):
    """A tensor has a dtype that cannot be decomposed, or it is not a tensor at all."""


class DeviceError(SpectralError, RuntimeError):
    """Tensors that belong together lie on different devices."""


class OptionError(SpectralError, ValueError):
    """An option is out of its range, of the wrong kind, or clashes with another."""


class SymmetryError(SpectralError, ValueError):
    """A matrix is further from Hermitian than rounding explains."""


class NonFiniteError(SpectralError, ValueError):
    """A tensor holds NaN or Inf, or a result would overflow."""


class DefinitenessError(SpectralError, ValueError):
    """An eigenvalue lies outside the domain of the function that was asked for."""


class ConvergenceError(SpectralError, LinAlgError):
    """No solver of the fallback chain could decompose a finite matrix."""
