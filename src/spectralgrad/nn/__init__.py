"""Layers for networks: whitening, denoising, covariance pooling, colouring; conversion from batch norm, and fusion."""

from . import functional
from .coloring import WhitenColor2d
from .convert import convert_batchnorm
from .decorrelation import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, DecorrelatedBatchNorm3d
from .denoise import PCADenoise1d, PCADenoise2d
from .fuse import fuse
from .pooling import CovariancePool2d

__all__ = [
    "CovariancePool2d",
    "DecorrelatedBatchNorm1d",
    "DecorrelatedBatchNorm2d",
    "DecorrelatedBatchNorm3d",
    "PCADenoise1d",
    "PCADenoise2d",
    "WhitenColor2d",
    "convert_batchnorm",
    "functional",
    "fuse",
]
