"""gradcheck, forward-mode gradcheck and gradgradcheck of every function with its exact gradient, at ties too."""

import math

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError

import spectralgrad as sg
from spectralgrad.linalg.elementary import InverseSqrt, Sqrt
from spectralgrad.linalg.scalars import Scalar
from support.cases import random, with_spectrum
from support.catalogue import definite, having
from support.marks import slow_but

MATRICES = {
    "separated": torch.tensor([0.7, 1.1, 2.3]),
    "identity": torch.ones(3) * 2,
    "repeated": torch.tensor([1.0, 2.0, 2.0]),
}
DTYPES = {"real": torch.float64, "complex": torch.complex128}
QUICK = ("sqrtm", "inv_sqrtm", "logm")  # complex and at a tie, without `make test-all`
OF_ANY = {
    "spectral_map",
    "singular_map",
}  # slower than the rest; quick below, in test_singular_map.py and test_transforms.py
FUNCTIONS = {  # exact at ties
    name: case.call
    for name, case in having(but=("of scale", "approximate", "real", "once")).items()
    if case.input is definite and not case.others(definite()) and not case.function.startswith(("eig", "projector"))
    if name not in ("sqrtm(Lorentzian)", "sqrtm(Clip)", "sqrtm(Analytic)", "sqrtm(steps)", "polar(steps)")
}
each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
each_matrix = pytest.mark.parametrize("w", MATRICES.values(), ids=MATRICES.keys())


def hermitian(M: Tensor) -> Tensor:
    return (M + M.mH) / 2


def weighed(found: Tensor | tuple[Tensor, ...]) -> Tensor:
    """One number, in which every entry has a weight: of all entries the second derivatives would be as many times more."""
    parts = (found,) if isinstance(found, Tensor) else found
    return sum((random(*x.shape, dtype=x.dtype, seed=9 + i) * x).sum() for i, x in enumerate(parts))


def check(f, *inputs: Tensor) -> None:
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    assert gradcheck(f, inputs, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(lambda *z: weighed(f(*z)), inputs, check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.covering(1)
@each_matrix
@pytest.mark.parametrize("f", slow_but(FUNCTIONS.keys() - OF_ANY, FUNCTIONS))
def test_spectral_functions(f, w):
    check(lambda M: f(hermitian(M)), with_spectrum(w.double()))


@pytest.mark.parametrize("w", slow_but(["repeated"], MATRICES))
@pytest.mark.parametrize("f", slow_but(QUICK, FUNCTIONS))
def test_complex_spectral_functions(f, w):
    check(lambda M: f(hermitian(M)), with_spectrum(w.double(), dtype=torch.complex128))


@pytest.mark.parametrize("dtype", slow_but(["real"], DTYPES))
@pytest.mark.parametrize("cut", [{"rank": 1}, {"rank": 2}, {"energy": 0.5}], ids=str)
@pytest.mark.parametrize("w", [[0.5, 1.0, 2.0], [0.5, 0.5, 2.0], [0.5, 2.0, 2.0]], ids=str)
def test_projector(w, cut, dtype):
    if (cut.get("rank") == 2 and w[0] == w[1]) or (cut.get("rank") == 1 and w[1] == w[2]):
        pytest.skip("a tie across the cut: the projector has no derivative")
    M = with_spectrum(torch.tensor(w, dtype=torch.float64), dtype=dtype)
    check(lambda M: sg.projector(hermitian(M), gradient=sg.Exact(), **cut), M)


@pytest.mark.covering(1)
@each_dtype
@pytest.mark.parametrize("rule", [sg.Exact(), sg.Lorentzian(rtol=1e-9)], ids=str)
def test_eigh(rule, dtype):
    def f(M: Tensor) -> tuple[Tensor, ...]:
        w, V = sg.eigh(hermitian(M), gradient=rule)
        return w, V.abs().square(), V @ (V.mH * w.unsqueeze(-1) ** 2)  # none depends on the phases

    check(f, with_spectrum(torch.tensor([0.7, 1.1, 2.3], dtype=torch.float64), dtype=dtype))


@each_dtype
def test_eigh_with_exact_rule_at_a_tie(dtype):
    """A loss that sees the tied vectors only through their span, here by its complement and the trace."""
    M = with_spectrum(torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64), dtype=dtype, seed=5)
    G = hermitian(random(3, 3, dtype=dtype, seed=2))

    def loss(M: Tensor) -> Tensor:
        w, V = sg.eigh(hermitian(M), gradient=sg.Exact())
        P = V[:, 1:] @ V[:, 1:].mH
        return (P * G.conj()).sum().real + (w[0] - w[1:].sum()) ** 2

    X = M.clone().requires_grad_()
    (got,) = torch.autograd.grad(loss(X), X)
    P = torch.linalg.eigh(M)[1][:, :1]
    P = P @ P.mH  # on the simple eigenvector; P + Q = I
    Q = torch.eye(3, dtype=dtype) - P
    expected = (P @ G @ Q + Q @ G @ P) / (2 - 1) + 2 * (1 - 4) * (P - Q)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


PAIRS = {"apart": with_spectrum(torch.tensor([0.7, 2.3], dtype=torch.float64)), "tie": 2 * torch.eye(2, dtype=torch.float64)}


@pytest.mark.parametrize("M", slow_but(["apart"], PAIRS))  # at a tie, and quick: test_singular_map.py
def test_tensors_that_f_closes_over(M):
    p = torch.tensor(0.7, dtype=torch.float64)

    def f(M: Tensor, p: Tensor) -> Tensor:
        return sg.spectral_map(hermitian(M), lambda x: x**p + torch.sin(p * x))

    check(f, M, p)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, 2.0, 3.0])
