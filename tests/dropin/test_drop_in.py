"""`drop_in`: what is recognised is exact at ties, what is not is finite and said, what is torch's stays torch's."""

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

import spectralgrad as sg
from support import cases

Form = Callable[[Tensor, Tensor, Callable[[Tensor], Tensor]], Tensor]

# How V f(w) V^H is written by hand; each for batches, real and complex.
FORMS: dict[str, Form] = {
    "diag_embed": lambda w, V, f: V @ torch.diag_embed(f(w)).to(V.dtype) @ V.mH,
    "row": lambda w, V, f: (V * f(w)[..., None, :]) @ V.mH,
    "unsqueeze": lambda w, V, f: (V * f(w).unsqueeze(-2)) @ V.conj().transpose(-1, -2),
    "division": lambda w, V, f: (V / f(w).reciprocal().unsqueeze(-2)) @ V.adjoint(),
    "from the right": lambda w, V, f: V @ (f(w)[..., None] * V.mH),
    "halves": lambda w, V, f: (lambda half: half @ half.mH)(V * f(w).sqrt().unsqueeze(-2)),
    "matmul": lambda w, V, f: torch.matmul(V, torch.matmul(f(w).diag_embed().to(V.dtype), V.mH)),
    "einsum": lambda w, V, f: torch.einsum("...ij,...j,...kj->...ik", V, f(w).to(V.dtype), V.conj()),
    "multi_dot": lambda w, V, f: (
        torch.linalg.multi_dot([V, torch.diag(f(w)).to(V.dtype), V.mH])
        if V.ndim == 2
        else V @ f(w).diag_embed().to(V.dtype) @ V.mH
    ),
}
# M^(-1/2), in the ways that people write it; the last ones are not known in closed form.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "rsqrt": torch.rsqrt,
    "1 / sqrt": lambda w: 1 / w.sqrt(),
    "power": lambda w: w**-0.5,
    "clamp": lambda w: w.clamp(min=1e-9).sqrt().reciprocal(),
    "where": lambda w: torch.where(w > 1e-9, w.rsqrt(), torch.zeros_like(w)),
    "exp of log": lambda w: torch.exp(-torch.log(w) / 2),
}
SPECTRA = {
    "identity": torch.ones(4, dtype=torch.float64),
    "near": torch.tensor([1.0, 1 + 1e-9, 2, 2], dtype=torch.float64),
    "apart": torch.arange(1.0, 5, dtype=torch.float64),
    "graded": torch.tensor([1e-6, 1e-6, 1e-2, 1.0], dtype=torch.float64),
    "batch": torch.tensor([[2.0, 2, 2, 2], [1, 2, 3, 4]], dtype=torch.float64),
}


def hermitian(w: Tensor, dtype: torch.dtype) -> Tensor:
    Q = torch.linalg.qr(cases.random(4, 4, dtype=dtype, seed=3))[0]
    M = Q @ torch.diag_embed(w).to(dtype) @ Q.mH
    return (M + M.mH) / 2


