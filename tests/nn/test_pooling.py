"""CovariancePool2d and covariance_pool: values, gradients at rank 48 of 256, and what torch.nn modules can do."""

import copy
import importlib
import io
import math
import pickle
import runpy
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.linalg import choices
from spectralgrad.nn.functional import covariance_pool
from spectralgrad.nn.pooling import CovariancePool2d
from support.cases import BOUNDED_RULES, GRADIENTS, SOLVERS, ident, random, relative_error
from support.marks import slow_but
from support.precision import matmul_precision
from support.products import Products

torch.set_num_threads(1)

EXAMPLES = Path(__file__).parents[2] / "examples"
NEWTON = sg.NewtonSchulz()
ROOTS = [*SOLVERS, NEWTON]  # all that compute the root itself
OUTPUTS = ["triangle", "matrix", "features"]
each_output = pytest.mark.parametrize("output", OUTPUTS)


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    yield
    torch.compiler.reset()


def maps(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Correlated maps with a mean (N, C, H, W), whose entries float32 can hold."""
    x = random(*shape, seed=seed)
    mix = random(shape[1], shape[1], seed=seed + 1) / shape[1] ** 0.5
    return (torch.einsum("ij,njhw->nihw", mix, x) + random(shape[1], 1, 1, seed=seed + 2)).float().to(dtype)


def power_reference(x: Tensor, power: float = 0.5, eps: float = 0.0) -> tuple[Tensor, Tensor]:
    """S and the centred map in float64, straight from the definition."""
    X = x.double().flatten(2)
    X = X - X.mean(-1, keepdim=True)
    C = X @ X.mT / X.shape[-1] + eps * torch.eye(x.shape[1], dtype=torch.float64)
    w, V = torch.linalg.eigh(C)
    w = torch.where(w < 1e-12 * w[:, -1:], 0, w)
    return (V * w.pow(power).unsqueeze(-2)) @ V.mT, X


def root_gradient_reference(x: Tensor, G: Tensor, normalized: bool) -> Tensor:
    """The gradient of sum(G * S), or of sum(G * S / |S|), for the square root, in float64 and without the library.

    dC = V (F * V^T G V) V^T, F_ij = 1/(a_i + a_j) on the roots a of the eigenvalues; a pair of zeros reaches no sample.
    """
    S, X = power_reference(x)
    G = (G + G.mT) / 2
    if normalized:
        norm = torch.linalg.matrix_norm(S, keepdim=True)
        G = G / norm - S * (G * S).sum((-2, -1), keepdim=True) / norm**3
    w, V = torch.linalg.eigh(X @ X.mT / X.shape[-1])
    a = torch.where(w < 1e-12 * w[:, -1:], 0, w).sqrt()
    F = (a.unsqueeze(-1) + a.unsqueeze(-2)).reciprocal().nan_to_num(posinf=0)
    gX = 2 * (V @ (F * (V.mT @ G @ V)) @ V.mT) @ X / X.shape[-1]
    return (gX - gX.mean(-1, keepdim=True)).reshape(x.shape)


def gradient(x: Tensor, G: Tensor, **options: object) -> Tensor:
    x = x.clone().requires_grad_()
    y = covariance_pool(x, **options)
    return torch.autograd.grad((y * G.to(y.dtype)).sum(), x)[0]


# Values.


@pytest.mark.parametrize("solver", ROOTS, ids=ident)
@pytest.mark.parametrize("shape", [(2, 6, 2, 2), (2, 6, 5, 4)], ids=["n<C", "n>C"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-9)], ids=ident)
def test_is_the_root_of_the_covariance(solver, shape, dtype, tolerance):
    x = maps(*shape, dtype=dtype)
    S = covariance_pool(x, output="matrix", solver=solver)
    assert S.dtype == dtype
    assert torch.equal(S, S.mT)
    assert relative_error(S, power_reference(x)[0]) < tolerance
    torch.testing.assert_close(covariance_pool(x.unflatten(0, (1, 2)), output="matrix", solver=solver), S[None])


@pytest.mark.parametrize("power", [0.2, 0.5, 1, 1.5, 3])
@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(2, 6, 2, 2), (2, 6, 5, 4)], ids=["n<C", "n>C"])
def test_powers(power, eps, shape):
    x = maps(*shape)
    S, X = power_reference(x, power, eps)
    assert relative_error(covariance_pool(x, power=power, eps=eps, output="matrix"), S) < 1e-9
    features = covariance_pool(x, power=power, eps=eps, output="features")
    assert features.shape == x.shape
    assert relative_error(features.flatten(2), S @ X) < 1e-9  # the centred map, as in Alg. 3


@pytest.mark.parametrize("shape", [(3, 5, 2, 2), (3, 5, 4, 4)], ids=["n<C", "n>C"])
@pytest.mark.parametrize("power", [0.5, 0.7])
def test_normalisation_is_equation_29(shape, power):
    x = maps(*shape)
    X = x.flatten(2) - x.flatten(2).mean(-1, keepdim=True)
    w, V = torch.linalg.eigh(X @ X.mT / X.shape[-1])
    w = w.clamp(min=0)
    f = w.pow(power) / w.pow(2 * power).sum(-1, keepdim=True).sqrt()
    expected = (V * f.unsqueeze(-2)) @ V.mT
    torch.testing.assert_close(covariance_pool(x, power=power, normalize="frobenius", output="matrix"), expected)


def test_triangle_is_row_by_row_and_isometric_keeps_the_norm():
    x = maps(2, 4, 3, 3)
    S = covariance_pool(x, output="matrix")
    expected = torch.stack([S[:, i, j] for i in range(4) for j in range(i, 4)], -1)
    assert torch.equal(covariance_pool(x), expected)
    triangle = covariance_pool(x, isometric=True)
    torch.testing.assert_close(triangle.norm(dim=-1), torch.linalg.matrix_norm(S))
    assert torch.equal(triangle[:, 0], S[:, 0, 0])


@pytest.mark.parametrize("scale", [2.0**-70, 2.0**70])  # whose squares float32 does not hold
@pytest.mark.parametrize("solver", [sg.Auto(), NEWTON, sg.NewtonSchulz(steps=5)], ids=ident)
@pytest.mark.parametrize("size", [2, 6], ids=["n<C", "n>C"])
def test_scale_changes_no_digits(scale, solver, size):
    x, G = maps(2, 8, size, size, dtype=torch.float32), random(2, 8, 8, seed=5)
    options = {"output": "matrix", "normalize": "frobenius", "solver": solver}
    assert relative_error(covariance_pool(scale * x, **options), covariance_pool(x, **options)) < 1e-6
    assert relative_error(gradient(scale * x, G, **options) * scale, gradient(x, G, **options)) < 1e-5


def test_a_large_mean_costs_no_more_than_the_input_lost():
    x = (maps(2, 8, 6, 6) + 1e4).float()
    assert relative_error(covariance_pool(x, output="matrix"), power_reference(x)[0]) < 2e-6


# The normal case: 7 x 7 positions, 256 channels, rank 48.


def strong_direction() -> Tensor:
    """Condition number of the covariance on its range about 1e4, as ReLU features have it."""
    common = random(2, 256, 1, 1, seed=3).abs() * random(2, 1, 7, 7, seed=4).abs()
    return (maps(2, 256, 7, 7).relu() + 3 * common).float().double()


def dead_channels() -> Tensor:
    return maps(2, 256, 7, 7).relu().float().double() * (torch.arange(256) % 4 > 0).view(256, 1, 1)


NORMAL = {
    "gaussian": lambda: maps(2, 256, 7, 7),
    "relu": lambda: maps(2, 256, 7, 7).relu().float().double(),
    "strong direction": strong_direction,
    "dead channels": dead_channels,
}


@pytest.mark.covering(2)
@pytest.mark.parametrize("solver", [sg.Auto(), sg.Lapack(), sg.SVD(), NEWTON], ids=ident)
@pytest.mark.parametrize("normalize", [None, "frobenius"])
@pytest.mark.parametrize("name", NORMAL)
def test_gradient_at_rank_48_of_256_is_exact(name, normalize, solver):
    x, G = NORMAL[name](), random(2, 256, 256, seed=9)
    expected = root_gradient_reference(x, G, normalize is not None)
    g = gradient(x.float(), G, normalize=normalize, output="matrix", solver=solver)
    assert relative_error(g, expected) < 1e-4
    if solver in (sg.Auto(), NEWTON):
        g = gradient(x, G, normalize=normalize, output="matrix", solver=solver)
        assert relative_error(g, expected) < (1e-9 if solver == sg.Auto() else 1e-8)


def test_gradient_at_rank_48_with_torch_alone_is_not():
    """Negative control: torch.linalg.eigh meets exact ties, since the dead channels' eigenvalues are exactly zero."""
    x, G = dead_channels(), random(2, 256, 256, seed=9)
    y = x.float().requires_grad_()
    X = y.flatten(2) - y.flatten(2).mean(-1, keepdim=True)
    w, V = torch.linalg.eigh(X @ X.mT / 49)
    (g,) = torch.autograd.grad((((V * w.clamp(min=0).sqrt().unsqueeze(-2)) @ V.mT) * G.float()).sum(), y)
    assert not relative_error(g, root_gradient_reference(x, G, False)) < 1e-2  # 1e-4 above; NaN, or 9e-2 on torch 2.15


@pytest.mark.parametrize("shape", [(2, 64, 5, 5), (2, 16, 7, 7)], ids=["n<C", "n>C"])
def test_five_newton_steps_are_those_of_the_covariance(shape):
    """The baseline is a polynomial of the covariance, whichever side it is computed on."""
    x, G, solver = maps(*shape), random(2, shape[1], shape[1], seed=9), sg.NewtonSchulz(steps=5)
    z = x.clone().requires_grad_()
    S = sg.sqrtm(sg.covariance(z.flatten(2)), solver=solver)
    (expected,) = torch.autograd.grad((S * G).sum(), z)
    assert relative_error(covariance_pool(x, output="matrix", solver=solver), S.detach()) < 1e-12
    assert relative_error(gradient(x, G, output="matrix", solver=solver), expected) < 1e-12
    assert relative_error(gradient(x.float(), G, output="matrix", solver=solver), expected) < 1e-5
    assert relative_error(S.detach(), power_reference(x)[0]) > 1e-2  # it is not the root


# What CUDA does with Auto(), on the CPU.


def test_auto_takes_the_root_by_products_where_they_win(monkeypatch):
    x, G = maps(2, 16, 3, 3, dtype=torch.float32), random(2, 16, 16, seed=9)
    options = {"output": "matrix"}
    eigen, by_products = (covariance_pool(x, solver=solver, **options) for solver in (sg.Auto(), NEWTON))
    assert not torch.equal(eigen, by_products)
    monkeypatch.setattr(choices, "covariances_by_products", lambda _: True)
    for gradient_rule in (None, sg.Exact()):
        assert torch.equal(covariance_pool(x, gradient=gradient_rule, **options), by_products)
    assert torch.equal(gradient(x, G, **options), gradient(x, G, solver=NEWTON, **options))
    for other in ({"solver": sg.Lapack()}, {"power": 0.7}, {"gradient": sg.Lorentzian()}):
        got = covariance_pool(x, **options, **other)
        monkeypatch.setattr(choices, "covariances_by_products", lambda _: False)
        assert torch.equal(got, covariance_pool(x, **options, **other))
        monkeypatch.setattr(choices, "covariances_by_products", lambda _: True)
    for shape in ((2, 16, 3, 3), (2, 8, 5, 5)):
        shifted = covariance_pool(maps(*shape), eps=1e-3, **options)
        assert relative_error(shifted, power_reference(maps(*shape), eps=1e-3)[0]) < 1e-7


def test_products_of_a_14_x_14_map(monkeypatch):
    """What docs/layers/pooling.md says; the gradient is good to 1e-6 of its norm, with a schedule that never looks."""
    for name in ("iteration", "lyapunov", "roots"):
        monkeypatch.setattr(
            importlib.import_module(f"spectralgrad.linalg.products.{name}"), "host_may_look", lambda _: False
        )
    monkeypatch.setattr(choices, "covariances_by_products", lambda _: True)
    x, G = maps(2, 256, 14, 14).relu().float(), random(2, 256, 256, seed=9)
    z = x.clone().requires_grad_()
    with sg.checks(False):
        with Products() as forward:
            S = covariance_pool(z, output="matrix")
        with Products() as backward:
            (g,) = torch.autograd.grad((S * G.float()).sum(), z)
    small, large = (196, 196, 196), {(256, 196, 256), (196, 256, 256), (256, 256, 196)}
    assert (forward.shapes[small], backward.shapes[small]) == (42, 36)
    assert sum(forward.shapes[shape] for shape in large) == 1
    assert sum(backward.shapes[shape] for shape in large) == 2
    assert (forward.shapes.total(), backward.shapes.total()) == (45, 42)
    assert relative_error(g, root_gradient_reference(x.double(), G, False)) < 1e-6


DEGENERATE = {
    "constant": torch.full((2, 12, 3, 3), 0.1),
    "constant over positions": random(2, 12, 1, 1, dtype=torch.float32).expand(2, 12, 3, 3),
    "1 x 1": random(2, 12, 1, 1, dtype=torch.float32),
    "zero": torch.zeros(2, 12, 3, 3),
    "one sample constant": torch.cat([torch.full((1, 12, 3, 3), 0.3), random(1, 12, 3, 3, dtype=torch.float32)]),
    "duplicate channels": random(2, 4, 3, 3, dtype=torch.float32).repeat(1, 3, 1, 1),
    "duplicate channels, n > C": random(2, 4, 5, 5, dtype=torch.float32).repeat(1, 3, 1, 1),
    "dead channels, n > C": random(2, 12, 5, 5, dtype=torch.float32) * (torch.arange(12) % 3 > 0).view(12, 1, 1),
    "duplicate positions": random(2, 12, 3, 1, dtype=torch.float32).repeat(1, 1, 1, 2),
}
VANISHING = ["constant", "constant over positions", "1 x 1", "zero"]
CHOICES = [
    *({"solver": solver} for solver in [*ROOTS, sg.NewtonSchulz(steps=5)]),
    *({"gradient": rule} for rule in [*BOUNDED_RULES, sg.PowerIteration(3)]),
    {"eps": 1e-3},
    {"eps": 1e-3, "solver": NEWTON},
    {"eps": 1e-3, "solver": sg.PowerDeflation(5)},  # as in Alg. 3: without eps its eigenvalues may be negative
    {"power": 0.3},
    {"power": 2},
]


@pytest.mark.covering(2)
@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("normalize", [None, "frobenius"])
@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: " ".join(map(ident, choice.values())))
def test_degenerate_maps_give_finite_values_and_gradients(name, normalize, choice):
    x, G = DEGENERATE[name], random(2, 12, 12, seed=9)
    S = covariance_pool(x, output="matrix", normalize=normalize, **choice)
    g = gradient(x, G, output="matrix", normalize=normalize, **choice)
    assert S.isfinite().all()
    assert g.isfinite().all()
    if name in VANISHING and "eps" not in choice:
        assert not S.any()
        assert not g.any()


