"""A weight of any shape as a matrix (out, in*kh*kw); a transposed convolution keeps its outputs in dimension 1."""

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd


def out_dim(module: nn.Module) -> int:
    """Which dimension of the weight of ``module`` counts its outputs."""
    return 1 if isinstance(module, _ConvTransposeNd) else 0


def to_matrix(weight: Tensor, dim: int = 0) -> Tensor:
    """The weight as a matrix (out, in*kh*kw) with the outputs taken from dimension ``dim``."""
    return weight.movedim(dim, 0).flatten(1)


def to_weight(matrix: Tensor, shape: torch.Size, dim: int) -> Tensor:
    """The inverse of `to_matrix`."""
    moved = [shape[dim], *shape[:dim], *shape[dim + 1 :]]
    return matrix.reshape(moved).movedim(0, dim)
