"""Weights of spectral norm 1 (SN) and orthogonal weights (OW), as torch parametrizations.

A weight of any shape is seen as a matrix (out, in*kh*kw); a transposed convolution keeps its outputs in dimension 1.

Exponential. For A (m, k), m >= k, filled up with zero columns, S = A - A^T is the skew matrix

    S = [[T, -B^T], [B, 0]],     T = A_1 - A_1^T (k, k),   B = A_2 (m - k, k),

and exp(S) [I; 0], its first k columns, are orthonormal. The part of an m x m skew matrix that A leaves out only turns the
columns that are dropped. Where m > 2k there is no need for an m x m exponential: write exp(tS) [I; 0] = [X; B Y]. Then
X' = T X - B^T B Y and Y' = X, so that with any c > 0

    [X; c Y] = exp([[T, -B^T B / c], [c I, 0]]) [I; 0],

2k x 2k, and smooth in B^T B: no QR or SVD of B, whose derivatives would fail at B = 0. c only balances the two blocks.

`torch.matrix_exp` takes them. `linalg.expm` is for Hermitian matrices and real exponents: of i S it would give exp(i S).
The derivative of matrix_exp is a block-triangular exponential, which knows no gaps either.

Rotation to start from. For any V (m, k) without zero columns, with the upper triangular M = striu(V^T V) + diag(V^T V)/2,

    H = I - V M^-1 V^T is orthogonal, since M + M^T = V^T V,

the product of the k reflections at the columns of V. So H stays orthogonal when V is rounded, to bfloat16 even.
"""

from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

from spectralgrad.errors import DtypeError, OptionError, ShapeError
from spectralgrad.linalg.eigh import eigh
from spectralgrad.linalg.polar import polar
from spectralgrad.linalg.precision import matmul
from spectralgrad.validation import as_given, as_matrix, checking, require_finite

__all__ = ["orthogonal_weight", "spectral_norm"]

Layer = TypeVar("Layer", bound=nn.Module)


def out_dim(module: nn.Module) -> int:
    """Which dimension of the weight of ``module`` counts its outputs."""
    return 1 if isinstance(module, _ConvTransposeNd) else 0


def rows(weight: Tensor, dim: int = 0) -> Tensor:
    """The weight as a matrix (out, in*kh*kw) with the outputs taken from dimension ``dim``."""
    return weight.movedim(dim, 0).flatten(1)


def unrows(matrix: Tensor, shape: torch.Size, dim: int) -> Tensor:
    """The inverse of `rows`."""
    moved = [shape[dim], *shape[:dim], *shape[dim + 1 :]]
    return matrix.reshape(moved).movedim(0, dim)


def _exponential(A: Tensor) -> Tensor:
    """exp([A 0] - [A 0]^T) [I; 0], (m, k), for A (m, k), m >= k."""
    m, k = A.shape
    top, below = A[:k], A[k:]
    skew = top - top.mT
    if m == k:
        return torch.matrix_exp(skew)
    if m <= 2 * k:
        S = torch.cat([torch.cat([skew, -below.mT], 1), torch.cat([below, A.new_zeros(m - k, m - k)], 1)])
        return torch.matrix_exp(S)[:, :k]
    size = below.detach().square().mean().sqrt() * (m - k) ** 0.5  # root mean square of the singular values
    c = torch.where(size > 0, size, 1)
    gram = matmul(below.mT, below)
    identity = torch.eye(k, dtype=A.dtype, device=A.device)
    S = torch.cat([torch.cat([skew, -gram / c], 1), torch.cat([identity * c, torch.zeros_like(gram)], 1)])
    X, cY = torch.matrix_exp(S)[:, :k].split(k)
    return torch.cat([X, matmul(below / c, cY)])


def _rotate(V: Tensor, X: Tensor) -> Tensor:
    """H X for V (m, k), X (m, p)."""
    gram = matmul(V.mT, V)
    M = gram.triu(1) + torch.diag(gram.diagonal() / 2)
    return X - matmul(V, torch.linalg.solve_triangular(M, matmul(V.mT, X), upper=True))


