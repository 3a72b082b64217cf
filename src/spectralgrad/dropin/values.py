"""torch's decompositions with their own values, to the bit, and our gradients.

The steps are those of `eigh`, `svd` and `nuclear_norm`; here torch's function gives the factors, fails as it fails, and its
conventions stay: which triangle is read, what `full_matrices` adds. Null vectors get a gradient. With A = U1 S V1^H and
orthonormal V2 beside V1, A V2 = 0 gives

    dV2 = -V1 S^-1 U1^H dA V2,   and by A^H:   dU2 = -U1 S^-1 V1^H dA^H U2,

up to a rotation of V2 or U2 in itself, which no loss may see but one of a single null vector, which has none.
"""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spectralgrad.context import in_batched_backward, may_read
from spectralgrad.counters import count
from spectralgrad.errors import LinAlgError
from spectralgrad.linalg.choices import AUTO
from spectralgrad.linalg.decomposition import Decomposition
from spectralgrad.linalg.eigh import _Eigh
from spectralgrad.linalg.node import Some
from spectralgrad.linalg.norms import _Schatten
from spectralgrad.linalg.precision import matmul, rounding_of
from spectralgrad.linalg.rules import Rule
from spectralgrad.linalg.rules.base import gaps, tied
from spectralgrad.linalg.solvers import decompose, decompose_svd
from spectralgrad.linalg.svd import _Svd, reciprocal_values

UNRECOGNISED = "drop_in_unrecognised"
_OWN = tuple(f"{name}." for name in ("torch", "spectralgrad"))


def caller() -> str:
    """«file:line» of the code that asked: the innermost frame that is neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(_OWN):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@dataclass(frozen=True, eq=False, kw_only=True)
class _Watched(Decomposition):
    """Counts where a gradient reaches tied vectors in a way that no rule can answer, and says so once for each place."""

    place: str
    said: set[str] = field(default_factory=set)
    seen: list[bool] = field(default_factory=list)  # a second pass may differentiate the first, in which all looks otherwise

    def pull(self, kept: Sequence[Tensor], grads: Some, needed: Sequence[bool]) -> Some:
        if not self.seen and all(may_read(x) and not in_batched_backward(x) for x in (*kept, *grads) if x is not None):
            self.seen.append(True)
            with torch.no_grad():
                lost = self.lost([x.detach() for x in kept], [None if g is None else g.detach() for g in grads])
            if lost:
                self._say(lost)
        return super().pull(kept, grads, needed)

    def lost(self, factors: Sequence[Tensor], cotangents: Some) -> int:
        """How many matrices of the batch have such a tie."""
        raise NotImplementedError

    def _say(self, matrices: int) -> None:
        count(UNRECOGNISED, matrices)
        if self.place in self.said:
            return
        self.said.add(self.place)
        warnings.warn(
            f"`drop_in`: at {self.place} a gradient reached vectors of tied values that no rule can make right, in "
            f"{matrices} matrices: single vectors of a tie, or a function of the matrix put together in a way that was not "
            "recognised. It is finite, and an approximation. Where the code may be changed, use sg.inv_sqrtm, sg.logm, "
            "sg.spectral_map, sg.projector. Said once for this place; sg.counts() has the number.",
            stacklevel=2,
        )


def _lost_in(S: Tensor, X: Tensor | None, size: Tensor, gS: Tensor | None) -> int:
    """Of X = V^H gV (*B, n, n): in a tie of ``S`` a skew part sees single vectors; a Hermitian one beside a gradient of the
    values is what V f(S) V^H leaves, where f' is lost."""
    if X is None or S.shape[-1] < 2 or not bool((close := _neighbours(S)).any()):
        return 0
    pair = tied(S, gaps(S)) & ~torch.eye(S.shape[-1], dtype=torch.bool, device=S.device)
    seen = (X - X.mH).abs() / 2
    if gS is not None:  # even zeros: at a diagonal matrix f' may stand off the diagonal alone
        seen = torch.maximum(seen, (X + X.mH).abs() / 2)
    return int((pair & (seen > size)).any(-1).any(-1).logical_and(close).sum())


def _neighbours(S: Tensor) -> Tensor:
    """Which spectra (*B, n) have a tie at all; a third of the time of all pairs."""
    least = max(S.shape[-1], 16) * torch.finfo(S.dtype).eps * S.abs().amax(-1)
    return S.diff(dim=-1).abs().amin(-1) <= least


