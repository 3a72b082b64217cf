"""`eigsh`: the pairs, whatever the matrix and however it is given, and their gradient against full decompositions."""

import warnings
from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor

import spectralgrad as sg

WHICH = ("LA", "SA", "LM")
WAYS = ("dense", "coo", "csr", "map")
N, K = 200, 4  # large enough for the iteration


def rotated(values: Tensor, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """A dense Hermitian matrix with these eigenvalues."""
    n = len(values)
    Q = torch.linalg.qr(torch.randn(n, n, dtype=dtype, generator=torch.Generator().manual_seed(seed)))[0]
    A = (Q * values.to(dtype)) @ Q.mH
    return (A + A.mH) / 2


def spectrum(*first: float, n: int = N) -> Tensor:
    """These values, and the others between -0.9 and 0.9."""
    return torch.cat(
        [torch.tensor(first, dtype=torch.float64), torch.linspace(-0.9, 0.9, n - len(first), dtype=torch.float64)]
    )


def given(A: Tensor, way: str) -> tuple[Tensor | sg.LinearMap, Tensor]:
    """The matrix as `eigsh` takes it, and the tensor that gets the gradient."""
    leaf = A.clone().requires_grad_()
    if way == "map":
        return sg.LinearMap(lambda X: (leaf + leaf.mH) @ X / 2, tuple(A.shape), dtype=A.dtype), leaf
    if way == "dense":
        return leaf, leaf
    leaf = (A.to_sparse() if way == "coo" else A.to_sparse_csr()).requires_grad_()
    return leaf, leaf


def picked(w: Tensor, k: int, which: str) -> Tensor:
    key = w.abs() if which == "LM" else w if which == "LA" else -w
    return key.argsort(descending=True)[:k].sort()[0]


def of_the_space(k: int, n: int, dtype: torch.dtype = torch.float64) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss on the values and on the space of the vectors."""
    C = torch.randn(n, n, dtype=dtype, generator=torch.Generator().manual_seed(9))
    return lambda w, V: (V @ V.mH * C).sum().real + (w * w).sum()


def of_each(k: int, n: int, dtype: torch.dtype = torch.float64) -> Callable[[Tensor, Tensor], Tensor]:
    C = torch.randn(n, n, dtype=dtype, generator=torch.Generator().manual_seed(9))
    return lambda w, V: ((V * torch.arange(1, k + 1).to(V)) @ V.mH * C).sum().real + (w**3).sum()


def exact(A: Tensor, k: int, which: str, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The gradient by a full decomposition in float64, with `Exact`."""
    wide = A.detach().to(torch.complex128 if A.is_complex() else torch.float64).requires_grad_()
    w, V = sg.eigh(wide, gradient=sg.Exact())
    inside = picked(w.detach(), k, which)
    return torch.autograd.grad(loss(w[inside], V[:, inside]), wide)[0]


def error(x: Tensor, y: Tensor) -> float:
    return float((x.to_dense() - y).abs().max() / y.abs().max())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128], ids=str)