def test_powers_of_a_singular_matrix(alpha):
    """From alpha = 1 on the derivative exists at zero, and is exact there."""
    M = with_spectrum(torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64))
    X = M.clone().requires_grad_()
    G = hermitian(random(3, 3, seed=4))
    (got,) = torch.autograd.grad((sg.powm(X, alpha) * G).sum(), X)
    assert got.isfinite().all()
    whole = {1.0: G, 2.0: M @ G + G @ M, 3.0: M @ M @ G + M @ G @ M + G @ M @ M}
    if alpha in whole:
        torch.testing.assert_close(got, whole[alpha], rtol=1e-9, atol=1e-12)


MADE_OF = {
    "apart": random(4, 2, seed=1),
    "tie": torch.linalg.qr(random(4, 2, seed=2))[0],
    "rank 1": random(4, 1, seed=3),
    "complex": random(4, 2, dtype=torch.complex128, seed=4),
}


@pytest.mark.parametrize("X", MADE_OF.values(), ids=MADE_OF)
@pytest.mark.parametrize("alpha", [0.5, 0.3, 1.5])
def test_second_derivatives_by_what_a_singular_matrix_is_made_of(alpha, X):
    """X X^H of low rank: its powers are X (X^H X)^(alpha - 1) X^H, smooth in X, whatever they are in X X^H itself."""

    def of(X: Tensor) -> Tensor:
        return sg.powm(hermitian(X @ X.mH), alpha)

    def smooth(X: Tensor) -> Tensor:
        return X @ sg.powm(hermitian(X.mH @ X), alpha - 1) @ X.mH

    check(of, X)
    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    E, C = random(*X.shape, dtype=X.dtype, seed=5), random(*X.shape, dtype=X.dtype, seed=6)

    def acceleration(f) -> Tensor:
        def speed(t: Tensor) -> Tensor:
            return torch.func.jvp(lambda t: f(X + t * E + t * t * C), (t,), (one,))[1]

        return torch.func.jvp(speed, (zero,), (one,))[1]

    torch.testing.assert_close(acceleration(of), acceleration(smooth), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-8, 1e8, 1e-120, 1e120])
def test_second_derivatives_of_singular_matrices_at_any_scale(scale):
    """The Hessian of a root of X X^T is of degree -1 in X, and float32 has its digits."""

    X, G = MADE_OF["apart"], random(4, 4, seed=7)

    def hessian(X: Tensor) -> Tensor:
        return torch.func.hessian(lambda X: (G.to(X.dtype) * sg.sqrtm(X @ X.mT)).sum())(X)

    expected = torch.func.hessian(lambda X: (G * (X @ sg.inv_sqrtm(X.mT @ X) @ X.mT)).sum())(X)
    torch.testing.assert_close(scale * hessian(scale * X), expected, rtol=1e-10, atol=1e-10)
    if 1e-9 < scale < 1e9:
        torch.testing.assert_close((scale * hessian((scale * X).float())).double(), expected, rtol=1e-4, atol=1e-4)


def test_third_derivatives_are_refused():
    M = 2 * torch.eye(2, dtype=torch.float64).requires_grad_()
    (g,) = torch.autograd.grad(sg.sqrtm(M).pow(3).sum(), M, create_graph=True)
    (h,) = torch.autograd.grad(g.pow(2).sum(), M, create_graph=True)
    with pytest.raises(NotImplementedError, match="not third"):
        torch.autograd.grad(h.sum(), M)