def gradient(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.detach().clone().requires_grad_()
    y = f(x)
    return torch.autograd.grad(y, x, cases.random(*y.shape, dtype=y.dtype, seed=5))[0]


def close(a: Tensor, b: Tensor, tolerance: float = 1e-8) -> None:
    assert (a - b).abs().max() <= tolerance * b.abs().max()


def by_hand(form: Form, f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda M: form(*torch.linalg.eigh(M), f)


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=cases.ident)
def test_a_function_by_hand_is_recognised(spectrum: str, dtype: torch.dtype) -> None:
    """The reference is sg.inv_sqrtm, which other tests hold to mpmath; torch's own gradient is NaN at these ties."""
    M = hermitian(SPECTRA[spectrum], dtype)
    want = gradient(sg.inv_sqrtm, M)
    if spectrum == "identity":  # the negative control
        assert gradient(by_hand(FORMS["row"], torch.rsqrt), torch.eye(4, dtype=dtype)).isnan().any()
    with sg.drop_in():
        for form in FORMS.values():
            for f in FUNCTIONS.values():
                close(gradient(by_hand(form, f), M), want)


@pytest.mark.parametrize("spectrum", ["identity", "near", "batch"])
def test_svd_of_a_symmetric_matrix(spectrum: str) -> None:
    """kornia's and others' way: U f(S) U^T and V f(S) V^T of a covariance."""
    M = hermitian(SPECTRA[spectrum], torch.float64)
    want = gradient(sg.inv_sqrtm, M)

    def left(M: Tensor) -> Tensor:
        U, S, _ = torch.linalg.svd(M)
        return U @ torch.diag_embed(S.rsqrt()) @ U.mT

    def right(M: Tensor) -> Tensor:
        _, S, V = torch.svd(M)
        return (V * S.rsqrt().unsqueeze(-2)) @ V.mT

    with sg.drop_in():
        for f in (left, right):
            g = gradient(f, M)
            close((g + g.mT) / 2, want)


TALL = cases.random(4, 3, dtype=torch.float64, seed=1)
TIED = (
    torch.linalg.qr(TALL)[0]
    @ torch.diag(torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64))
    @ (torch.linalg.qr(cases.random(3, 3, dtype=torch.float64, seed=2))[0])
)
MATRICES = {"tall": TALL, "wide": TALL.mT.contiguous(), "tied": TIED, "tied, wide": TIED.mT.contiguous()}
OF_TRIPLETS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "U S^3 V^T": lambda U, S, Vh: U @ torch.diag_embed(S**3) @ Vh,
    "pinv": lambda U, S, Vh: (Vh.mT / S.unsqueeze(-2)) @ U.mT,
    "polar": lambda U, _, Vh: U @ Vh,
    "V log(S) V^T or U log(S) U^T": lambda U, S, Vh: (
        Vh.mT @ S.log().diag_embed() @ Vh if len(U) >= Vh.shape[-1] else U @ S.log().diag_embed() @ U.mT
    ),
}


@pytest.mark.parametrize("name", OF_TRIPLETS)
@pytest.mark.parametrize("matrix", MATRICES)
def test_functions_of_singular_values(matrix: str, name: str) -> None:
    @sg.drop_in()
    def f(A: Tensor) -> Tensor:
        return OF_TRIPLETS[name](*torch.linalg.svd(A, full_matrices=False))

    A = MATRICES[matrix].clone().requires_grad_()
    assert gradcheck(f, A)
    assert gradgradcheck(f, A, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "f"),
    [
        ((3, 4), lambda A: torch.linalg.svd(A)[2][-1] ** 2),
        ((2, 4), lambda A: (lambda N: N.mT @ N)(torch.linalg.svd(A)[2][2:])),
        ((5, 3), lambda A: (lambda N: N @ N.mT)(torch.linalg.svd(A)[0][:, 3:])),
    ],
    ids=["one null vector", "null space", "left null space"],
)
def test_null_vectors_have_gradients(shape: tuple[int, int], f: Callable[[Tensor], Tensor]) -> None:
    A = cases.random(*shape, dtype=torch.float64, seed=4).requires_grad_()
    assert not bool(gradient(f, A).any())  # torch's: zeros, without a word
    assert gradcheck(sg.drop_in()(f), A)
    assert gradgradcheck(sg.drop_in()(f), A, atol=1e-4)


def test_what_f_closes_over_gets_gradients() -> None:
    M = hermitian(SPECTRA["batch"], torch.float64)
    p = torch.tensor([[0.5], [-0.5]], dtype=torch.float64, requires_grad=True)  # one for each matrix

    @sg.drop_in()
    def f(M: Tensor, p: Tensor) -> Tensor:
        w, V = torch.linalg.eigh((M + M.mT) / 2)
        return (V * (w**p / w.sum(-1, keepdim=True)).unsqueeze(-2)) @ V.mT

    assert gradcheck(f, (M.requires_grad_(), p))
    assert gradgradcheck(f, (M, p), atol=1e-4)


