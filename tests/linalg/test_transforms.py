"""torch.func, torch.compile and autocast on every public function, each transform alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import spectralgrad as sg
from support.cases import FUNCTIONS, RULES, generator, random, random_covariance
from support.marks import slow_but
from support.tracing import IGNORED, assert_linear, assert_recorded, assert_shapes_alone, with_gradient

torch.set_num_threads(1)


def compose(w: Tensor, V: Tensor, Uh: Tensor | None = None) -> Tensor:
    """V sin(w) V^H; by sums, which autocast leaves alone."""
    Uh = V.mH if Uh is None else Uh
    return ((V * w.sin().unsqueeze(-2)).unsqueeze(-1) * Uh.unsqueeze(-3)).sum(-2)


# Every public function as a map from one positive definite matrix to one tensor that does not depend on phases.
PUBLIC: dict[str, Callable[[Tensor], Tensor]] = {
    **FUNCTIONS,
    "eigh": lambda M: compose(*sg.eigh(M)),
    "eigh(UPLO)": lambda M: compose(*sg.eigh(M, UPLO="U")),
    "eigvalsh": lambda M: sg.eigvalsh(M).cos()[..., None],
    "svdvals": lambda M: sg.svdvals(M[..., :-1]).cos()[..., None],
    "svd(full_matrices)": lambda M: (lambda U, S, Vh: compose(S, U[..., :-1], Vh))(*sg.svd(M[..., :-1], full_matrices=True)),
    "generalized_eigh": lambda M: compose(*sg.generalized_eigh(M.roll((1, 1), (-2, -1)), M)),
    "svd": lambda M: (lambda U, S, Vh: compose(S, U, Vh))(*sg.svd(M[..., :-1])),
    "polar(tall)": lambda M: sg.polar(M[..., :-1]),
    "singular_map(tall)": lambda M: sg.singular_map(M[..., :-1], torch.atan),
    "singular_map(wide)": lambda M: sg.singular_map(M[..., :-1, :], torch.atan),
    "pinv(tall)": lambda M: sg.pinv(M[..., :-1]),
    "nuclear_norm": lambda M: sg.nuclear_norm(M[..., :-1])[..., None, None],
    "schatten_norm": lambda M: sg.schatten_norm(M, 3)[..., None, None],
    "logdet": lambda M: sg.logdet(M)[..., None, None],
    "projector(rank)": lambda M: sg.projector(M, rank=2),
    "projector(smallest)": lambda M: sg.projector(M, rank=2, smallest=True),
    "projector(energy)": lambda M: sg.projector(M, energy=0.8),
    "covariance": lambda M: sg.covariance(M),
    "moments": lambda M: sg.merge_moments([sg.moments(M), sg.moments(M[..., :-1])]).covariance(),
    "eigh(Jacobi)": lambda M: compose(*sg.eigh(M, solver=sg.Jacobi())),
    "eigh(SVD)": lambda M: compose(*sg.eigh(M, solver=sg.SVD())),
    **{f"sqrtm({type(g).__name__})": lambda M, g=g: sg.sqrtm(M, gradient=g) for g in [*RULES, sg.PowerIteration(3)]},
    "sqrtm(NewtonSchulz steps)": lambda M: sg.sqrtm(M, solver=sg.NewtonSchulz(steps=5)),
}
APPROXIMATE = [f for name, f in PUBLIC.items() if "Taylor" in name or "PowerIteration" in name]
WEIGHT = random(4, 4, seed=7)
each_function = pytest.mark.parametrize("f", PUBLIC.values(), ids=PUBLIC.keys())
COMPILED = ("eigh", "inv_sqrtm", "pinv(tall)")  # svd, polar, generalized_eigh and NewtonSchulz: in their own files
COMPILED_COMPLEX = ("eigh", "polar")
each_compiled = pytest.mark.parametrize("f", slow_but(COMPILED, PUBLIC))
TRACED = (
    "eigh",
    "svd",
    "inv_sqrtm",
    "sqrtm(NewtonSchulz)",
    "spectral_map",
    "generalized_eigh",
    "moments",
)  # the others: slow
each_traced = pytest.mark.parametrize("f", slow_but(TRACED, PUBLIC))


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    yield
    torch.compiler.reset()


def spd(*batch: int, n: int = 4, seed: int = 0) -> Tensor:
    return random_covariance(n, *batch, seed=seed) + 0.3 * torch.diag(torch.arange(1.0, n + 1, dtype=torch.float64))


def loss_of(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A scalar that depends on the eigenvectors."""

    def loss(M: Tensor) -> Tensor:
        out = f(M)
        return (out * WEIGHT[: out.shape[-2], : out.shape[-1]]).sum() + (out**3).sum()

    return loss


