"""V f(w) V^H once its parts have met: one node with the exact gradient, on the factors that torch found.

eigh             V f(w) V^H is a function of M (spectral_map.py).
svd              U f(S) V^H is an odd function of A (singular_map.py), with f continued to negative numbers.
                 V f(S) V^H = f(P) with P = (A^H A)^(1/2) = A^H Q and Q = U V^H, A's polar factor. So its gradient goes
                 through P, whose eigenpairs are S and V, and through Q, which divides by sums of singular values alone.
                 U f(S) U^H is that of A^H.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import transforms_active
from spectralgrad.kernels.small_svd import Polar
from spectralgrad.linalg.calculus import Factors, evaluate
from spectralgrad.linalg.choices import AUTO
from spectralgrad.linalg.functions import Spectral
from spectralgrad.linalg.mapped import mapped
from spectralgrad.linalg.polar import BySVD
from spectralgrad.linalg.precision import hermitian_part, matmul
from spectralgrad.linalg.singular_map import _SingularBasis
from spectralgrad.linalg.spectral_map import _Eigenbasis

from .known import known
from .recorded import Call, Recorded

Side = Literal["V", "left", "right"]  # of `eigh`; U and V of `svd`


class Source(NamedTuple):
    """A decomposition: its matrix, with its graph, and its factors, without: w and V, or U, S and Vh, reduced."""

    M: Tensor
    factors: tuple[Tensor, ...]

    @property
    def spectrum(self) -> Tensor:
        return self.factors[0 if len(self.factors) == 2 else 1]


@dataclass(frozen=True, eq=False, kw_only=True)
class _FoundPairs(_Eigenbasis):
    found: Factors | None = None

    def factor(self, M: Tensor) -> Factors:
        return super().factor(M) if self.found is None else _copies(self.found)


@dataclass(frozen=True, eq=False, kw_only=True)
class _FoundTriplets(_SingularBasis):
    found: Factors | None = None

    def factor(self, M: Tensor) -> Factors:
        return super().factor(M) if self.found is None else _copies(self.found)


@dataclass(frozen=True, kw_only=True)
class _FoundPolar(BySVD):
    found: Factors | None = None

    def factors(self, A: Tensor, check: bool) -> Polar:
        if self.found is None:
            return super().factors(A, check)
        U, S, Vh = self.found
        return Polar(matmul(U, Vh), S.clone(), Vh.mH.clone())


@dataclass(frozen=True, eq=False, kw_only=True)
class _FoundFunction(Spectral):
    found: Factors

    def value(self, M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        w, V = _copies(self.found)
        y = self.scalar.f(self.scalar.clamp(w)[0])
        return matmul(V * y.unsqueeze(-2), V.mH), w, V


def _of_matrix(M: Tensor, function: Recorded, found: Factors | None) -> Tensor:
    """V f(w) V^H of a Hermitian ``M`` with these eigenpairs."""
    scalar = None if found is None else known(function.call, found[0])
    if scalar is not None and found is not None:
        return evaluate(_FoundFunction("drop_in", scalar, AUTO, found=found), M)
    return mapped(_FoundPairs("drop_in", function, AUTO, found=found), M)[0]


def _copies(factors: Factors) -> Factors:
    """A node's outputs are its own: torch marks them, and nobody else's may be marked."""
    return tuple(x.clone() for x in factors)


def whole(source: Source, left: Side, right: Side, call: Call | None) -> Tensor | None:
    """The matrix with ``call`` of the spectrum between a basis and the adjoint of another; None where that is not a function
    of the matrix. Without a call U V^H, the polar factor."""
    if call is None:
        return None if left == right else _polar(source, transposed=left == "right")
    function = Recorded(call=call, dimensions=source.spectrum.ndim)
    # Inside torch.func the node gets other tensors than were found here: it decomposes again.
    found = None if transforms_active() else source.factors
    if left == "V":
        return _of_matrix(source.M, function, found)
    A, m, n = source.M, *source.M.shape[-2:]
    triplets = None if found is None else (found[1], found[0], found[2])
    if left == right:
        if (m > n) if left == "left" else (n > m):
            return None  # f is not applied to what lies outside of this basis
        return _one_sided(A.mH, _turned(found), function) if left == "left" else _one_sided(A, found, function)
    odd = replace(function, odd=True)
    transposed = m < n
    if transposed:  # the frame is for tall matrices
        A, triplets = A.mH, None if found is None else (found[1], found[2].mH, found[0].mH)
    Y = mapped(_FoundTriplets("singular_map", odd, AUTO, found=triplets), A)[0]
    return Y if transposed == (left == "right") else Y.mH


def _polar(source: Source, transposed: bool) -> Tensor:
    A, found = source.M, None if transforms_active() else source.factors
    if A.shape[-2] < A.shape[-1]:
        A, found, transposed = A.mH, _turned(found), not transposed
    Q = evaluate(_FoundPolar("drop_in", AUTO, found=found), A)
    return Q.mH if transposed else Q


def _turned(factors: Factors | None) -> Factors | None:
    """Those of A^H."""
    return None if factors is None else (factors[2].mH, factors[1], factors[0].mH)


def _one_sided(A: Tensor, factors: Factors | None, function: Recorded) -> Tensor:
    """V f(S) V^H of a tall ``A``."""
    Q = evaluate(_FoundPolar("drop_in", AUTO, found=factors), A)
    P = hermitian_part(matmul(A.mH, Q))
    pairs = None if factors is None else (factors[1].flip(-1), factors[2].mH.flip(-1))
    return _of_matrix(P, function, pairs)


def in_torchs_dtype(Y: Tensor, *factors: Tensor) -> Tensor:
    """Y in the dtype that torch's product of these has, autocast included."""
    dtype = factors[0].dtype
    for x in factors[1:]:
        dtype = torch.promote_types(dtype, x.dtype)
    kind = Y.device.type
    if torch.is_autocast_enabled(kind) and dtype == torch.float32:
        dtype = torch.get_autocast_dtype(kind)
    return Y if Y.dtype == dtype else Y.to(dtype)