@pytest.mark.parametrize("solver", ROOTS, ids=ident)
@pytest.mark.parametrize("name", [name for name in DEGENERATE if "duplicate" in name or "dead" in name])
def test_degenerate_gradients_are_exact(name, solver):
    x, G = DEGENERATE[name], random(2, 12, 12, seed=9)
    expected = root_gradient_reference(x, G, False)
    assert relative_error(gradient(x, G, output="matrix", solver=solver), expected) < 1e-3


# Gradients in general.


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(2, 4, 1, 3), (2, 3, 2, 3)], ids=["n<C", "n>C"])
@pytest.mark.parametrize(
    "options",
    [
        {"normalize": "frobenius"},
        {"output": "features"},
        {"output": "matrix", "power": 0.7},
        {"power": 1},
        {"power": 2.5},
        {"eps": 0.1, "isometric": True},
        {"solver": NEWTON},
        {"solver": sg.NewtonSchulz(steps=5), "normalize": "frobenius"},
        {"solver": NEWTON, "eps": 0.1},
        {"gradient": sg.Exact(), "solver": sg.Jacobi()},
    ],
    ids=lambda options: " ".join(f"{k}={ident(v)}" for k, v in options.items()),
)
def test_gradcheck(shape, options):
    assert torch.autograd.gradcheck(lambda x: covariance_pool(x, **options), random(*shape).requires_grad_())