def gradient(f: Callable[[Tensor], Tensor], M: Tensor) -> Tensor:
    M = M.clone().requires_grad_()
    return torch.autograd.grad(loss_of(f)(M), M)[0]


@each_function
@pytest.mark.parametrize("dim", [0, 2])
def test_vmap_equals_batch(f, dim):
    M = spd(3)
    torch.testing.assert_close(torch.func.vmap(f, in_dims=dim)(M.movedim(0, dim)), f(M), rtol=1e-10, atol=1e-12)


@each_function
def test_nested_vmap_and_vmap_of_grad(f):
    M = spd(2, 3)
    torch.testing.assert_close(torch.func.vmap(torch.func.vmap(f))(M), f(M), rtol=1e-10, atol=1e-12)
    one_by_one = torch.stack([gradient(f, m) for m in M[0]])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss_of(f)))(M[0]), one_by_one, rtol=1e-9, atol=1e-11)


@each_function
def test_grad_jvp_jacrev_jacfwd(f):
    M, E = spd(), random(4, 4, seed=3)
    E = (E + E.mT) / 2
    g = gradient(f, M)
    torch.testing.assert_close(torch.func.grad(loss_of(f))(M), g, rtol=1e-9, atol=1e-11)
    _, tangent = torch.func.jvp(loss_of(f), (M,), (E,))
    torch.testing.assert_close(tangent, (g * E).sum(), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(torch.func.jacrev(f)(M), torch.func.jacfwd(f)(M), rtol=1e-8, atol=1e-10)


REAL = ("covariance", "moments")


@pytest.mark.parametrize("f", [pytest.param(f, id=name) for name, f in PUBLIC.items() if name not in REAL])
def test_complex_under_vmap(f):
    """torch cannot view the imaginary part of a lazy conjugate there, and matrices and cotangents may be such."""
    M = random_covariance(4, 2, dtype=torch.complex128) + torch.diag(torch.arange(1.0, 5))
    E = random_covariance(4, 2, dtype=torch.complex128, seed=3)

    def loss(M: Tensor) -> Tensor:
        out = f(M.conj())
        return (out * WEIGHT[: out.shape[-2], : out.shape[-1]]).real.sum()

    def value(M: Tensor, _: Tensor) -> Tensor:
        return f(M.conj())

    def slope(M: Tensor, E: Tensor) -> Tensor:
        return torch.func.jvp(loss, (M,), (E,))[1]

    def second(M: Tensor, E: Tensor) -> Tensor:
        return torch.func.grad(lambda M: (torch.func.grad(loss)(M).conj() * E).real.sum())(M)

    for function in (value, slope, second, torch.func.grad(slope)):
        expected = torch.stack([function(m, e) for m, e in zip(M, E, strict=True)])
        torch.testing.assert_close(torch.func.vmap(function)(M, E), expected, rtol=1e-8, atol=1e-10)


EXACT = {name: f for name, f in PUBLIC.items() if f not in APPROXIMATE}
EXACT["sqrtm(many steps)"] = lambda M: sg.sqrtm(M, gradient=sg.PowerIteration(200))


@pytest.mark.parametrize("f", EXACT.values(), ids=EXACT)
def test_forward_over_forward_along_a_curve(f):
    """Second derivatives of what goes in count too: what a jvp hands on has a tangent of its own."""
    M, E, C = spd(), *(random(4, 4, seed=seed) for seed in (3, 5))
    E, C = ((X + X.mT) / 2 for X in (E, C))
    zero, one = torch.zeros((), dtype=M.dtype), torch.ones((), dtype=M.dtype)

    def speed(t: Tensor) -> Tensor:
        return torch.func.jvp(lambda t: f(M + t * E + t * t * C), (t,), (one,))[1]

    step = 1e-5
    numeric = (speed(zero + step) - speed(zero - step)) / (2 * step)
    torch.testing.assert_close(torch.func.jvp(speed, (zero,), (one,))[1], numeric, rtol=1e-5, atol=1e-5)


NESTED = {
    "spectral_map": PUBLIC["spectral_map"],
    **{
        name: PUBLIC[name]
        for name in PUBLIC
        if name.split("(")[0] in ("singular_map", "pinv", "nuclear_norm", "schatten_norm")
    },
    "logdet": PUBLIC["logdet"],
}


@pytest.mark.parametrize("f", NESTED.values(), ids=NESTED)
def test_forward_over_forward_and_reverse_over_forward(f):
    """Inside jvp torch propagates no tangents through plain operations: the second one would be 0, without a word."""
    M, E = spd(), random(4, 4, seed=3)
    E = (E + E.mT) / 2

    def pushed(M: Tensor) -> Tensor:
        return torch.func.jvp(f, (M,), (E,))[1]

    step = 1e-5
    numeric = (pushed(M + step * E) - pushed(M - step * E)) / (2 * step)
    torch.testing.assert_close(torch.func.jvp(pushed, (M,), (E,))[1], numeric, rtol=1e-5, atol=1e-6)
    by_rows = torch.func.jacrev(pushed)(M)
    torch.testing.assert_close((by_rows * E).sum((-2, -1)), numeric, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("function", [sg.spectral_map, sg.singular_map])
def test_forward_over_forward_for_what_f_closes_over(function):
    M, p = spd(), torch.tensor(0.7, dtype=torch.float64)
    one = torch.ones_like(p)

    def mapped(p: Tensor) -> Tensor:
        return function(M, lambda x: torch.tanh(p * x) + p**3 * x**3)

    def pushed(p: Tensor) -> Tensor:
        return torch.func.jvp(mapped, (p,), (one,))[1]

    step = 1e-5
    numeric = (pushed(p + step) - pushed(p - step)) / (2 * step)
    torch.testing.assert_close(torch.func.jvp(pushed, (p,), (one,))[1], numeric, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.func.hessian(mapped)(p), numeric, rtol=1e-5, atol=1e-5)


@each_function
def test_hessian_and_double_backward(f):
    M, E = spd(), random(4, 4, seed=3)
    E = (E + E.mT) / 2
    loss = loss_of(f)
    H = torch.func.hessian(loss)(M)  # forward over reverse
    torch.testing.assert_close(H, torch.func.jacrev(torch.func.jacrev(loss))(M), rtol=1e-7, atol=1e-9)
    batched = torch.autograd.functional.hessian(loss, M, vectorize=True)  # a batched backward pass of a backward pass
    torch.testing.assert_close(H, batched, rtol=1e-7, atol=1e-9)
    X = M.clone().requires_grad_()
    (g,) = torch.autograd.grad(loss(X), X, create_graph=True)
    (EH,) = torch.autograd.grad((g * E).sum(), X)
    torch.testing.assert_close(EH, torch.einsum("ij,ijkl->kl", E, H), rtol=1e-7, atol=1e-9)
    if f in APPROXIMATE:  # its first gradient is no gradient, so its second one is not that one's derivative
        return
    step = 1e-5
    numeric = (gradient(f, M + step * E) - gradient(f, M - step * E)) / (2 * step)
    torch.testing.assert_close(torch.einsum("ijkl,kl->ij", H, E), numeric, rtol=1e-4, atol=1e-5)


@each_compiled
def test_compiles_in_one_graph(f):
    M = spd(2)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(M), f(M), rtol=1e-9, atol=1e-11)
    X = M.clone().requires_grad_()
    loss_of(compiled)(X).backward()
    torch.testing.assert_close(X.grad, gradient(f, M), rtol=1e-8, atol=1e-10)


@each_compiled
def test_compiles_for_sizes_to_come(f):
    """dynamic=True: numbers of modules, options and shapes are variables of the compiled code too."""
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=True)
    for M in (spd(2), spd(3, n=5)):
        X, Y = M.clone().requires_grad_(), M.clone().requires_grad_()
        got, want = compiled(X), f(Y)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)
        got.pow(3).sum().backward()
        want.pow(3).sum().backward()
        torch.testing.assert_close(X.grad, Y.grad, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("f", slow_but(COMPILED_COMPLEX, PUBLIC))
def test_compiled_complex_is_complex(f):
    """Operators of a compiled graph run where torch does not resolve lazy conjugates: x.mH would be x.mT."""
    M = random_covariance(4, 2, dtype=torch.complex128) + torch.diag(torch.arange(1.0, 5.0, dtype=torch.float64))
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(M), f(M), rtol=1e-9, atol=1e-10)

    def loss(g, X):
        return (g(X).real * WEIGHT[: f(M).shape[-2], : f(M).shape[-1]]).sum()

    X, Y = M.clone().requires_grad_(), M.clone().requires_grad_()
    loss(compiled, X).backward()
    loss(f, Y).backward()
    torch.testing.assert_close(X.grad, Y.grad, rtol=1e-8, atol=1e-9)


