"""What the layers on positive definite matrices ask of their input."""

import torch
from torch import Tensor

from spectralgrad.errors import DtypeError, ShapeError
from spectralgrad.validation import as_matrix, checking, is_transformed, require_finite


def as_matrices(who: str, input: Tensor, n: int, option: str, dtype: torch.dtype) -> Tensor:
    """(*B, n, n) in a dtype to compute in, or the error that says why not."""
    X = as_matrix(who, input, square=True, name="input")
    if X.shape[-1] != n:
        raise ShapeError(f"`{who}`: `input` must be (*batch, {n}, {n}), as {option} says, got shape {tuple(input.shape)}.")
    wanted = torch.promote_types(dtype, torch.float32)
    if X.real.dtype != wanted:
        raise DtypeError(
            f"`{who}`: `input` must have the precision of the layer, {dtype}, got {input.dtype}. Convert one of them with "
            ".to()."
        )
    if checking(X) and not is_transformed(X):
        require_finite(who, X.detach(), "input")
    return X
