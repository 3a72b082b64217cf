"""Orthogonality of the layer before a decomposition (ECCV22): of its weight, its gradient and its learning rate."""

from .convolution import OrthogonalConv2d
from .gradient import NearestOrthogonalGradient
from .loss import orthogonal_loss
from .rate import OptimalLearningRate
from .weight import orthogonal_weight, spectral_norm

__all__ = [
    "NearestOrthogonalGradient",
    "OptimalLearningRate",
    "OrthogonalConv2d",
    "orthogonal_loss",
    "orthogonal_weight",
    "spectral_norm",
]
