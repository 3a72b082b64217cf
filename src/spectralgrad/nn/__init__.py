"""Layers for networks: whitening, denoising, covariance pooling, colouring."""

from . import functional
from .coloring import WhitenColor2d
from .decorrelation import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, DecorrelatedBatchNorm3d
from .denoise import PCADenoise1d, PCADenoise2d
from .pooling import CovariancePool2d

__all__ = [
    "CovariancePool2d",
    "DecorrelatedBatchNorm1d",
    "DecorrelatedBatchNorm2d",
    "DecorrelatedBatchNorm3d",
    "PCADenoise1d",
    "PCADenoise2d",
    "WhitenColor2d",
    "functional",
]
