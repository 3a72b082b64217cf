"""Layers for networks: whitening and denoising by batch statistics."""

from .decorrelation import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, DecorrelatedBatchNorm3d
from .denoise import PCADenoise1d, PCADenoise2d

__all__ = [
    "DecorrelatedBatchNorm1d",
    "DecorrelatedBatchNorm2d",
    "DecorrelatedBatchNorm3d",
    "PCADenoise1d",
    "PCADenoise2d",
]
