"""What the layers on positive definite matrices ask of their input."""

import torch
from torch import Tensor

from spectralgrad.context import is_transformed
from spectralgrad.errors import DtypeError, ShapeError
from spectralgrad.linalg.precision import hermitian_part
from spectralgrad.validation import as_matrix, asymmetry_tolerance, require_hermitian


def as_matrices(who: str, input: Tensor, n: int, option: str, dtype: torch.dtype) -> Tensor:
    """(*B, n, n) in a dtype to compute in, or the error that says why not."""
    X = require_symmetric(who, input)
    if X.shape[-1] != n:
        raise ShapeError(f"`{who}`: `input` must be (*batch, {n}, {n}), as {option} says, got shape {tuple(input.shape)}.")
    wanted = torch.promote_types(dtype, torch.float32)
    if X.real.dtype != wanted:
        raise DtypeError(
            f"`{who}`: `input` must have the precision of the layer, {dtype}, got {input.dtype}. Convert one of them with "
            ".to()."
        )
    return X


def require_symmetric(who: str, input: Tensor) -> Tensor:
    """`as_matrix`, or the error, which names `input`, that says why these are no finite Hermitian matrices."""
    X = as_matrix(who, input, square=True, name="input")
    tolerance = asymmetry_tolerance(input)
    if tolerance is not None and not is_transformed(X) and X.numel():
        M = X.detach()
        require_hermitian(who, M, hermitian_part(M), tolerance, "input")
    return X