@pytest.mark.parametrize("shape", [(1, 4, 1, 3), (1, 3, 2, 3)], ids=["n<C", "n>C"])
def test_gradgradcheck(shape):
    f = lambda x: covariance_pool(x, normalize="frobenius")  # noqa: E731
    assert torch.autograd.gradgradcheck(f, random(*shape).requires_grad_())


@pytest.mark.parametrize("train", [True, False])
@each_output
def test_gradcheck_of_the_layer(output, train):
    torch.manual_seed(0)
    layer = CovariancePool2d(3, reduced=4, output=output, normalize="frobenius", dtype=torch.float64).train(train)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def f(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), x)

    assert torch.autograd.gradcheck(f, (random(3, 3, 2, 2).requires_grad_(), *parameters))


@each_output
def test_functional_under_vmap_and_func_grad(output):
    x = maps(3, 4, 3, 3)
    f = lambda x: covariance_pool(x, normalize="frobenius", output=output)  # noqa: E731
    torch.testing.assert_close(torch.func.vmap(lambda m: f(m[None])[0])(x), f(x))
    last = torch.stack([x, 2 * x]).movedim(2, -1).contiguous().movedim(-1, 2)  # channels_last under the mapped dimension
    torch.testing.assert_close(torch.func.vmap(f)(last), torch.stack([f(part) for part in last]))
    loss = lambda x: f(x).sin().sum()  # noqa: E731
    one_by_one = torch.stack([torch.func.grad(loss)(m[None])[0] for m in x])
    torch.testing.assert_close(torch.func.grad(loss)(x), one_by_one)