def test_in_place_changes_are_followed_or_forgotten() -> None:
    M = hermitian(SPECTRA["near"], torch.float64)

    def clamped(M: Tensor) -> Tensor:
        w, V = torch.linalg.eigh(M)
        w = w.clone()
        w[w < 1.5] = 1.5
        w.sqrt_()
        return V @ w.diag_embed() @ V.mT

    def shifted(M: Tensor) -> Tensor:  # by numbers that differ from eigenvalue to eigenvalue: no function of the matrix
        w, V = torch.linalg.eigh(M)
        return V @ (w + torch.arange(4.0)).diag_embed() @ V.mT

    with sg.drop_in():
        close(gradient(clamped, M), gradient(lambda M: sg.sqrtm(M, floor=1.5), M))
    apart = hermitian(SPECTRA["apart"], torch.float64)
    with sg.drop_in():
        ours = gradient(shifted, apart)
    close(ours, (lambda g: (g + g.mT) / 2)(gradient(shifted, apart)))


def test_values_are_torchs_to_the_bit() -> None:
    A = cases.random(2, 4, 3, dtype=torch.float32, seed=6).requires_grad_()
    M = cases.random(2, 4, 4, dtype=torch.float32, seed=7).requires_grad_()  # not symmetric: one triangle is read
    calls: list[Callable[[], Any]] = [
        lambda: torch.linalg.eigh(M),
        lambda: torch.linalg.eigh(M, UPLO="U"),
        lambda: torch.linalg.eigvalsh(M),
        lambda: torch.linalg.svd(A),
        lambda: torch.linalg.svd(A, full_matrices=False),
        lambda: torch.linalg.svdvals(A),
        lambda: torch.svd(A),
        lambda: A.svd(some=False),
        lambda: torch.linalg.matrix_norm(A, 2),
        lambda: torch.linalg.norm(A, ord=-2, dim=(0, 2), keepdim=True),
    ]
    for call in calls:
        want = call()
        with sg.drop_in():
            got = call()
        assert type(got) is type(want)
        pairs = [(got, want)] if isinstance(want, Tensor) else list(zip(got, want, strict=True))
        assert all(torch.equal(a, b) and a.requires_grad for a, b in pairs)
    with sg.drop_in():
        nuclear = torch.linalg.matrix_norm(A, "nuc", dim=(1, 2), keepdim=True)
        assert torch.norm(A[0], p="nuc").ndim == 0
    torch.testing.assert_close(nuclear, torch.linalg.matrix_norm(A, "nuc", dim=(1, 2), keepdim=True))


def test_what_goes_to_torch_is_counted() -> None:
    sg.reset_counts()
    A = cases.random(3, 3, dtype=torch.float64, seed=8).requires_grad_()
    with sg.drop_in():
        torch.linalg.svdvals(A.detach())  # no gradient can be asked for
        assert sg.counts() == {}
        with pytest.raises(torch.linalg.LinAlgError):
            torch.linalg.eigh(torch.full((3, 3), torch.nan, requires_grad=True))
        with pytest.raises(torch.linalg.LinAlgError):
            torch.linalg.svd(torch.full((3, 3), torch.nan, requires_grad=True))
        with pytest.raises(RuntimeError, match="square"):
            torch.linalg.eigh(A[:2])
        torch.linalg.svd(torch.zeros(0, 3, requires_grad=True))
    assert sg.counts() == {"drop_in_to_torch": 2}


def entry(M: Tensor) -> Tensor:
    w, V = torch.linalg.eigh(M)
    return ((V * w.rsqrt()) @ V.mT)[0, 1]


def slope(f: Callable[[Tensor], Tensor] = entry) -> float:
    M = torch.eye(3, requires_grad=True)
    return float(torch.autograd.grad(f(M), M)[0][0, 1])