@pytest.mark.slow
@each_function
def test_compiles_with_inductor(f):
    M = spd(2)
    compiled = torch.compile(lambda X: loss_of(f)(X), fullgraph=True)
    X = M.clone().requires_grad_()
    compiled(X).backward()
    torch.testing.assert_close(X.grad, gradient(f, M), rtol=1e-8, atol=1e-10)


@each_function
def test_shapes_without_values(f):
    assert_shapes_alone(f, spd(2))


@each_traced
@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_make_fx_records_no_value(f, mode):
    assert_recorded(with_gradient(f), spd(2), other=(spd(2, seed=1),), mode=mode)


@each_traced
@pytest.mark.filterwarnings(IGNORED)
def test_make_fx_of_transforms(f):
    slope = torch.func.grad(lambda M: f(M).pow(3).sum())

    def second(M: Tensor) -> Tensor:
        return torch.func.jvp(slope, (M,), (M @ M,))[1]

    functions = [torch.func.vmap(f), slope, second]
    if torch.__version__ < "2.10":  # which loses tensors on the way: docs/compatibility.md
        functions.remove(second)
    for function in functions:
        assert_recorded(function, spd(2), other=(spd(2, seed=1),), mode="fake")


@each_traced
@pytest.mark.filterwarnings(IGNORED)
def test_linearize(f):
    E = random(4, 4, seed=3)
    assert_linear(f, spd(), (E + E.mT) / 2)