def _reflectors(Q: Tensor) -> Tensor:
    """V (m, k) such that `_reflect` maps [I; 0] to ``Q`` (m, k), whose columns are orthonormal.

    Householder's QR of Q gives H [I; 0] = Q up to the signs of the columns. H does not depend on the signs of the columns
    of V, so those carry them: on the diagonal, which is 1 otherwise.
    """
    start = torch.eye(*Q.shape, dtype=Q.dtype, device=Q.device)
    V = torch.geqrf(Q)[0].tril(-1) + start
    return V * (Q * _rotate(V, start)).sum(0).sign()


def _reflect(V: Tensor, X: Tensor) -> Tensor:
    """H X times the signs on the diagonal of V: orthonormal columns stay so."""
    return _rotate(V, X) * V.diagonal().sign()


class SpectralNorm(nn.Module):
    """W / s_max(W); see `spectral_norm`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, weight: Tensor) -> Tensor:
        W = as_matrix("spectral_norm", rows(weight, self.dim), square=False, name="weight")
        # s_max^2 is the largest eigenvalue of the smaller Gram matrix. Squaring blurs small singular values, not the
        # largest, and eigh is many times faster than an SVD. With entries up to 1 nothing over- or underflows, and the
        # eigenvalue is at least 1, or exactly 0. Its gradient v v^T needs no gap.
        size = W.detach().abs().amax()
        W = W / torch.where(size > 0, size, 1)
        X = W.to(torch.promote_types(W.dtype, torch.float64))  # the same rounding whatever the flags for float32 say
        gram = matmul(X.mH, X) if X.shape[0] >= X.shape[1] else matmul(X, X.mH)
        square = eigh(gram.to(W.dtype))[0][-1]
        W = W / torch.where(square > 0, square, 1).sqrt()
        return as_given(unrows(W, weight.shape, self.dim), weight)

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class OrthogonalWeight(nn.Module):
    """Q_0 exp(A - A^T) with A = 0 at the start, or exp(A - A^T) alone; see `orthogonal_weight`."""

    base: Tensor | None

    def __init__(self, weight: Tensor, dim: int, keep: bool) -> None:
        super().__init__()
        self.dim = dim
        start = torch.eye(*self._tall(weight).shape, dtype=weight.dtype, device=weight.device)  # until `right_inverse`
        self.register_buffer("base", start if keep else None)

    def _tall(self, weight: Tensor) -> Tensor:
        """(m, k) with m >= k, in float64: there W^T W = I costs nothing, and the cast back costs one rounding."""
        W = rows(weight, self.dim).to(torch.float64)
        return W if W.shape[0] >= W.shape[1] else W.mT

    def forward(self, original: Tensor) -> Tensor:
        W = _exponential(self._tall(original))
        if self.base is not None:
            W = _reflect(self.base.to(torch.float64), W)
        out = original.shape[self.dim]
        return unrows(W if out == W.shape[0] else W.mT, original.shape, self.dim).to(original.dtype)

    def right_inverse(self, weight: Tensor) -> Tensor:
        if self.base is None:
            return weight
        if not weight.is_meta:  # no values there, and no geqrf
            self.base = _reflectors(polar(self._tall(weight))).to(weight.dtype)
        return torch.zeros_like(weight)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, keep={self.base is not None}"


def _weight_of(who: str, module: nn.Module, name: str) -> Tensor:
    """The tensor to parametrize, or the error that says why not."""
    if not isinstance(module, nn.Module):
        raise OptionError(f"`{who}`: `module` must be a torch.nn.Module, got {type(module).__name__}. Pass the layer.")
    weight = getattr(module, name, None) if isinstance(name, str) else None
    if not isinstance(weight, Tensor):
        raise OptionError(
            f"`{who}`: {type(module).__name__} has no parameter called {name!r}. Pass the layer that holds the weight."
        )
    if is_lazy(weight):
        raise OptionError(f"`{who}`: `{name}` has no shape yet. Run the module once, then attach.")
    if weight.ndim < 2 or weight.numel() == 0:
        raise ShapeError(
            f"`{who}`: `{name}` must have at least two dimensions, (out, in, ...), none of them 0, got shape "
            f"{tuple(weight.shape)}."
        )
    if checking(weight):
        require_finite(who, weight, name)
    if is_parametrized(module, name):
        _require_free(who, name, list(module.parametrizations[name]))  # type: ignore[index]
    return weight


def _require_free(who: str, name: str, present: list[nn.Module]) -> None:
    """SN may follow a parametrization that is not ours; OW could not keep the weight and comes first."""
    if who == "spectral_norm" and not any(isinstance(p, SpectralNorm | OrthogonalWeight) for p in present):
        return
    raise OptionError(
        f"`{who}`: `{name}` already has {', '.join(type(p).__name__ for p in present)} attached. Call "
        f"torch.nn.utils.parametrize.remove_parametrizations(module, {name!r}) first."
    )


def spectral_norm(module: Layer, name: str = "weight") -> Layer:
    """Divide a weight by its largest singular value (SN): W / s_max(W) (ECCV22 eq. 11).

    The singular value is exact in every pass, training or not, by an eigendecomposition: there is no state to carry along
    and nothing that has to converge, as in power iteration. A zero weight stays zero.

    Args:
        module: a layer; changed in place.
        name: its parameter, seen as (out, in*kh*kw).

    Returns:
        The same module. `torch.nn.utils.parametrize.remove_parametrizations` takes the treatment off.

    Raises:
        OptionError: no such parameter, or a treatment is attached to it already; nothing has changed then.
        ShapeError, DtypeError, NonFiniteError: the weight is no matrix, not floating point, not finite.

    >>> conv = spectral_norm(torch.nn.Conv2d(3, 64, 3))
    >>> torch.linalg.matrix_norm(conv.weight.flatten(1), ord=2).round(decimals=5)
    tensor(1., grad_fn=<RoundBackward1>)
    """
    weight = _weight_of("spectral_norm", module, name)
    treatment = SpectralNorm(out_dim(module))
    with torch.no_grad():
        treatment(weight)  # raises here what it would raise there: registering sets the parameter before it checks
    register_parametrization(module, name, treatment)
    return module


def orthogonal_weight(module: Layer, name: str = "weight", *, keep: bool = True) -> Layer:
    """Make a weight orthogonal by the exponential of a skew matrix (OW): exp(A - A^T) (ECCV22 eq. 13).

    With m x k the shape of the weight as (out, in*kh*kw), transposed if wide, the parameter A (m, k), filled up with zero
    columns to (m, m), gives

        W = Q_0 exp(A - A^T) [I; 0],      W^T W = I,

    the first k columns. Q_0 is constant and A starts at 0, so that W starts at the polar factor of the present weight, the
    orthogonal matrix nearest to it. The optimizer holds A, in the shape of the weight: weight decay, `orthogonal.
    NearestOrthogonalGradient` and `orthogonal.OptimalLearningRate` act on A, not on W.

    Args:
        module: a layer; changed in place.
        name: its parameter, real.
        keep: False is the paper's form: Q_0 = I, and A starts as the present weight, which is not kept.

    Returns:
        The same module. `torch.nn.utils.parametrize.remove_parametrizations` takes the treatment off.

    Raises:
        OptionError: no such parameter, or it is parametrized already; nothing has changed then.
        ShapeError, DtypeError, NonFiniteError: the weight is no matrix, not real, not finite.

    >>> conv = orthogonal_weight(torch.nn.Conv2d(3, 64, 3))
    >>> W = conv.weight.flatten(1)  # (64, 27)
    >>> bool((W.T @ W - torch.eye(27)).abs().max() < 1e-6)
    True
    """
    weight = _weight_of("orthogonal_weight", module, name)
    if not weight.is_floating_point():
        raise DtypeError(f"`orthogonal_weight`: `{name}` must be real and floating point, got {weight.dtype}.")
    treatment = OrthogonalWeight(weight.detach(), out_dim(module), keep)
    register_parametrization(module, name, treatment)
    return module
