"""Geometry of symmetric (Hermitian) positive definite matrices: distances, geodesics, means and parallel transport."""

from .distance import distance
from .geodesic import geodesic
from .maps import exp_map, log_map
from .mean import mean
from .transport import transport

__all__ = ["distance", "exp_map", "geodesic", "log_map", "mean", "transport"]
