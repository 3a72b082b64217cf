"""U f(S) V^H for an odd smooth elementwise f, with exact gradients for A and for the tensors that f closes over.

An odd function of singular values is the off-diagonal block of f([[0, A], [A^H, 0]]), a Hermitian matrix whose
eigenvalues are s, -s and zeros. So all differences are those of f at {s_i, -s_i, 0}, finite at ties and at zero. For A
tall, D = U^H E V with Hermitian part H and skew part W, and O = (I - U U^H) E V,

    D1[E] = (U (f[s_i, s_j] H_ij + f[s_i, -s_j] W_ij) + O diag(f[s_j, 0])) V^H.

The second derivative follows from the second differences of that matrix (docs/svd.md):

    D2[X, Y] = (U (P + P^H + Q - Q^H) + O_X R_Y + O_Y R_X) V^H
    P_ij = sum_k f[s_i, s_k, s_j] HX_ik HY_kj - f[s_i, -s_k, s_j] WX_ik WY_kj + f[s_i, 0, s_j] (O_X^H O_Y)_ij / 2
    Q_ij = sum_k f[s_i, s_k, -s_j] HX_ik WY_kj + f[-s_i, s_k, s_j] WX_ik HY_kj + f[s_i, 0, -s_j] (O_X^H O_Y)_ij / 2
    R_ij = f[s_i, 0, s_j] H_ij + f[s_i, 0, -s_j] W_ij.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from spectralgrad.context import checking, is_transformed
from spectralgrad.errors import OptionError
from spectralgrad.validation import adjoint, as_matrix, returned_adjoint

from .calculus import Factors
from .choices import AUTO, for_svd
from .elementwise import Elementwise
from .mapped import Frame, mapped
from .precision import hermitian_part, matmul
from .scaling import exponent, shifted
from .solvers import Solver, decompose_svd

__all__ = ["singular_map"]


def singular_map(A: Tensor, f: Callable[[Tensor], Tensor], *, solver: Solver = AUTO) -> Tensor:
    """U diag(f(s)) V^H for an odd smooth elementwise function f of torch operations, with its exact gradient.

    f is called with singular values and their negatives, in several shapes and in float64 too, also between them; it must
    act on each number alone. Tensors that it closes over get gradients, second ones included.

    Args:
        A: (*B, m, n), real or complex, any shape. Half precision is computed in float32.
        f: the function, f(-x) = -f(x), such as torch.tanh or x / (1 + x * x).
        solver: `Auto()`, `Lapack()` or `SVD()`, as in `svd`.

    Returns:
        (*B, m, n).

    Raises:
        OptionError: f is not odd, or f(0) is not 0 (for 1/x use `pinv`, for sign(x) `polar`); or it does not act on each
            number alone, as far as two of them show it.
        NonFiniteError: f gives NaN or Inf for a singular value, or A holds one.
        ShapeError: f changes the shape.
        DtypeError, ConvergenceError.

    >>> import torch, spectralgrad as sg
    >>> t = torch.tensor(0.5, requires_grad=True)
    >>> A = torch.tensor([[0.0, 3.0], [3.0, 0.0]], requires_grad=True)  # a tie
    >>> sg.singular_map(A, lambda x: x**3 * t).sum().backward()
    >>> A.grad, t.grad
    (tensor([[13.5000, 13.5000],
            [13.5000, 13.5000]]), tensor(54.))
    """
    if not callable(f):
        raise OptionError(f"`singular_map`: f must be a function of a tensor, got {f!r}.")
    X = as_matrix("singular_map", A, square=False, name="A")
    choice = for_svd("singular_map", None, solver)
    if X.shape[-2] < X.shape[-1]:
        return returned_adjoint(singular_map(adjoint("singular_map", A), f, solver=solver))
    tolerance = 0.0 if checking(A) else None
    function = Elementwise(function=f)
    Y, S = mapped(_SingularBasis("singular_map", function, choice.solver, tolerance=tolerance), X)
    if tolerance is not None and not is_transformed(Y):
        _require_odd(function, S.detach())
    return Y if X is A else Y.to(A.dtype)


def _require_odd(function: Elementwise, S: Tensor) -> None:
    """Raise unless f(-s) = -f(s) and f(0) = 0, to the square root of eps of the largest |f(s)|."""
    with torch.no_grad():
        at_zero = function.f(S.new_zeros(1))
        forth, back = function.f(S), function.f(-S)
        size = forth.abs().amax() if S.numel() else at_zero.abs()
        off = (forth + back).abs()
        allowed = torch.finfo(S.dtype).eps ** 0.5 * size
    if S.numel() and not bool((at_zero.abs() <= allowed).all()):
        raise OptionError(
            f"`singular_map`: f must be odd, so that f(0) = 0, but it is {float(at_zero):.6g} there. For 1/x use `pinv`, "
            "for sign(x) use `polar`; for a function of A^H A use `spectral_map`."
        )
    if S.numel() and not bool((off <= allowed).all()):
        where = int(off.nan_to_num(nan=torch.inf).argmax())
        s, up, down = (float(x.flatten()[where]) for x in (S, forth, back))
        raise OptionError(
            f"`singular_map`: f must be odd, f(-x) = -f(x), but f({s:.6g}) = {up:.6g} and f(-{s:.6g}) = {down:.6g}. Write "
            "it as torch.sign(x) * g(x.abs()), or, for a function of A^H A, use `spectral_map`."
        )


class Split(NamedTuple):
    """E (*B, m, n), tall, in the singular basis: U^H E V = hermitian + skew (*B, n, n), outside = (I - U U^H) E V."""

    hermitian: Tensor
    skew: Tensor
    outside: Tensor | None  # (*B, m, n); None for a square matrix


def split(U: Tensor, Vh: Tensor, E: Tensor) -> Split:
    EV = matmul(E, Vh.mH)
    D = matmul(U.mH, EV)
    H = hermitian_part(D)
    return Split(H, D - H, EV - matmul(U, D) if U.shape[-2] > U.shape[-1] else None)


def join(U: Tensor, Vh: Tensor, inner: Tensor, outside: Tensor | None) -> Tensor:
    """(U inner + outside) V^H."""
    left = matmul(U, inner)
    return matmul(left if outside is None else left + outside, Vh)


def points(S: Tensor) -> Tensor:
    """-s, 0, s, ascending (*B, 2k + 1), of descending singular values (*B, k)."""
    return torch.cat([-S, torch.zeros_like(S[..., :1]), S.flip(-1)], -1)


@dataclass(frozen=True)
class _SingularBasis(Frame):
    """Factors: S (*B, n), U (*B, m, n), the handle, and Vh (*B, n, n). Differences L (*B, n, 2n + 1), in float64: f[s_i, .]
    at s_j, at -s_j and at 0."""

    solver: Solver

    count = 3

    def factor(self, M: Tensor) -> Factors:
        U, S, Vh = decompose_svd(self.who, M, self.solver, self.tolerance is not None)
        return S, U, Vh

    def matrix(self, factors: Factors, y: Tensor) -> Tensor:
        _, U, Vh = factors
        return matmul(U * y.unsqueeze(-2), Vh)

    def diagonal(self, factors: Factors, G: Tensor) -> Tensor:
        _, U, Vh = factors
        return (U.conj() * matmul(G, Vh.mH)).sum(-2).real.clone()

    def differences(self, spectrum: Tensor) -> Tensor:
        others = torch.cat([spectrum, -spectrum, torch.zeros_like(spectrum[..., :1])], -1)
        return self.function.wide_difference(spectrum.unsqueeze(-1), others.unsqueeze(-2))

    def weigh(self, factors: Factors, L: Tensor, E: Tensor) -> Tensor:
        if E.numel() == 0:
            return torch.zeros_like(E)
        S, U, Vh = factors
        n, scale, size = S.shape[-1], exponent(L), exponent(E)
        L = shifted(L, -scale).to(S.dtype)
        X = split(U, Vh, shifted(E, -size))
        inner = L[..., :n] * X.hermitian + L[..., n:-1] * X.skew
        return shifted(join(U, Vh, inner, None if X.outside is None else X.outside * L[..., -1].unsqueeze(-2)), scale + size)

    def products(self, factors: Factors, E: Tensor, G: Tensor) -> Tensor:
        S, U, Vh = factors
        X, Y = split(U, Vh, E), split(U, Vh, G)
        last = torch.zeros_like(S)
        if X.outside is not None and Y.outside is not None:
            last = (X.outside.conj() * Y.outside).real.sum(-2)
        parts = ((X.hermitian.conj() * Y.hermitian).real, (X.skew.conj() * Y.skew).real, last.unsqueeze(-1))
        return torch.cat(parts, -1).double()

    def second(self, factors: Factors, E1: Tensor, E2: Tensor) -> Tensor:
        if E1.numel() == 0:
            return torch.zeros_like(E1)
        S, U, Vh = factors
        sizes = exponent(E1), exponent(E2)
        X, Y = (split(U, Vh, shifted(E, -size)) for E, size in zip((E1, E2), sizes, strict=True))
        (T, N), scale = self._second_differences(S)

        # (*B, i, k, j), summed by hand: einsum is a matrix product, and those may be in lower precision
        P = _sum(T[0], X.hermitian, Y.hermitian) - _sum(T[1], X.skew, Y.skew)
        Q = _sum(T[1].mT, X.hermitian, Y.skew) + _sum(T[1].transpose(-3, -2), X.skew, Y.hermitian)
        outside = None
        if X.outside is not None and Y.outside is not None:
            C = matmul(X.outside.mH, Y.outside) / 2
            P, Q = P + N[0] * C, Q + N[1] * C
            RX, RY = (N[0] * Z.hermitian + N[1] * Z.skew for Z in (X, Y))
            outside = matmul(X.outside, RY) + matmul(Y.outside, RX)
        return shifted(join(U, Vh, P + P.mH + Q - Q.mH, outside), scale + sizes[0] + sizes[1])

    def _second_differences(self, S: Tensor) -> tuple[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]], Tensor]:
        """f[s_i, s_k, s_j] and f[s_i, -s_k, s_j] (*B, i, k, j), f[s_i, 0, s_j] and f[s_i, 0, -s_j] (*B, i, j), all times
        2^-scale; and the scale (*B,)."""
        n, x = S.shape[-1], points(S)
        minus = torch.arange(n, device=S.device)  # where -s_i stands in x; s_i stands at 2n - i, and 0 at n
        plus, zero = 2 * n - minus, torch.full_like(minus[:1], n)

        triples = [(plus, plus, plus), (plus, minus, plus), (plus, zero, plus), (plus, zero, minus)]
        index = [torch.cartesian_prod(*each) for each in triples]  # all in one list: f'' is evaluated often enough
        found = self.function.second_differences(x, *torch.cat(index).unbind(-1))
        scale = exponent(found, 1)
        parts = shifted(found, -scale).to(S.dtype).split([len(each) for each in index], -1)
        cubes = (parts[0].unflatten(-1, (n, n, n)), parts[1].unflatten(-1, (n, n, n)))
        return (cubes, (parts[2].unflatten(-1, (n, n)), parts[3].unflatten(-1, (n, n)))), scale


def _sum(T: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    """sum_k T_ikj X_ik Y_kj."""
    return (T * X.unsqueeze(-1) * Y.unsqueeze(-3)).sum(-2)
