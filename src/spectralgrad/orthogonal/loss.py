"""The orthogonal loss (OL)."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from spectralgrad.errors import DtypeError, OptionError, ShapeError
from spectralgrad.linalg.homogeneous import Scales, homogeneous
from spectralgrad.linalg.precision import matmul
from spectralgrad.validation import as_matrix, require_dense

from .matrix_view import out_dim, to_matrix

__all__ = ["orthogonal_loss"]

Weight = Tensor | nn.Module


def orthogonal_loss(weights: Weight | Iterable[Weight]) -> Tensor:
    """How far weights are from orthogonal (OL): the sum of |W^T W - I|_F, not squared (ECCV22 eq. 12).

    Each weight is seen as W (out, in*kh*kw); of W^T W and W W^T the smaller one is taken, the only one that can be I. The
    gradient has norm 2 near an orthogonal W, however near; at one it is 0. The paper gives no factor: choose your own.

    Args:
        weights: a tensor, a module, which stands for its ``weight``, or any number of both. A tensor of more than two
            dimensions is a convolution's weight, not a batch.

    Returns:
        A scalar, in float32 for half precision. 0 for no weights.

    Raises:
        ShapeError, DtypeError: a weight is no matrix or not floating point.
        OptionError: a module has no ``weight``, or something is neither tensor nor module.

    >>> import torch, spectralgrad as sg
    >>> sg.orthogonal.orthogonal_loss([2 * torch.eye(3), torch.eye(4, 2)])  # |3 I|_F + 0
    tensor(5.1962)
    >>> conv = torch.nn.Conv2d(3, 64, 3)
    >>> (0.01 * sg.orthogonal.orthogonal_loss(conv)).backward()
    """
    if isinstance(weights, (Tensor, nn.Module)) and not isinstance(weights, (nn.ParameterList, nn.ModuleList)):
        weights = [weights]
    if not isinstance(weights, Iterable):
        raise OptionError(
            f"`orthogonal_loss`: `weights` must be tensors or modules, got {type(weights).__name__}. Pass a list of them."
        )
    terms = [_distance(_matrix(weight)) for weight in weights]
    return sum(terms[1:], terms[0]) if terms else torch.zeros(())


def _matrix(weight: Weight) -> Tensor:
    """W (out, in*kh*kw)."""
    who, dim = "orthogonal_loss", 0
    if isinstance(weight, nn.Module):
        found, dim = getattr(weight, "weight", None), out_dim(weight)
        if not isinstance(found, Tensor):
            raise OptionError(
                f"`{who}`: a module stands for its `weight`, but {type(weight).__name__} has none. Pass its layers, for "
                "example [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]."
            )
        weight = found
    if not isinstance(weight, Tensor):
        raise DtypeError(f"`{who}`: a weight must be a tensor or a module, got {type(weight).__name__}.")
    require_dense(who, weight, "weight")
    if weight.ndim < 2:
        raise ShapeError(
            f"`{who}`: a weight must have at least two dimensions, (out, in, ...), got shape {tuple(weight.shape)}. Leave "
            "out biases and the weights of normalisation layers."
        )
    return as_matrix(who, to_matrix(weight, dim), square=False, name="weight")


def _distance(W: Tensor) -> Tensor:
    """|W^H W - I|_F, or of the smaller W W^H; the largest number where it overflows."""
    if W.numel() == 0:
        return W.real.sum()
    (distance,) = homogeneous(_distance_from, [(W, 2)], _scales, watched=False)
    return distance


def _scales(k: Tensor) -> Scales:
    k = k.clamp(min=0)
    return Scales((k,), (2 * k,), (torch.exp2(-2 * k),))


def _distance_from(W: Tensor, square: Tensor | float = 1.0) -> tuple[Tensor]:
    """|W^H W - square I|_F (*B,), or of the smaller W W^H, for W (*B, m, n) and square (*B,)."""
    gram = matmul(W.mH, W) if W.shape[-2] >= W.shape[-1] else matmul(W, W.mH)
    square = square[..., None, None] if isinstance(square, Tensor) else square
    E = gram - square * gram.new_ones(gram.shape[-1]).diag_embed()  # of the kind of gram, which may be a DTensor
    # The root of a sum of squares has no derivative at 0, and the squares may underflow. Divided by the largest entry, a
    # constant again, the sum is at least 1, or exactly 0.
    largest = E.detach().abs().amax((-2, -1))
    off = largest != 0  # so that NaN stays NaN
    scale = torch.where(off, largest, 1)
    squares = (E / scale[..., None, None]).abs().square().sum((-2, -1))
    return (torch.where(off, scale * torch.where(off, squares, 1).sqrt(), 0),)
