"""BiMap, ReEig, LogEig and SPDBatchNorm: what they compute, their gradients at kinks and ties, their state."""

import copy
import pickle
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

import spectralgrad as sg
from spectralgrad.errors import DefinitenessError, DtypeError, NonFiniteError, OptionError, ShapeError, SymmetryError
from spectralgrad.nn import BiMap, LogEig, ReEig, SPDBatchNorm
from support import cases
from support.spd import definite, hermitian

EXAMPLE = Path(__file__).parents[2] / "examples" / "spd_network.py"
LAYERS: dict[str, Callable[..., nn.Module]] = {
    "BiMap": lambda **options: BiMap(4, 3, **options),
    "ReEig": lambda **_: ReEig(2.0),
    "LogEig": lambda **_: LogEig(),
    "SPDBatchNorm": lambda **options: SPDBatchNorm(4, **options),
}
each_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    yield
    torch.compiler.reset()


# BiMap.


@pytest.mark.parametrize(("inside", "outside"), [(6, 3), (4, 4), (3, 5), (9, 2)])
def test_bimap_is_orthonormal_and_stays_so(inside: int, outside: int) -> None:
    layer = BiMap(inside, outside, dtype=torch.float64)
    X = definite(8, n=inside)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    start = layer.weight.detach().clone()
    for _ in range(5):
        loss = layer(X)[..., 0, 0].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    W = layer.weight.detach()
    small = W @ W.mT if outside <= inside else W.mT @ W
    torch.testing.assert_close(small, torch.eye(min(inside, outside), dtype=torch.float64), rtol=0, atol=1e-13)
    assert float((W - start).abs().max()) > 1e-3
    torch.testing.assert_close(layer(X), W @ X @ W.mT, rtol=1e-12, atol=1e-12)
    assert torch.equal(layer(X), layer(X).mT)  # to the last bit
    if outside <= inside:
        w = torch.linalg.eigvalsh(layer(X).detach())
        assert float(w.min()) >= float(torch.linalg.eigvalsh(X).min()) - 1e-12  # inside the range of those of X


def test_bimap_starts_at_random_and_takes_complex() -> None:
    torch.manual_seed(0)
    layer = BiMap(4, 3, dtype=torch.float64)
    start = layer.weight.detach().clone()
    layer.reset_parameters()
    assert float((layer.weight - start).detach().abs().max()) > 1e-2
    X = definite(2, n=4, dtype=torch.complex128)
    W = layer.weight.to(torch.complex128)
    torch.testing.assert_close(layer(X), W @ X @ W.mT, rtol=1e-12, atol=1e-12)


# ReEig.


def rectified(X: Tensor, floor: float) -> Tensor:
    w, V = torch.linalg.eigh(X)
    return (V * w.clamp(min=floor).unsqueeze(-2)) @ V.mH


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=cases.ident)
@pytest.mark.parametrize("w", [[-1.0, 0.5, 2.0, 3.0], [0.5, 0.5, 3.0, 3.0], [2.0, 2.5, 2.5, 3.0]], ids=str)
def test_reeig_on_both_sides_of_its_kink(w: list[float], dtype: torch.dtype) -> None:
    X = cases.with_spectrum(torch.tensor(w, dtype=torch.float64), dtype=dtype).requires_grad_()
    layer = ReEig(1.0)
    torch.testing.assert_close(layer(X), rectified(X, 1.0), rtol=1e-12, atol=1e-12)
    assert gradcheck(lambda X: layer(hermitian(X)), X, check_forward_ad=True)
    assert gradgradcheck(lambda X: layer(hermitian(X)), X, fast_mode=True)