@pytest.mark.parametrize("floor", [None, 0.5, 1.5])
def test_floor_clamps_value_and_derivative(floor):
    w = torch.tensor([0.1, 1.0, 2.0], dtype=torch.float64)
    M = torch.diag(w).requires_grad_()
    out = sg.sqrtm(M, floor=floor)
    clamped = w if floor is None else w.clamp(min=floor)
    torch.testing.assert_close(out, torch.diag(clamped.sqrt()))
    out.diagonal().sum().backward()
    slope = torch.where(clamped > w, 0, 0.5 * w.rsqrt())
    torch.testing.assert_close(M.grad.diagonal(), slope)
    E = torch.zeros(3, 3, dtype=torch.float64)
    E[0, 2] = E[2, 0] = 1
    (_, tangent) = torch.func.jvp(lambda M: sg.sqrtm(M, floor=floor), (M.detach(),), (E,))
    torch.testing.assert_close(tangent[0, 2], (clamped[2].sqrt() - clamped[0].sqrt()) / (w[2] - w[0]))


FLOORED = {  # with the same for mpmath, and whether it is a function on the whole line
    "sqrtm": (sg.sqrtm, mpmath.sqrt, False),
    "inv_sqrtm": (sg.inv_sqrtm, lambda x: 1 / mpmath.sqrt(x), False),
    "powm(-1.7)": (lambda M, floor: sg.powm(M, -1.7, floor=floor), lambda x: x ** mpmath.mpf(-1.7), False),
    "powm(2.2)": (lambda M, floor: sg.powm(M, 2.2, floor=floor), lambda x: x ** mpmath.mpf(2.2), False),
    "logm": (sg.logm, mpmath.log, False),
    "expm": (sg.expm, mpmath.exp, True),
    "spectral_map": (lambda M, floor: sg.spectral_map(M, torch.exp, floor=floor), mpmath.exp, True),
}


def clamped_difference(f, floor, *points):
    """The divided difference of f(max(x, floor)), with derivatives 0 below it, in 60 digits."""
    x, order = sorted(map(mpmath.mpf, points)), len(points) - 1
    with mpmath.workdps(60):
        if x[0] < x[-1]:
            return (clamped_difference(f, floor, *x[1:]) - clamped_difference(f, floor, *x[:-1])) / (x[-1] - x[0])
        if x[0] >= floor:
            return mpmath.diff(f, x[0], order) / math.factorial(order)
        return f(mpmath.mpf(floor)) if order == 0 else mpmath.mpf(0)


@pytest.mark.parametrize("w", [[0.1, 0.3, 1, 2], [0.6, 0.6 + 1e-9, 0.6 + 2e-9, 2], [0.2, 0.6, 0.6, 0.6 + 1e-12]], ids=str)
@pytest.mark.parametrize("name", FLOORED)
def test_second_derivatives_with_a_floor(name, w):
    """Of a diagonal matrix, whose eigenvectors are the axes. Near zero no gap is small relative to the eigenvalues."""
    function, f, anywhere = FLOORED[name]
    floor, w = (-0.1, [x - 0.6 for x in w]) if anywhere else (0.5, w)
    n = range(len(w))
    X, Y = (random(4, 4, seed=seed) for seed in (1, 2))
    X, Y = X + X.mT, Y + Y.mT
    second = [[[float(clamped_difference(f, floor, w[i], w[k], w[j])) for j in n] for k in n] for i in n]
    want = torch.einsum("ikj,ik,kj->ij", torch.tensor(second, dtype=torch.float64), X, Y)
    M = torch.diag(torch.tensor(w, dtype=torch.float64)).requires_grad_()
    (first,) = torch.autograd.grad(function(M, floor=floor), M, X, create_graph=True)
    (got,) = torch.autograd.grad(first, M, Y)
    torch.testing.assert_close(got, want + want.mT, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("w", [[0, 0, 1, 2], [0, 0.5, 1, 2], [0, 0, 0, 1], [0.5, 0.5, 1, 2], [0, 0, 0, 0]], ids=str)
@pytest.mark.parametrize("scalar", [Sqrt(), InverseSqrt()], ids=["sqrt", "inverse sqrt"])
def test_closed_second_differences_are_those_of_the_quotients(scalar, w, dtype):
    """Where zeros are clamped to rounding too, with derivative 0: there the closed forms do not hold as they are."""
    w = torch.tensor(w, dtype=torch.float64)
    X, Y = (hermitian(random(4, 4, dtype=dtype, seed=seed)) for seed in (1, 2))
    got, want = scalar.contract(w, X, Y), Scalar.contract(scalar, w, X, Y)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0)
    assert got.isfinite().all()


def test_negative_control():
    """A wrong gradient is caught: Clip with a low threshold."""
    M = with_spectrum(torch.tensor([0.7, 0.71, 2.3], dtype=torch.float64)).requires_grad_()
    with pytest.raises(GradcheckError):
        gradcheck(lambda M: sg.sqrtm(hermitian(M), gradient=sg.Clip(0.5)), M)