def test_pairs_and_gradient(way: str, which: str, dtype: torch.dtype) -> None:
    A = rotated(spectrum(2, 1.7, 1.5, 1.2, -1.8, -1.6, -1.3, -1.1), dtype=dtype)
    X, leaf = given(A, way)
    w, V = sg.eigsh(X, K, which=which)  # type: ignore[arg-type]
    eps = torch.finfo(dtype).eps
    full = torch.linalg.eigvalsh(A)
    assert (w - full[picked(full, K, which)]).abs().max() < 100 * eps
    assert torch.linalg.vector_norm(A @ V - V * w, dim=0).max() < 1000 * eps
    loss = of_each(K, N, torch.complex128 if A.is_complex() else torch.float64)
    wide = loss(w.double(), V.to(torch.complex128 if A.is_complex() else torch.float64))
    (g,) = torch.autograd.grad(wide, leaf)
    assert g.layout == leaf.layout
    assert error(g, exact(A, K, which, loss)) < (1e-4 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("way", WAYS)
def test_half_precision_is_computed_in_float32(way: str) -> None:
    A = torch.diag(spectrum(8, 4, 2)).to(torch.bfloat16)
    if way == "map":
        with pytest.raises(sg.errors.DtypeError, match="LinearMap"):
            sg.LinearMap(lambda X: X, (N, N), dtype=torch.bfloat16)
        return
    X = A if way == "dense" else A.float().to_sparse().to(torch.bfloat16)
    w, _ = sg.eigsh(X, 3)
    assert w.dtype == torch.bfloat16
    assert w.tolist() == [2, 4, 8]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("way", ["dense", "coo"])
def test_ties_inside(way: str, seed: int) -> None:
    """Multiplicities up to k are found, and a loss on their space has the gradient of the full decomposition."""
    A = rotated(spectrum(2, 2, 2, 1.5, 1.5, 1.2), seed)
    X, leaf = given(A, way)
    w, V = sg.eigsh(X, 5, gradient=sg.Exact())
    torch.testing.assert_close(w, torch.tensor([1.5, 1.5, 2, 2, 2], dtype=torch.float64))
    loss = of_the_space(5, N)
    assert error(torch.autograd.grad(loss(w, V), leaf)[0], exact(A, 5, "LA", loss)) < 1e-8


def test_more_equal_values_than_a_block_has_columns() -> None:
    A = rotated(spectrum(*[2.0] * 12)).to_sparse()
    w, V = sg.eigsh(A, 12)  # in blocks of 6
    torch.testing.assert_close(w, torch.full((12,), 2.0, dtype=torch.float64))
    torch.testing.assert_close(V.mT @ V, torch.eye(12, dtype=torch.float64))


@pytest.mark.parametrize("rule", [sg.Lorentzian(), sg.Exact(), sg.Clip(10.0)], ids=str)
def test_a_tie_across_the_cut_is_bounded_counted_and_said(rule: sg.Rule) -> None:
    A = rotated(spectrum(2, 1.5, 1.5, 1.5)).requires_grad_()
    sg.reset_counts()
    with pytest.warns(UserWarning, match="value 2 ties with value 3"):
        _, V = sg.eigsh(A, 2, gradient=rule)
    assert sg.counts() == {"tie_across_cut": 1}
    (g,) = torch.autograd.grad(V.pow(3).sum(), A)
    bound = {sg.Lorentzian(): 1e8, sg.Exact(): 1e3, sg.Clip(10.0): 1e2}[rule]
    assert g.isfinite().all()
    assert g.abs().max() < bound
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sg.eigsh(A, 4)


@pytest.mark.parametrize("n", [1, 5, N])
@pytest.mark.parametrize("make", [torch.zeros, lambda n, _, dtype: torch.eye(n, dtype=dtype)], ids=["zero", "identity"])
@pytest.mark.parametrize("way", WAYS)
def test_zero_and_identity(make: Callable[..., Tensor], n: int, way: str) -> None:
    A = make(n, n, dtype=torch.float64)
    for k in {1, min(3, n), n}:
        X, leaf = given(A, way)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            w, V = sg.eigsh(X, k)
        torch.testing.assert_close(w, A.diagonal()[:k])
        torch.testing.assert_close(V.mT @ V, torch.eye(k, dtype=torch.float64))
        (g,) = torch.autograd.grad((V**3).sum() + w.sum(), leaf)
        assert g.to_dense().isfinite().all()


def test_low_rank() -> None:
    A = rotated(torch.cat([torch.tensor([3.0, 2.0]), torch.zeros(N - 2)]).double())
    torch.testing.assert_close(sg.eigsh(A, 5)[0], torch.tensor([0, 0, 0, 2, 3.0]).double(), atol=1e-13, rtol=0)


@pytest.mark.parametrize("scale", [1e-8, 1e8, 1e-150, 1e150])
def test_any_scale(scale: float) -> None:
    A = rotated(spectrum(2, 1.5, 1.2))
    X, Y = A.clone().requires_grad_(), (A * scale).requires_grad_()
    loss = of_the_space(2, N)
    (gX,), (gY,) = (torch.autograd.grad(loss(0 * w, V), Z) for Z in (X, Y) for w, V in [sg.eigsh(Z, 2)])
    assert error(gY * scale, gX) < 1e-9


STARTS = {
    "orthogonal": lambda V: V[:, -9:-6],  # eigenvectors, of other values
    "random": lambda _: torch.randn(N, 2, dtype=torch.float64),
    "zero": lambda _: torch.zeros(N, 3, dtype=torch.float64),
    "NaN": lambda _: torch.full((N, 1), torch.nan),
    "equal": lambda _: torch.ones(N, 5, dtype=torch.float64),
}


@pytest.mark.parametrize("bad", STARTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_a_bad_start_costs_time_alone(bad: str, dtype: torch.dtype, way: str) -> None:
    A = rotated(spectrum(2, 2, 2, 1.5))
    start = STARTS[bad](torch.linalg.eigh(A)[1])
    w, _ = sg.eigsh(given(A.to(dtype), way)[0], 3, start=start)
    torch.testing.assert_close(w.detach(), torch.full((3,), 2.0, dtype=dtype))


def test_a_good_start_takes_fewer_products() -> None:
    products = [0, 0]
    A = rotated(torch.linspace(0, 1, 600, dtype=torch.float64) ** 3)
    B = A + 1e-7 * rotated(torch.linspace(-1, 1, 600, dtype=torch.float64), seed=1)

    def counting(i: int) -> sg.LinearMap:
        def product(X: Tensor) -> Tensor:
            products[i] += X.shape[-1]
            return B @ X

        return sg.LinearMap(product, (600, 600), dtype=torch.float64)

    V = sg.eigsh(A, 4)[1]
    w = sg.eigsh(counting(0), 4)[0]
    torch.testing.assert_close(sg.eigsh(counting(1), 4, start=V)[0], w)
    assert products[1] < 0.7 * products[0]


def test_two_runs_agree_and_leave_the_generator_alone() -> None:
    A = rotated(spectrum(2, 2, 1.5)).to_sparse()
    state = torch.get_rng_state()
    first, second = sg.eigsh(A, 3), sg.eigsh(A, 3)
    assert torch.equal(first[1], second[1])
    assert torch.equal(state, torch.get_rng_state())


def test_batches_vmap_and_half_of_them_converge_at_once() -> None:
    A = torch.stack([rotated(spectrum(2, 1.5, 1.2), seed) for seed in range(3)]).reshape(3, 1, N, N)
    w, V = sg.eigsh(A, 2)
    torch.testing.assert_close(torch.linalg.vector_norm(A @ V - V * w.unsqueeze(-2), dim=-2), torch.zeros(3, 1, 2).double())

    def loss(M: Tensor) -> Tensor:
        return (sg.eigsh(M, 2)[1] ** 4).sum()

    one = torch.stack([torch.func.grad(loss)(M) for M in A[:, 0]])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(A[:, 0]), one)
    assert sg.eigsh(A[:0], 2)[1].shape == (0, 1, N, 2)


@pytest.mark.parametrize("n", [7, 60])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_second_derivatives_and_forward_mode(n: int, dtype: torch.dtype) -> None:
    A, B, C = (rotated(torch.randn(n, dtype=torch.float64), seed, dtype) for seed in range(3))

    def f(t: Tensor) -> Tensor:
        w, V = sg.eigsh(A + t[0] * B + t[1] * C, 2, gradient=sg.Exact())
        return ((V * w) @ V.mH * C).sum().real + (w**3).sum()

    t = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(f, t, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, t)
    torch.testing.assert_close(torch.func.hessian(f)(t.detach()), torch.autograd.functional.hessian(f, t))


@pytest.mark.parametrize("way", ["coo", "csr", "map"])
def test_second_derivatives_of_others_are_refused(way: str) -> None:
    X, leaf = given(rotated(spectrum(2, 1.5)), way)
    with pytest.raises(NotImplementedError, match="dense"):
        torch.autograd.grad(sg.eigsh(X, 1)[1].pow(4).sum(), leaf, create_graph=True)


def test_against_mpmath() -> None:
    """dw and the derivative of a space at n = 30, with a tie inside, by differences of 40 digits."""
    n, k = 30, 3
    A, E = rotated(spectrum(2, 2, 1.5, 1.1, n=n)), rotated(torch.linspace(-1, 1, n, dtype=torch.float64), seed=1)
    C = rotated(torch.linspace(-1, 2, n, dtype=torch.float64), seed=2)
    leaf = A.clone().requires_grad_()
    w, V = sg.eigsh(leaf, k, gradient=sg.Exact())
    (g,) = torch.autograd.grad((V @ V.mT * C).sum() + w.square().sum(), leaf)
    with mpmath.workdps(40):
        a, e, c = (mpmath.matrix(x.tolist()) for x in (A, E, C))

        def value(t: mpmath.mpf) -> mpmath.mpf:
            values, vectors = mpmath.eigsy(a + t * e)
            inside = vectors[:, n - k :]
            return sum((inside.T * c * inside)[i, i] for i in range(k)) + sum(values[n - k + i] ** 2 for i in range(k))

        h = mpmath.mpf(10) ** -10
        slope = float((value(h) - value(-h)) / (2 * h))
    assert abs(float((g * E).sum()) - slope) < 1e-8 * abs(slope)


def test_memory_of_a_sparse_gradient_is_that_of_its_entries() -> None:
    """n = 30,000: anything n x n would take 7 GB."""
    n = 30_000
    index = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    x = torch.linspace(1, 2, n - 1, dtype=torch.float64).pow(8).requires_grad_()
    A = torch.sparse_coo_tensor(torch.cat([index, index.flip(0)], 1), torch.cat([x, x]), (n, n), check_invariants=False)
    w, V = sg.eigsh(A, 2)
    (w.sum() + V[-100:].pow(4).sum()).backward()
    assert x.grad is not None
    step = torch.zeros_like(x)
    step[-3] = 1e-4

    def loss(values: Tensor) -> float:
        M = torch.sparse_coo_tensor(
            torch.cat([index, index.flip(0)], 1), torch.cat([values, values]), (n, n), check_invariants=False
        )
        w, V = sg.eigsh(M, 2)
        return float(w.sum() + V[-100:].pow(4).sum())

    with torch.no_grad():
        slope = (loss(x + step) - loss(x - step)) / 2e-4
    assert abs(float(x.grad[-3]) - slope) < 1e-6


BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "k = 0": (lambda: sg.eigsh(torch.eye(3), 0), sg.errors.OptionError, "from 1 to 3.*got 0"),
    "k > n": (lambda: sg.eigsh(torch.eye(3), 4), sg.errors.OptionError, "from 1 to 3.*got 4"),
    "which": (lambda: sg.eigsh(torch.eye(3), 1, which="BE"), sg.errors.OptionError, "LM"),  # type: ignore[arg-type]
    "tol": (lambda: sg.eigsh(torch.eye(3), 1, tol=0.0), sg.errors.OptionError, "tol"),
    "steps": (lambda: sg.eigsh(torch.eye(3), 1, steps=0), sg.errors.OptionError, "steps"),
    "no rule": (lambda: sg.eigsh(torch.eye(3), 1, gradient=sg.PowerIteration()), sg.errors.OptionError, "must be a rule"),
    "start": (lambda: sg.eigsh(torch.eye(3), 1, start=torch.eye(2)), sg.errors.ShapeError, r"\(\*B, 3, p\)"),
    "start of a kind": (lambda: sg.eigsh(torch.eye(3), 1, start=1), sg.errors.DtypeError, "got int"),  # type: ignore[arg-type]
    "not square": (lambda: sg.eigsh(torch.ones(3, 4), 1), sg.errors.ShapeError, "svds"),
    "not Hermitian": (lambda: sg.eigsh(torch.ones(N, N).triu(), 1), sg.errors.SymmetryError, "random"),
    "not Hermitian, small": (lambda: sg.eigsh(torch.ones(4, 4).triu(), 1), sg.errors.SymmetryError, "random"),
    "sparse, not Hermitian": (lambda: sg.eigsh(torch.ones(9, 9).triu().to_sparse(), 1), sg.errors.SymmetryError, "random"),
    "NaN": (lambda: sg.eigsh(torch.full((N, N), torch.nan), 1), sg.errors.NonFiniteError, "NaN"),
    "sparse NaN": (lambda: sg.eigsh(torch.full((3, 3), torch.inf).to_sparse(), 1), sg.errors.NonFiniteError, "Inf"),
    "layout": (lambda: sg.eigsh(torch.eye(4).to_sparse_csc(), 1), sg.errors.DtypeError, "to_sparse_csr"),
    "sparse batch": (lambda: sg.eigsh(torch.ones(2, 3, 3).to_sparse(), 1), sg.errors.ShapeError, "Loop over"),
    "whole numbers": (lambda: sg.eigsh(torch.eye(4).long().to_sparse(), 1), sg.errors.DtypeError, "double"),
    "no tensor": (lambda: sg.eigsh([[1.0]], 1), sg.errors.DtypeError, "got list"),  # type: ignore[arg-type]
    "shape of a map": (lambda: sg.LinearMap(lambda X: X, (3,)), sg.errors.OptionError, r"\(m, n\)"),  # type: ignore[arg-type]
    "no product": (lambda: sg.LinearMap(1, (3, 3)), sg.errors.OptionError, "matmul must be"),  # type: ignore[arg-type]
    "answer's shape": (lambda: sg.eigsh(sg.LinearMap(lambda X: X[:-1], (N, N)), 1), sg.errors.ShapeError, "must return"),
    "answer's dtype": (lambda: sg.eigsh(sg.LinearMap(lambda X: X.double(), (N, N)), 1), sg.errors.DtypeError, "must return"),
    "answer's NaN": (lambda: sg.eigsh(sg.LinearMap(lambda X: X / 0, (N, N)), 1), sg.errors.NonFiniteError, "must return"),
    "out of steps": (
        lambda: sg.eigsh(rotated(torch.linspace(0, 1, 500).double()), 3, steps=3),
        sg.errors.ConvergenceError,
        r"of 3 have converged to tol=.* residuals .*steps=",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    call, kind, words = BAD[case]
    with pytest.raises(kind, match=words):
        call()


def test_tol_and_steps_change_the_result() -> None:
    A = rotated(torch.linspace(0, 1, 500, dtype=torch.float64))
    w, V = sg.eigsh(A, 3, tol=1e-3)
    rough = torch.linalg.vector_norm(A @ V - V * w, dim=0).max()
    assert 1e-10 < rough < 1e-3
    w, V = sg.eigsh(A, 3)
    assert torch.linalg.vector_norm(A @ V - V * w, dim=0).max() < 1e-12
