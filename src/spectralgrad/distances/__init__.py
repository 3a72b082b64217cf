"""Distances of sets of samples: Frechet's, and the canonical correlations of two views.

Both come down to a sum of singular values, whose gradient U V^H needs no gap. Samples are rows, (*B, N, d). All is computed
in float64, where the device has it, since both lose half of the digits in small directions; docs/distances.md derives it.
"""

from spectralgrad.distances.correlations import cca_loss
from spectralgrad.distances.frechet import frechet_distance, frechet_distance_of

__all__ = ["cca_loss", "frechet_distance", "frechet_distance_of"]