@each_function
@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(f, reentrant):
    """Its saved tensors can be unpacked once."""
    X = spd(2).requires_grad_()
    loss_of(lambda M: checkpoint(f, M, use_reentrant=reentrant))(X).backward()
    torch.testing.assert_close(X.grad, gradient(f, X.detach()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("function", [sg.spectral_map, sg.singular_map])
def test_activation_checkpointing_of_what_f_closes_over(function):
    """torch.func, which differentiates f, refuses to work under checkpointing's hooks."""
    scale, M = torch.tensor(0.5, dtype=torch.float64, requires_grad=True), spd(2)

    def learned(M):
        return function(M, lambda w: torch.atan(w * scale))

    gradients = [
        torch.autograd.grad(loss_of(f)(M), scale) for f in (learned, lambda M: checkpoint(learned, M, use_reentrant=False))
    ]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=0)


@each_function
@pytest.mark.filterwarnings(IGNORED)
def test_hooks_on_saved_tensors(f):
    """Every derivative where tensors are saved somewhere else."""
    X, E = spd().requires_grad_(), random(4, 4, seed=3)

    def derivatives():
        (g,) = torch.autograd.grad(loss_of(f)(X), X, create_graph=True)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(X.detach().requires_grad_(), E)
            forward_over_reverse = forward_ad.unpack_dual(torch.autograd.grad(loss_of(f)(dual), dual)[0]).tangent
        return g.detach(), *torch.autograd.grad((g * E).sum(), X), forward_over_reverse

    with torch.autograd.graph.save_on_cpu():
        found = derivatives()
    torch.testing.assert_close(found, derivatives(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("gradient", [sg.Lorentzian(), sg.PowerIteration(3)])
def test_reverse_over_forward_under_hooks_on_saved_tensors(gradient):
    X, E = spd().requires_grad_(), random(4, 4, seed=3)

    def reverse_over_forward():
        with forward_ad.dual_level():
            out = compose(*sg.eigh(forward_ad.make_dual(X, E), gradient=gradient))
            return torch.autograd.grad(forward_ad.unpack_dual(out).tangent.square().sum(), X)

    with torch.autograd.graph.save_on_cpu():
        found = reverse_over_forward()
    torch.testing.assert_close(found, reverse_over_forward(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("f", EXACT.values(), ids=EXACT)
@pytest.mark.filterwarnings(IGNORED)
def test_product_with_a_hessian(f):
    """`hvp` differentiates a second derivative by its direction, in which it is linear."""
    M, E, loss = spd(), random(4, 4, seed=3), loss_of(f)
    expected = torch.autograd.functional.vhp(loss, M, E)[1]
    torch.testing.assert_close(torch.autograd.functional.hvp(loss, M, E)[1], expected, rtol=1e-9, atol=1e-11)

    X = M.requires_grad_()
    (g,) = torch.autograd.grad(loss(X), X, create_graph=True)
    with forward_ad.dual_level():
        direction = forward_ad.make_dual(torch.zeros_like(E), E)
        pushed = forward_ad.unpack_dual(torch.autograd.grad(g, X, direction)[0]).tangent
    torch.testing.assert_close(pushed, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("f", EXACT.values(), ids=EXACT)
def test_transforms_of_what_vjp_returned(f):
    """It holds tensors of the transform that made it, which has ended."""
    M, E, loss = spd(), random(4, 4, seed=3), loss_of(f)
    along = torch.func.vjp(torch.func.grad(loss), M)[1]
    expected = along(E)[0]
    pushed = torch.func.jvp(lambda E: along(E)[0], (E,), (E,))[1]
    pulled = torch.func.grad(lambda E: (along(E)[0] * E).sum())(E) / 2
    for found in (pushed, pulled):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@each_function
def test_a_result_may_be_edited_in_place(f):
    X, Y = spd(2).requires_grad_(), spd(2).requires_grad_()
    f(X).mul_(2).sum().backward()
    (2 * f(Y)).sum().backward()
    torch.testing.assert_close(X.grad, Y.grad, rtol=1e-10, atol=1e-12)


@each_function
def test_autocast_changes_nothing(f):
    M = spd(2).float()
    expected, expected_gradient = f(M), gradient(f, M)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = f(M)
        X = M.clone().requires_grad_()
        loss = loss_of(f)(X)
    loss.backward()
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(X.grad, expected_gradient, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    "transform", [torch.func.grad, lambda f: lambda M: torch.func.jvp(f, (M,), (M,))[1]], ids=["grad", "jvp"]
)
def test_compiled_transforms_are_refused_or_right(transform):
    """torch.compile ignores a Function's backward inside torch.func: an error in one graph, else eager code."""
    M = spd()
    derivative = transform(lambda M: sg.sqrtm(M).pow(3).sum())
    with pytest.raises(Exception, match=r"torch\.compile ignores"):
        torch.compile(derivative, backend="aot_eager", fullgraph=True)(M)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(derivative, backend="aot_eager")(M), derivative(M))


def test_power_deflation_under_transforms():
    def f(M: Tensor) -> Tensor:
        w, V = sg.eigh(M, solver=sg.PowerDeflation(60, generator(1)))
        return (V * w.unsqueeze(-2)) @ V.mH

    M = spd()
    expected = gradient(f, M)
    torch.testing.assert_close(torch.func.grad(loss_of(f))(M), expected, rtol=1e-9, atol=1e-11)
    batch = torch.func.vmap(f, randomness="same")(spd(3))
    torch.testing.assert_close(batch, spd(3), rtol=1e-3, atol=1e-3)
