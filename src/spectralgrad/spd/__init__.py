"""Geometry of symmetric (Hermitian) positive definite matrices: distances, geodesics, means and parallel transport."""

from .distance import distance
from .geodesic import geodesic
from .mean import mean
from .transport import transport

__all__ = ["distance", "geodesic", "mean", "transport"]
