"""Alignment: the nearest rotation of a matrix, and the rigid or similar motion between two clouds of points."""

from spectralgrad.align.clouds import Motion, Similarity, kabsch, umeyama
from spectralgrad.align.procrustes import procrustes

__all__ = ["Motion", "Similarity", "kabsch", "procrustes", "umeyama"]