@dataclass(frozen=True, eq=False, kw_only=True)
class Eigh(_Watched, _Eigh):
    """`torch.linalg.eigh(M, UPLO)`."""

    UPLO: str

    def value(self, M: Tensor) -> tuple[Tensor, Tensor]:
        try:
            w, V = torch.linalg.eigh(M, self.UPLO)
        except LinAlgError:
            if not bool(torch.isfinite(M).all()):
                raise
            strict = M.triu(1) if self.UPLO.upper() == "U" else M.tril(-1)
            H = strict + strict.mH + torch.diag_embed(M.diagonal(dim1=-2, dim2=-1).real).to(M.dtype)
            return decompose("drop_in", H, AUTO, 0.0)
        return w, V

    def lost(self, factors: Sequence[Tensor], cotangents: Some) -> int:
        (w, V), (gw, gV) = factors, cotangents
        return 0 if gV is None else _lost_in(w, matmul(V.mH, gV), rounding_of(gV), gw)


@dataclass(frozen=True, eq=False, kw_only=True)
class Svd(_Watched, _Svd):
    """`torch.linalg.svd(A, full)`: factors U (*B, m, m or k), S (*B, k), Vh (*B, n or k, n)."""

    full: bool = False

    def value(self, A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _triplets(A, self.full)

    def lost(self, factors: Sequence[Tensor], cotangents: Some) -> int:
        (U, S, V1h), (gU, gS, gVh) = (_reduced(x, factors[1].shape[-1]) for x in (factors, cotangents))
        assert U is not None
        assert S is not None
        assert V1h is not None
        given = [(B, g) for B, g in ((U, gU), (V1h.mH, None if gVh is None else gVh.mH)) if g is not None]
        X = sum((matmul(B.mH, g) for B, g in given[1:]), matmul(given[0][0].mH, given[0][1])) if given else None
        return 0 if X is None else _lost_in(S, X, rounding_of(*(g for _, g in given)), gS)

    def pullback(self, factors: Sequence[Tensor], cotangents: Some) -> tuple[Tensor]:
        U, S, Vh = factors
        k = S.shape[-1]
        first, grads = _reduced(factors, k), _reduced(cotangents, k)
        terms = [super().pullback(first, grads)[0]] if any(g is not None for g in grads) else []  # type: ignore[arg-type]
        (gU, _, gVh), inverse = cotangents, reciprocal_values(S)
        U1, _, V1h = first
        assert U1 is not None
        assert V1h is not None
        if gU is not None and U.shape[-1] > k:
            inner = matmul(gU[..., k:].mH, U1) * inverse.unsqueeze(-2)
            terms.append(-matmul(U[..., k:], matmul(inner, V1h)))
        if gVh is not None and Vh.shape[-2] > k:
            inner = inverse.unsqueeze(-1) * matmul(V1h, gVh[..., k:, :].mH)
            terms.append(-matmul(U1, matmul(inner, Vh[..., k:, :])))
        return (sum(terms[1:], terms[0]),)

    def pushforward(self, factors: Sequence[Tensor], directions: Some) -> tuple[Tensor, Tensor, Tensor]:
        (U, S, Vh), (dA,) = factors, directions
        k = S.shape[-1]
        U1, _, V1h = first = _reduced(factors, k)
        assert U1 is not None
        assert V1h is not None
        assert dA is not None
        dU, dS, dVh = super().pushforward(first, directions)  # type: ignore[arg-type]
        inverse = reciprocal_values(S)
        if U.shape[-1] > k:
            inner = inverse.unsqueeze(-1) * matmul(V1h, matmul(dA.mH, U[..., k:]))
            dU = torch.cat([dU, -matmul(U1, inner)], -1)
        if Vh.shape[-2] > k:
            inner = inverse.unsqueeze(-1) * matmul(U1.mH, matmul(dA, Vh[..., k:, :].mH))
            dVh = torch.cat([dVh, -matmul(V1h.mH, inner).mH], -2)
        return dU, dS, dVh


def _triplets(A: Tensor, full: bool) -> tuple[Tensor, Tensor, Tensor]:
    try:
        U, S, Vh = torch.linalg.svd(A, full)
    except LinAlgError:
        if full or not bool(torch.isfinite(A).all()):
            raise
        return decompose_svd("drop_in", A, AUTO, True)
    return U, S, Vh


def _reduced(factors: Some, k: int) -> Some:
    U, S, Vh = factors
    return None if U is None else U[..., :k], S, None if Vh is None else Vh[..., :k, :]


@dataclass(frozen=True)
class Nuclear(_Schatten):
    """Of a tall matrix, with torch's factors."""

    def factor(self, M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        U, S, Vh = _triplets(M, False)
        return S, U, Vh


def eigh_step(rule: Rule, UPLO: str, said: set[str]) -> Eigh:
    return Eigh("drop_in", rule, AUTO, UPLO=UPLO, place=caller(), said=said)


def svd_step(rule: Rule, full: bool, said: set[str]) -> Svd:
    return Svd("drop_in", rule, AUTO, full=full, place=caller(), said=said)


def nuclear_step() -> Any:
    return Nuclear("drop_in", 1.0)