# Tokens.

TOKENS = maps(3, 4, 5, 1).squeeze(-1).mT.contiguous()  # (N, T, C) = (3, 5, 4)


@each_output
def test_three_dimensions_are_tokens(output):
    y = covariance_pool(TOKENS, output=output)
    want = covariance_pool(TOKENS.mT.unsqueeze(-1), output=output)  # the same samples as maps (N, C, T, 1)
    torch.testing.assert_close(y, want.squeeze(-1).mT if output == "features" else want)
    one_by_one = torch.cat([covariance_pool(tokens[None], output=output) for tokens in TOKENS])
    torch.testing.assert_close(y, one_by_one)  # samples do not mix
    layer = CovariancePool2d(4, reduced=None, output=output)
    torch.testing.assert_close(layer(TOKENS), y)
    assert (y.shape == TOKENS.shape) == (output == "features")


def test_the_covariance_of_tokens_is_over_tokens():
    S = covariance_pool(TOKENS, output="matrix", power=1)
    for tokens, found in zip(TOKENS, S, strict=True):
        torch.testing.assert_close(found, torch.cov(tokens.mT, correction=0))
        assert found.shape != torch.cov(tokens).shape  # over features it would be T x T
    assert covariance_pool(torch.randn(4, 50, 192)).shape == (4, 192 * 193 // 2)


@pytest.mark.parametrize("output", ["triangle", "features"])
def test_reduced_tokens(output):
    """The reduction treats every token alike, as it does every position of a map."""
    layer = CovariancePool2d(4, reduced=3, output=output).double()
    twin = copy.deepcopy(layer)
    y, want = layer(TOKENS), twin(TOKENS.mT.unsqueeze(-1))
    torch.testing.assert_close(y, want.squeeze(-1).mT if output == "features" else want)
    for got, expected in zip(layer.state_dict().values(), twin.state_dict().values(), strict=True):
        assert torch.equal(got, expected)


@each_output
def test_gradients_of_tokens(output):
    for normalize in ("frobenius", None):
        f = partial(covariance_pool, output=output, normalize=normalize)
        assert torch.autograd.gradcheck(f, TOKENS.clone().requires_grad_())
        assert torch.autograd.gradgradcheck(f, TOKENS[:1].clone().requires_grad_())
    empty = covariance_pool(TOKENS[:0].requires_grad_(), output=output)
    assert empty.shape[0] == 0
    half = covariance_pool(TOKENS.to(torch.bfloat16), output=output)
    assert half.dtype == torch.bfloat16


# The options.

BASE = {"reduced": None, "power": 0.5, "normalize": None, "output": "triangle", "eps": 0.0, "isometric": False}
CHANGES = [
    {"reduced": 4},
    {"power": 0.4},
    {"normalize": "frobenius"},
    {"eps": 0.1},
    {"isometric": True},
    {"solver": sg.NewtonSchulz(steps=3)},
    {"output": "matrix"},
    {"output": "features"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_option_changes_the_result(change):
    torch.manual_seed(0)
    x = maps(2, 4, 3, 3, dtype=torch.float32)
    base, changed = CovariancePool2d(4, **BASE)(x), CovariancePool2d(4, **{**BASE, **change})(x)
    assert base.shape != changed.shape or relative_error(changed.detach(), base) > 1e-2


@pytest.mark.parametrize("rule", [rule for rule in GRADIENTS if rule != sg.Exact()], ids=ident)
def test_every_rule_changes_the_gradient(rule):
    """At relative gaps of 1e-6 each of them has its own; the unguarded one needs an exact tie, of dead channels."""
    X = random(20, 3) - random(20, 3).mean(0)
    X = torch.linalg.qr(X)[0].mT * torch.tensor([[1.0], [1 + 1e-6], [1 + 2e-6]], dtype=torch.float64)
    if rule == sg.Analytic():
        X[1:] = 0
    x, G = X.reshape(1, 3, 4, 5), random(1, 3, 3, seed=2)
    exact = gradient(x, G, output="matrix")
    assert exact.isfinite().all()
    assert not relative_error(gradient(x, G, output="matrix", gradient=rule), exact) <= 1e-7
    assert torch.equal(gradient(x, G, output="matrix", gradient=sg.Exact()), exact)


@pytest.mark.parametrize("rule", GRADIENTS, ids=ident)
@pytest.mark.parametrize("scale", [1e-2, 1, 1e2])
def test_rules_act_on_the_covariance_at_its_own_scale(rule, scale):
    """`Clip` and `PowerIteration` have absolute thresholds: the papers' gradient is not that of a scaled map."""
    x, G = scale * maps(2, 4, 3, 3), random(2, 4, 4, seed=2)
    z = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad((sg.sqrtm(sg.covariance(z.flatten(2)), gradient=rule) * (G + G.mT) / 2).sum(), z)
    assert relative_error(gradient(x, G, output="matrix", gradient=rule), expected) < 1e-8


def test_layer_is_the_function():
    x = maps(2, 6, 2, 2)
    options = {"power": 0.7, "normalize": "frobenius", "eps": 0.01, "isometric": True, "solver": sg.Lapack()}
    layer = CovariancePool2d(6, reduced=None, gradient=sg.Exact(), **options)
    assert torch.equal(layer(x), covariance_pool(x, gradient=sg.Exact(), **options))
    assert torch.equal(layer.eval()(x), covariance_pool(x, gradient=sg.Exact(), **options))


@pytest.mark.parametrize(("shape", "size"), [((2, 6, 2, 2), 4), ((2, 6, 5, 4), 6)], ids=["n<C", "n>C"])
@pytest.mark.parametrize("power", [0.3, 0.5])
def test_the_eigensolver_is_the_one_asked_for(power, shape, size, monkeypatch):
    solve, asked = sg.SVD.solve, []
    monkeypatch.setattr(sg.SVD, "solve", lambda self, H: asked.append(H.shape[-1]) or solve(self, H))
    covariance_pool(maps(*shape), power=power, solver=sg.SVD())
    assert asked == [size]


def test_reduction_is_convolution_batch_norm_relu():
    torch.manual_seed(0)
    layer, x = CovariancePool2d(6, reduced=3), maps(4, 6, 3, 3, dtype=torch.float32)
    conv, norm, _ = layer.reduce
    assert conv.weight.shape == (3, 6, 1, 1)
    assert conv.bias is None  # the mean is taken off anyway
    y = torch.nn.functional.batch_norm(conv(x), None, None, training=True).relu()
    torch.testing.assert_close(layer(x), covariance_pool(y))
    assert norm.num_batches_tracked == 1
    before = norm.running_mean.clone()
    layer.eval()(x)
    assert torch.equal(norm.running_mean, before)


# What torch.nn modules can do.


def layers() -> dict[str, CovariancePool2d]:
    torch.manual_seed(0)
    return {
        "reduced": CovariancePool2d(5, reduced=4, normalize="frobenius"),
        "plain": CovariancePool2d(5, reduced=None),
        "newton": CovariancePool2d(5, reduced=4, output="matrix", solver=NEWTON),
        "features": CovariancePool2d(5, reduced=4, output="features", gradient=sg.Taylor(9), eps=1e-3),
    }


each_layer = pytest.mark.parametrize("name", layers())
INPUT = maps(3, 5, 3, 3, dtype=torch.float32)


def through_pickle(layer):
    return pickle.loads(pickle.dumps(layer))


def through_torch_save(layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def through_state_dict(layer):
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    options = ("in_channels", "reduced", "power", "normalize", "output", "gradient", "solver", "eps", "isometric")
    new = type(layer)(**{option: getattr(layer, option) for option in options}).train(layer.training)
    new.load_state_dict(torch.load(file, weights_only=True))
    return new


@each_layer
@pytest.mark.parametrize("way", [copy.deepcopy, through_pickle, through_torch_save, through_state_dict])
def test_copies_are_the_same_layer(name, way):
    layer = layers()[name]
    layer(INPUT)
    new = way(layer)
    assert new is not layer
    assert repr(new) == repr(layer)
    assert torch.equal(new.eval()(INPUT), layer.eval()(INPUT))


@each_layer
def test_deepcopy_shares_nothing(name):
    layer = layers()[name].eval()
    before = layer(INPUT)
    for parameter in copy.deepcopy(layer).parameters():
        parameter.data.fill_(7)
    assert torch.equal(layer(INPUT), before)


def test_repr_tells_every_option():
    options = {"power": 0.4, "normalize": "frobenius", "gradient": sg.Taylor(7), "solver": sg.Lapack(), "eps": 0.125}
    text = repr(CovariancePool2d(5, reduced=4, isometric=True, **options))
    for part in ("5, reduced=4", "power=0.4", "'frobenius'", "'triangle'", "Taylor(degree=7)", "Lapack()", "0.125"):
        assert part in text
    assert "isometric=True" in text


@pytest.mark.parametrize("train", slow_but(["train"], {"train": True, "eval": False}))
@pytest.mark.parametrize("name", slow_but(["features"], layers().keys()))
def test_compiles_in_one_graph(name, train):
    layer = layers()[name].train(train)
    x, z = INPUT.clone().requires_grad_(), INPUT.clone().requires_grad_()
    reference = copy.deepcopy(layer)
    y, expected = torch.compile(layer, fullgraph=True, backend="aot_eager")(x), reference(z)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
    y.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, z.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@each_layer
def test_compiles_with_inductor(name):
    layer, x = layers()[name].eval(), INPUT.clone().requires_grad_()
    z = INPUT.clone().requires_grad_()
    torch.compile(layer, fullgraph=True)(x).square().sum().backward()
    layer(z).square().sum().backward()
    torch.testing.assert_close(x.grad, z.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", slow_but(["plain", "features"], layers().keys()))
def test_exports_with_any_batch_size(name):
    layer = layers()[name].eval()
    is_2_9 = torch.__version__.startswith("2.9.")  # whose cache breaks this: docs/compatibility.md
    with torch._dynamo.config.patch(fake_tensor_cache_enabled=False) if is_2_9 else nullcontext():
        program = torch.export.export(layer, (INPUT,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    x = maps(7, 5, 3, 3, dtype=torch.float32, seed=4)
    torch.testing.assert_close(program.module()(x), layer(x), rtol=1e-5, atol=1e-6)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(x), layer(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"output": "features"}, {"normalize": "frobenius"}, {"power": 2.0}], ids=str)
@pytest.mark.parametrize("channels", [4, 90])  # fewer than all positions, and more
def test_exports_with_any_size_of_map(options, channels):
    layer = CovariancePool2d(channels, reduced=None, **options).eval()
    sides = {i: torch.export.Dim(f"side{i}", min=3, max=9) for i in (2, 3)}
    program = torch.export.export(layer, (maps(2, channels, 6, 5),), dynamic_shapes=(sides,))
    x = maps(2, channels, 4, 7)
    torch.testing.assert_close(program.module()(x), layer(x))


@each_layer
def test_channels_last(name):
    layer, x = layers()[name].double(), INPUT.double()
    y = copy.deepcopy(layer).to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(y, layer(x), rtol=1e-7, atol=1e-9)
    if name == "features":
        assert y.is_contiguous(memory_format=torch.channels_last)


@each_output
@pytest.mark.parametrize("options", [{}, {"power": 1}, {"power": 0.1}, {"solver": sg.NewtonSchulz()}], ids=str)
@pytest.mark.parametrize("shape", [(2, 4, 5, 5), (2, 20, 3, 3)])
def test_the_normalised_gradient_of_denormal_maps(shape, options, output):
    """It grows as one over the map, to 1e40 and beyond: then it is as large as numbers are, and no NaN."""
    for scale in (1e-37, 1e-40, 1e-44):
        x = (scale * maps(*shape)).float().requires_grad_()
        covariance_pool(x, normalize="frobenius", output=output, **options).sin().sum().backward()
        assert x.grad.isfinite().all()
        assert output == "features" or x.grad.abs().amax((1, 2, 3)).min() > 1e30


@each_output
@pytest.mark.parametrize("power", [0.5, 1, 2.0])
def test_what_overflows_in_half_precision_is_the_largest_number(output, power):
    x = (3000 * maps(2, 4, 5, 5)).to(torch.float16).requires_grad_()
    y = covariance_pool(x, output=output, power=power)
    wanted = covariance_pool(x.detach().double(), output=output, power=power).clamp(-65504, 65504)
    torch.testing.assert_close(y.double(), wanted, rtol=2e-3, atol=1)
    y.double().sin().sum().backward()
    assert x.grad.isfinite().all()


@each_layer
def test_half_precision_is_computed_in_float32(name):
    layer = layers()[name].eval()
    for dtype in (torch.bfloat16, torch.float16):
        half = copy.deepcopy(layer).to(dtype)
        y = half(INPUT.to(dtype))
        assert y.dtype == dtype
        x = INPUT.to(dtype) if half.reduce is None else half.reduce(INPUT.to(dtype))
        options = {k: getattr(layer, k) for k in ("output", "normalize", "gradient", "solver", "eps")}
        assert torch.equal(y, covariance_pool(x.float(), **options).to(dtype))


@each_layer
def test_bf16_autocast(name):
    layer, x = layers()[name], INPUT.clone().requires_grad_()
    expected = copy.deepcopy(layer)(INPUT).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    y.float().square().sum().backward()
    assert y.dtype == (torch.float32 if name == "plain" else torch.bfloat16)
    assert relative_error(y.detach(), expected) < (5e-6 if name == "plain" else 2e-2)
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("solver", [sg.Auto(), NEWTON, sg.NewtonSchulz(steps=5)], ids=ident)
@pytest.mark.parametrize("shape", [(2, 64, 5, 5), (2, 16, 7, 7)], ids=["n<C", "n>C"])
def test_flags_and_autocast_cost_no_digits(shape, solver):
    x, G = maps(*shape, dtype=torch.float32), random(2, shape[1], shape[1], seed=3)
    options = {"output": "matrix", "solver": solver}
    expected, expected_gradient = covariance_pool(x.double(), **options), gradient(x.double(), G, **options)
    with matmul_precision("medium"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert relative_error(covariance_pool(x, **options), expected) < 5e-6
        assert relative_error(gradient(x, G, **options), expected_gradient) < 2e-5


@each_layer
def test_float64(name):
    layer = layers()[name].eval()
    y = copy.deepcopy(layer).double()(INPUT.double())
    assert y.dtype == torch.float64
    torch.testing.assert_close(y.float(), layer(INPUT), rtol=1e-4, atol=1e-5)


def test_device_and_dtype_arguments_and_meta():
    layer = CovariancePool2d(5, reduced=4, device="meta", dtype=torch.float64)
    assert all(p.is_meta and p.dtype == torch.float64 for p in layer.parameters())
    layer = layer.to_empty(device="cpu")
    layer.load_state_dict(CovariancePool2d(5, reduced=4, dtype=torch.float64).state_dict())
    assert layer(INPUT.double()).isfinite().all()


@each_layer
@pytest.mark.parametrize("train", [True, False])
def test_empty_batch(name, train):
    layer = layers()[name].train(train)
    state = copy.deepcopy(layer.state_dict())
    x = torch.empty(0, 5, 3, 3, requires_grad=True)
    y = layer(x)
    assert y.shape == (0, *layer(INPUT).shape[1:])
    y.sum().backward()
    assert x.grad.shape == x.shape
    layer.load_state_dict(state)
    layer(torch.empty(0, 5, 3, 3))
    assert all(torch.equal(a, b) for k, a in layer.state_dict().items() if "running" in k for b in [state[k]])


@pytest.mark.parametrize(("output", "numbers"), [("triangle", 10), ("matrix", 16), ("features", 4)])
def test_out_features(output, numbers):
    layer = CovariancePool2d(5, reduced=4, output=output)
    assert layer.channels == 4
    assert layer.out_features == numbers
    y = layer(INPUT)
    assert (y.flatten(1).shape[1] if output != "features" else y.shape[1]) == numbers


def test_monitored_layer_keeps_its_covariance_in_training():
    layer = CovariancePool2d(5, reduced=None, eps=0.5)
    layer(INPUT)
    assert layer.last_covariance is None
    layer.monitored = True
    layer.eval()(INPUT)
    assert layer.last_covariance is None
    layer.train()(INPUT.requires_grad_())
    INPUT.requires_grad_(False)
    torch.testing.assert_close(layer.last_covariance, sg.covariance(INPUT.flatten(2)))
    assert not layer.last_covariance.requires_grad


@pytest.mark.parametrize(
    "solver", [sg.Auto(), pytest.param(NEWTON, marks=pytest.mark.slow), sg.NewtonSchulz(steps=5)], ids=ident
)
def test_a_head_on_7_x_7_maps_of_256_channels_trains(solver):
    """Two classes with the same mean, told apart by their covariance alone: average pooling cannot learn them."""
    torch.manual_seed(0)
    label = torch.arange(16) % 2
    mixes = torch.randn(2, 64, 64) / 8
    x = torch.einsum("nij,njhw->nihw", mixes[label], torch.randn(16, 64, 7, 7))
    x = x - x.mean((2, 3), keepdim=True)
    pool = CovariancePool2d(64, reduced=256, solver=solver)
    model = torch.nn.Sequential(pool, torch.nn.Linear(pool.out_features, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


# Bad input.

BAD_OPTIONS = [
    {"in_channels": 0},
    {"in_channels": True},
    {"in_channels": 4.0},
    {"reduced": 0},
    {"reduced": -3},
    {"reduced": 2.5},
    {"power": 0},
    {"power": -0.5},
    {"power": math.nan},
    {"power": math.inf},
    {"power": True},
    {"power": "half"},
    {"normalize": "l2"},
    {"normalize": True},
    {"output": "vector"},
    {"output": None},
    {"eps": -1e-6},
    {"eps": math.nan},
    {"eps": math.inf},
    {"eps": None},
    {"isometric": 1},
    {"isometric": True, "output": "matrix"},
    {"solver": "lapack"},
    {"solver": None},
    {"gradient": "taylor"},
    {"gradient": sg.Auto()},
    {"solver": NEWTON, "gradient": sg.Exact()},
    {"solver": sg.PowerDeflation(5), "gradient": sg.Exact()},
    {"solver": NEWTON, "power": 0.4},
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=str)
def test_bad_options(options):
    with pytest.raises(
        sg.errors.OptionError, match=f"`CovariancePool2d`.*{next(iter(options))}|brings its own|NewtonSchulz"
    ):
        CovariancePool2d(**{"in_channels": 4, **options})
    if not options.keys() & {"in_channels", "reduced"}:
        with pytest.raises(sg.errors.OptionError, match="`covariance_pool`"):
            covariance_pool(INPUT, **options)


BAD_INPUTS = [
    (torch.zeros(2, 4, 3, 3), sg.errors.ShapeError, "5 channels"),
    (torch.zeros(5, 3, 3), sg.errors.ShapeError, "5 channels in dimension 2 of tokens.*A single map is"),
    (torch.zeros(2, 5), sg.errors.ShapeError, "N, C, H, W"),
    (torch.zeros(2, 2, 5, 3, 3), sg.errors.ShapeError, "N, C, H, W"),
    (torch.zeros(2, 0, 5), sg.errors.ShapeError, "one position"),
    (torch.zeros(1, 1, 5), sg.errors.ShapeError, "more than 1 value"),
    (torch.zeros(2, 5, 0, 3), sg.errors.ShapeError, "one position"),
    (torch.zeros(1, 5, 1, 1), sg.errors.ShapeError, "more than 1 value"),
    (torch.zeros(2, 5, 3, 3, dtype=torch.int64), sg.errors.DtypeError, "int64"),
    (torch.zeros(2, 5, 3, 3, dtype=torch.complex64), sg.errors.DtypeError, "complex64"),
    ([[1.0]], sg.errors.DtypeError, "list"),
    (torch.full((2, 5, 3, 3), math.nan), sg.errors.NonFiniteError, "NaN"),
    (torch.full((2, 5, 3, 3), math.inf), sg.errors.NonFiniteError, "Inf"),
    (3e37 * maps(2, 5, 3, 3, dtype=torch.float32), sg.errors.NonFiniteError, "mean of `input` over 9 positions overflows"),
    (3e37 * maps(2, 5, 9, 1, dtype=torch.float32)[..., 0].mT, sg.errors.NonFiniteError, "over 9 positions overflows"),
]


@pytest.mark.parametrize(("x", "error", "words"), BAD_INPUTS, ids=[words for _, _, words in BAD_INPUTS])
def test_bad_input_leaves_the_state_unchanged(x, error, words):
    layer = layers()["reduced"]
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(error, match=f"`CovariancePool2d`.*{words}"):
        layer(x)
    assert all(torch.equal(a, before[k]) for k, a in layer.state_dict().items())


def test_one_position_is_too_few_in_training_alone():
    layer = layers()["reduced"].eval()
    assert torch.equal(layer(torch.ones(1, 5, 1, 1)), torch.zeros(1, layer.out_features))


def test_bad_input_of_the_function():
    with pytest.raises(sg.errors.ShapeError, match=r"`covariance_pool`.*\(\*batch, C, H, W\)"):
        covariance_pool(torch.zeros(3, 3))
    with pytest.raises(sg.errors.NonFiniteError, match=r"`covariance_pool`.*`x`"):
        covariance_pool(torch.full((3, 2, 2), math.nan))
    with sg.checks(False):
        assert covariance_pool(torch.full((3, 2, 2), math.nan)).isnan().all()


def test_example_trains():
    accuracy = runpy.run_path(str(EXAMPLES / "covariance_pooling_head.py"))["main"](steps=20)
    for kind in ("images", "tokens"):
        assert accuracy[f"covariance pooling of {kind}"] > 0.9 > 0.6 > accuracy[f"average pooling of {kind}"]


SHAPES = {"C < n": (2, 3, 4, 4), "C > n": (2, 6, 2, 2)}


@pytest.mark.parametrize("power", [0.3, 0.5, 0.7, 1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_normalised_power_does_not_depend_on_the_scale(shape, power):
    x, G = maps(*shape, dtype=torch.float32), random(shape[0], shape[1], shape[1], seed=9).float()
    options = {"power": power, "normalize": "frobenius", "output": "matrix"}
    want, slope = covariance_pool(x, **options), gradient(x, G, **options)
    for scale in (2.0**-100, 2.0**-40, 2.0**33, 2.0**63, 2.0**120):
        assert relative_error(covariance_pool(scale * x, **options), want) < 1e-5
        if scale < 1e20:  # else it underflows
            assert relative_error(scale * gradient(scale * x, G, **options).double(), slope) < 1e-4


@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_power_that_overflows_is_the_largest_number(shape, power):
    x, G = maps(*shape, dtype=torch.float32), random(shape[0], shape[1], shape[1], seed=9).float()
    small = 2.0 ** (50 / power)  # nothing overflows: 2^100 times the power at scale 1
    got = covariance_pool(small * x, power=power, output="matrix")
    assert relative_error(got, 2.0**100 * covariance_pool(x, power=power, output="matrix")) < 1e-4
    got = gradient(small * x, G, power=power, output="matrix").double()
    assert relative_error(small * got, 2.0**100 * gradient(x, G, power=power, output="matrix").double()) < 1e-3
    large = covariance_pool(1e30 * x, power=power, output="matrix")
    assert large.abs().max() == torch.finfo(torch.float32).max
    assert gradient(1e30 * x, G, power=power, output="matrix").isfinite().all()


@pytest.mark.parametrize("power", [0.3, 0.5, 1, 2])
@pytest.mark.parametrize("options", [{}, {"eps": 1e-5}, {"normalize": "frobenius"}, {"gradient": sg.Taylor()}], ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_features_at_the_end_of_the_range(shape, options, power):
    """They and their gradient are exact up to 2^-16 of the largest number, and finite from there on."""
    x, G = maps(*shape, dtype=torch.float32), random(*shape, seed=9).float()
    options = {"power": power, "output": "features", **options}
    degree = 1 if "normalize" in options else 2 * power + 1
    for scale in (2.0 ** int(100 / degree), 2.0**60, 2.0**100):
        got, slope = covariance_pool(scale * x, **options), gradient(scale * x, G, **options)
        want = covariance_pool(scale * x.double(), **options)
        assert got.isfinite().all()
        assert slope.isfinite().all()
        if math.log2(scale) * degree <= 101:
            assert relative_error(got, want) < 1e-5
            assert relative_error(slope, gradient(scale * x.double(), G, **options)) < 1e-4
        elif want.abs().min() > torch.finfo(torch.float32).max:
            assert (got.double().abs() == torch.finfo(torch.float32).max).all()
            assert torch.equal(got.sign().double(), want.sign())


@pytest.mark.parametrize("power", [0.2, 1, 1.5, 3])
@pytest.mark.parametrize("options", [{"eps": 1e-5}, {"eps": 1}, {"gradient": sg.Taylor()}, {"gradient": sg.Clip()}], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (2, 12, 2, 2)], ids=str)
@each_output
def test_shifted_powers_and_rules_are_finite_up_to_the_end_of_the_range(output, shape, options, power):
    x = maps(*shape, dtype=torch.float32)
    for scale in (1e-44, 1e10, 1e18, 1e22, 1e35):
        y = (scale * x).requires_grad_()
        with sg.checks(False):
            got = covariance_pool(y, power=power, output=output, **options)
        got.backward(random(*got.shape, seed=9).float())
        assert got.isfinite().all()
        assert y.grad.isfinite().all()