def test_reeig_divided_differences() -> None:
    """1 above, 0 at the floor and below, (l_i - floor) / (l_i - l_j) across, by a gradient for each pair."""
    w = torch.tensor([-1.0, 0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    X = torch.diag(w).requires_grad_()
    Y = ReEig(1.0)(X)
    for i in range(5):
        for j in range(5):
            (g,) = torch.autograd.grad(Y[i, j] + Y[j, i], X, retain_graph=True)
            above, below = max(float(w[i]), float(w[j])), min(float(w[i]), float(w[j]))
            want = 1.0 if below > 1 else 0.0 if above <= 1 else (above - 1) / (above - below)
            assert float(g[i, j]) == pytest.approx(want * (2 if i == j else 1), abs=1e-12), (i, j)


def test_reeig_at_the_floor_and_below_has_derivative_zero() -> None:
    for value in (0.5, 1.0):
        X = (value * torch.eye(3)).requires_grad_()
        ReEig(1.0)(X).sum().backward()
        assert X.grad is not None
        assert bool((X.grad == 0).all())


def test_plain_reeig_fails_at_ties() -> None:
    """The control, and what ours gives there."""
    X = torch.diag(torch.tensor([0.0, 0.0, 2.0, 2.0])).requires_grad_()
    (bad,) = torch.autograd.grad(rectified(X, 1e-4).sum(), X)
    (good,) = torch.autograd.grad(ReEig()(X).sum(), X)
    assert bad.isnan().any()
    assert good.isfinite().all()
    torch.testing.assert_close(good[2:, 2:], torch.ones(2, 2))


@pytest.mark.parametrize("scale", [1e-8, 1e8, 1e-300, 1e300])
def test_reeig_at_any_scale(scale: float) -> None:
    X = cases.with_spectrum(torch.tensor([-1.0, 0.5, 0.5, 2.0, 2.0], dtype=torch.float64))
    grads = []
    for c in (1.0, scale):
        leaf = (c * X).requires_grad_()
        Y = ReEig(c)(leaf)
        torch.testing.assert_close(Y.detach() / c, ReEig(1.0)(X), rtol=1e-12, atol=1e-12)
        grads += torch.autograd.grad(Y, leaf, cases.random(5, 5, seed=2))
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-12)


# LogEig.


def test_logeig_is_logm() -> None:
    X = cases.with_spectrum(cases.repeated(5)).requires_grad_()
    torch.testing.assert_close(LogEig()(X), sg.logm(X))
    assert gradcheck(lambda X: LogEig()(hermitian(X)), X)


# SPDBatchNorm.


def test_the_mean_of_the_output_is_the_bias() -> None:
    layer, X = SPDBatchNorm(4, dtype=torch.float64), definite(3, 6, n=4)
    nn.init.normal_(layer.log_bias, generator=cases.generator(1))
    Y = layer(X)
    assert Y.shape == X.shape
    torch.testing.assert_close(sg.spd.mean(Y.flatten(0, 1)), layer.bias, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer.bias, torch.matrix_exp(hermitian(layer.log_bias)), rtol=1e-12, atol=1e-12)
    M, G = sg.spd.mean(X.flatten(0, 1)), layer.bias
    half = sg.sqrtm(G) @ sg.inv_sqrtm(M)
    torch.testing.assert_close(Y, half @ X @ half.mT, rtol=1e-10, atol=1e-10)


def test_the_distances_inside_a_batch_stay() -> None:
    layer, X = SPDBatchNorm(4, dtype=torch.float64), definite(6, n=4)
    Y = layer(X)
    torch.testing.assert_close(sg.spd.distance(Y[:1], Y[1:]), sg.spd.distance(X[:1], X[1:]), rtol=1e-10, atol=1e-10)


def test_gradients_go_through_the_mean() -> None:
    layer, X = SPDBatchNorm(3, dtype=torch.float64), definite(3, n=3).requires_grad_()
    nn.init.normal_(layer.log_bias, generator=cases.generator(1))
    f = lambda X, S: torch.func.functional_call(layer, {"log_bias": S}, hermitian(X))  # noqa: E731
    assert gradcheck(f, (X, layer.log_bias), fast_mode=True, check_forward_ad=True)


@pytest.mark.parametrize("momentum", [0.1, 0.0, 1.0, None])
def test_the_running_mean_moves_along_geodesics(momentum: float | None) -> None:
    layer = SPDBatchNorm(3, momentum, dtype=torch.float64)
    want = torch.eye(3, dtype=torch.float64)
    for step in range(1, 4):
        X = definite(5, n=3, seed=step)
        layer(X)
        want = sg.spd.geodesic(want, sg.spd.mean(X), 1 / step if momentum is None else momentum)
    torch.testing.assert_close(layer.running_mean, want, rtol=1e-11, atol=1e-11)
    assert int(layer.num_batches_tracked) == 3
    layer.eval()
    P = sg.inv_sqrtm(want)
    torch.testing.assert_close(layer(X), P @ X @ P, rtol=1e-10, atol=1e-10)
    assert int(layer.num_batches_tracked) == 3
    layer.reset_running_stats()
    torch.testing.assert_close(layer.running_mean, torch.eye(3, dtype=torch.float64))
    assert int(layer.num_batches_tracked) == 0


def test_batches_of_none_and_of_one() -> None:
    layer = SPDBatchNorm(3)
    assert layer(torch.zeros(0, 3, 3)).shape == (0, 3, 3)
    assert int(layer.num_batches_tracked) == 1
    torch.testing.assert_close(layer.running_mean, torch.eye(3))
    with pytest.raises(ShapeError, match=r"training needs more than 1 matrix.*Pass a larger batch, or call eval\(\)"):
        layer(torch.eye(3))
    assert int(layer.num_batches_tracked) == 1
    torch.testing.assert_close(layer.eval()(torch.eye(3)), torch.eye(3))


def test_an_error_leaves_the_state() -> None:
    layer, X = SPDBatchNorm(3, dtype=torch.float64), definite(4, n=3)
    X[1] = -X[1]
    with pytest.raises(DefinitenessError):
        layer(X)
    assert int(layer.num_batches_tracked) == 0
    torch.testing.assert_close(layer.running_mean, torch.eye(3, dtype=torch.float64))


# As torch.nn's.


@each_layer
def test_state_and_copies(make: Any) -> None:
    torch.manual_seed(0)
    layer, X = make(dtype=torch.float64), definite(5, n=4)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    layer(X)
    layer.eval()
    torch.manual_seed(1)
    other = make(dtype=torch.float64).eval()
    other.load_state_dict(layer.state_dict())
    for twin in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(twin(X), layer(X), rtol=0, atol=0)
    assert layer.float()(X.float()).dtype == torch.float32


def test_names() -> None:
    assert repr(ReEig()) == "ReEig(floor=0.0001)"
    assert repr(LogEig()) == "LogEig()"
    assert repr(SPDBatchNorm(4, momentum=None)) == "SPDBatchNorm(4, momentum=None)"
    assert "in_features=4, out_features=3" in repr(BiMap(4, 3))
    assert set(SPDBatchNorm(4).state_dict()) == {"log_bias", "running_mean", "num_batches_tracked"}
    assert set(BiMap(4, 3).state_dict()) == {"skew", "orthonormal.base"}


@each_layer
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=cases.ident)
def test_half_precision_in_half_precision_out(make: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer, X = make(), definite(5, n=4).to(dtype)
    Y = layer(X)
    assert Y.dtype == dtype
    torch.testing.assert_close(Y, copy.deepcopy(layer)(X.float()).to(dtype))
    assert make(dtype=dtype)(X).isfinite().all()


@each_layer
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_batch_shapes(make: Any, training: bool) -> None:
    layer, X = make(dtype=torch.float64).train(training), definite(2, 3, n=4)
    Y = layer(X)
    assert Y.shape[:2] == (2, 3)
    torch.testing.assert_close(Y, make_same(layer)(X.flatten(0, 1)).unflatten(0, (2, 3)), rtol=1e-11, atol=1e-11)
    assert layer(torch.zeros(0, 4, 4, dtype=torch.float64)).shape[0] == 0


def make_same(layer: nn.Module) -> nn.Module:
    return copy.deepcopy(layer)


@pytest.mark.slow
@each_layer
def test_compiles_in_one_graph(make: Any) -> None:
    layer, X = make(dtype=torch.float64), definite(5, n=4)
    compiled = torch.compile(copy.deepcopy(layer), fullgraph=True, backend="aot_eager")
    leaf, twin = X.clone().requires_grad_(), X.clone().requires_grad_()
    want, found = layer(leaf), compiled(twin)
    torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-11)
    G = cases.random(*want.shape, seed=3)
    want.backward(G)
    found.backward(G)
    torch.testing.assert_close(twin.grad, leaf.grad, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("call", "error", "what"),
    [
        (lambda: BiMap(0, 3), OptionError, "`BiMap`: in_features must be a whole number >= 1, got 0"),
        (lambda: BiMap(3, 2.0), OptionError, "`BiMap`: out_features must be"),
        (lambda: BiMap(3, 2, dtype=torch.complex64), DtypeError, "`BiMap`: dtype must be real"),
        (lambda: ReEig(0.0), OptionError, "`ReEig`: floor must be a finite number > 0, got 0.0"),
        (lambda: SPDBatchNorm(-1), OptionError, "num_features must be"),
        (lambda: SPDBatchNorm(3, momentum=1.5), OptionError, "momentum must lie in"),
        (lambda: BiMap(3, 2)(torch.eye(4)), ShapeError, r"`BiMap`: `input` must be \(\*batch, 3, 3\), as in_features=3"),
        (lambda: BiMap(3, 2)(torch.eye(3).double()), DtypeError, "precision of the layer"),
        (lambda: BiMap(3, 2)(torch.eye(3) * float("nan")), NonFiniteError, "`BiMap`: `input` must be finite"),
        (lambda: SPDBatchNorm(3)(torch.eye(4)), ShapeError, "as num_features=3 says"),
        (
            lambda: BiMap(2, 2)(torch.ones(2, 2).triu()),
            SymmetryError,
            r"`BiMap`: `input` must be symm.*pass \(input \+ input",
        ),
        (lambda: ReEig()(torch.ones(2, 3)), ShapeError, "`ReEig`: `input` must be square"),
        (lambda: ReEig()(torch.ones(2, 2).long()), DtypeError, "`ReEig`: `input` must be"),
        (lambda: ReEig()(torch.ones(2, 2).triu()), SymmetryError, "`ReEig`: `input` must be symmetric"),
        (lambda: LogEig()(torch.ones(2, 2) * float("nan")), NonFiniteError, "`LogEig`: `input` must be finite"),
        (lambda: SPDBatchNorm(2)(torch.eye(2).to(torch.complex64)), DtypeError, "`SPDBatchNorm`: `input` must be real"),
        (lambda: LogEig()(torch.zeros(2, 2)), DefinitenessError, "`LogEig`: `input` must be positive definite.*Put ReEig"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        call()


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_batchnorm_names_itself_and_its_input(training: bool) -> None:
    """In eval mode too, where nothing but the check would see what kind of matrices came."""
    layer, X = SPDBatchNorm(2).train(training), torch.eye(2).repeat(3, 1, 1)
    for bad, error, what in [
        (-X, DefinitenessError, "positive definite, but 3 of 3"),
        (X + torch.ones(2, 2).triu(1), SymmetryError, "symmetric"),
        (X * float("inf"), NonFiniteError, "finite"),
    ]:
        with pytest.raises(error, match=f"^`SPDBatchNorm`: `input` must be {what}"):
            layer(bad)


def test_half_precision_is_symmetric_to_its_own_rounding() -> None:
    X = torch.tensor([[2.0, 1.0], [1.0078125, 2.0]]).bfloat16().repeat(3, 1, 1)  # neighbours in bfloat16
    for layer in (BiMap(2, 2), ReEig(), SPDBatchNorm(2), LogEig()):
        assert layer(X).isfinite().all()


# The example.


def trained(seeds: list[int], steps: int) -> dict[str, list[dict[str, float]]]:
    example = runpy.run_path(str(EXAMPLE))
    found: dict[str, list[dict[str, float]]] = {"ours": [], "plain": []}
    for seed in seeds:
        for name, layers in {"ours": (ReEig, LogEig), "plain": (example["PlainReEig"], example["PlainLogEig"])}.items():
            torch.manual_seed(seed)
            found[name].append(example["attempt"](example["network"](*layers), steps, seed))
    return found


@pytest.mark.parametrize("seeds", [[0], pytest.param(list(range(20)), marks=pytest.mark.slow)], ids=["one", "twenty"])
def test_the_network_of_the_example_trains(seeds: list[int]) -> None:
    """And the same on torch.linalg.eigh does not: sensors that are off tie exactly."""
    found = trained(seeds, 40)
    assert all(result["nan"] == -1 and result["accuracy"] > 0.9 for result in found["ours"])
    assert all(result["gradient"] < 100 for result in found["ours"])
    assert all(result["nan"] != -1 for result in found["plain"])


def test_the_example_prints_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE))["main"](steps=2, seeds=1)
    ours, plain = capsys.readouterr().out.splitlines()
    assert ours.startswith("seed 0, spectralgrad: accuracy")
    assert plain.startswith("seed 0, torch.linalg.eigh: NaN or Inf in the gradient of step 0")