def test_what_is_not_recognised_is_said_once() -> None:
    def hidden(M: Tensor) -> Tensor:
        w, V = torch.linalg.eigh(M)
        half = torch.stack([V[:, i] * w[i].rsqrt() for i in range(3)], -1)  # column by column
        return (half @ V.mT)[0, 1]

    sg.reset_counts()
    with sg.drop_in(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert slope(hidden) != pytest.approx(-0.25)
        assert slope() == pytest.approx(-0.25)
        slope(lambda M: torch.linalg.eigh(M)[1].square().sum())  # which tied vectors do not change
    assert [str(x.message).split(" a gradient")[0].rpartition(":")[0] for x in caught] == [f"`drop_in`: at {__file__}"]
    assert sg.counts()["drop_in_unrecognised"] == 2


def test_gradient_chooses_the_rule_of_single_vectors() -> None:
    M = hermitian(torch.tensor([1.0, 1 + 1e-6, 2, 3], dtype=torch.float64), torch.float64)
    slopes = {}
    for rule in (None, sg.Clip(10.0), sg.Lorentzian()):
        with sg.drop_in(gradient=rule):
            slopes[rule] = gradient(lambda M: torch.linalg.eigh(M)[1][:, 0] ** 2, M)
    assert torch.equal(slopes[None], slopes[sg.Lorentzian()])
    assert not torch.allclose(slopes[None], slopes[sg.Clip(10.0)])
    with pytest.raises(sg.errors.OptionError, match="drop_in"):
        sg.drop_in(gradient="lorentzian")  # type: ignore[arg-type]


def test_nested_left_by_an_exception_and_in_threads() -> None:
    with sg.drop_in():
        with sg.drop_in(sg.Exact()):
            assert slope() == pytest.approx(-0.25)
        assert slope() == pytest.approx(-0.25)
    with pytest.raises(KeyError), sg.drop_in():
        raise KeyError
    assert slope() != slope()  # torch's NaN again
    found: list[float] = []
    here = threading.Barrier(2)

    def work() -> None:
        with sg.drop_in():
            here.wait()
            found.append(slope())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [pytest.approx(-0.25)] * 2
    context = sg.drop_in()
    with context, context:
        assert slope() == pytest.approx(-0.25)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_is_refused_outside_and_works_inside(reentrant: bool) -> None:
    M = torch.eye(3, requires_grad=True)
    with sg.drop_in(), pytest.raises(sg.errors.OptionError, match="checkpoint"):
        checkpoint(entry, M, use_reentrant=reentrant)
    checkpoint(sg.drop_in()(entry), M, use_reentrant=reentrant).backward()
    assert M.grad is not None
    assert M.grad[0, 1] == pytest.approx(-0.25)


def test_autocast() -> None:
    with sg.drop_in(), torch.autocast("cpu", torch.bfloat16):
        M = torch.eye(3, requires_grad=True)
        w, V = torch.linalg.eigh(M)
        Y = (V * w.rsqrt()) @ V.mT
        assert Y.dtype == torch.bfloat16  # as torch's product
        assert torch.autograd.grad(Y[0, 1], M)[0][0, 1] == -0.25
        half = torch.eye(3, dtype=torch.bfloat16, requires_grad=True)
        assert torch.autograd.grad(torch.linalg.eigvalsh(half).sum(), half)[0].dtype == torch.bfloat16


def test_transforms_of_torch_func() -> None:
    M = hermitian(SPECTRA["batch"], torch.float64)

    def f(M: Tensor) -> Tensor:
        w, V = torch.linalg.eigh(M)
        return ((V * w.log().unsqueeze(-2)) @ V.mT * torch.arange(16.0).view(4, 4)).sum()

    weights = torch.arange(16.0, dtype=torch.float64).view(4, 4)
    X = M.clone().requires_grad_()
    want = torch.autograd.grad((sg.logm(X) * weights).sum(), X)[0]
    with sg.drop_in():
        close(torch.func.vmap(torch.func.grad(f))(M), want)
        tangent = torch.func.jvp(f, (M[0],), (torch.eye(4, dtype=torch.float64),))[1]
        close(tangent, want[0].trace())
        assert torch.func.hessian(f)(M[0]).isfinite().all()


@pytest.mark.slow
def test_compiled_code_is_refused_at_once() -> None:
    compiled = torch.compile(entry)
    with sg.drop_in(), pytest.raises(Exception, match=r"torch\.compile"):
        slope(compiled)
