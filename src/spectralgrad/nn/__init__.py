"""Layers for networks: whitening, denoising, covariance pooling, colouring, SPD matrices; conversion, and fusion."""

from . import functional
from .bimap import BiMap
from .coloring import WhitenColor2d
from .convert import convert_batchnorm
from .decorrelation import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, DecorrelatedBatchNorm3d
from .denoise import PCADenoise1d, PCADenoise2d
from .eigenvalues import LogEig, ReEig
from .fuse import fuse
from .pooling import CovariancePool2d
from .spd_batchnorm import SPDBatchNorm

__all__ = [
    "BiMap",
    "CovariancePool2d",
    "DecorrelatedBatchNorm1d",
    "DecorrelatedBatchNorm2d",
    "DecorrelatedBatchNorm3d",
    "LogEig",
    "PCADenoise1d",
    "PCADenoise2d",
    "ReEig",
    "SPDBatchNorm",
    "WhitenColor2d",
    "convert_batchnorm",
    "functional",
    "fuse",
]
