"""The papers' power iterations on a GPU: by kernels, equal to the plain path, without waiting, in a CUDA graph."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.kernels import power
from spectralgrad.linalg.power import deflation
from spectralgrad.nn import DecorrelatedBatchNorm2d
from support import cases
from support.gpu import captured, error, no_host_wait

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("default")]

LIMITS = {torch.float64: 1e-9, torch.float32: 1e-3}
RULES = {name: sg.PowerIteration(9, deflation=name) for name in ("two-sided", "printed")}  # type: ignore[arg-type]
OPTIONS: dict[str, dict[str, Any]] = {"svd-pi": {"gradient": sg.PowerIteration(19)}, "pi": {"solver": sg.PowerDeflation(19)}}


def matrices(batch: int, n: int, dtype: torch.dtype, device: str = "cuda") -> Tensor:
    return cases.with_spectrum(torch.logspace(-2, 0, n, dtype=torch.float64), batch, seed=n).to(dtype).to(device)


def derivatives(f: Callable[[Tensor], tuple[Tensor, ...]], M: Tensor) -> list[Tensor]:
    """Values and the gradient of a sum of them that eigenvectors enter by their squares."""
    x = M.clone().requires_grad_()
    out = f(x)
    weights = [torch.linspace(-1, 1, y[0].numel(), device=M.device).to(y).reshape(y.shape[1:]) for y in out]
    (g,) = torch.autograd.grad(sum((y.square() * weight).sum() for y, weight in zip(out, weights, strict=True)), x)
    return [*(y.detach().square() for y in out), g]


@pytest.mark.parametrize("dtype", LIMITS, ids=cases.ident)
@pytest.mark.parametrize("n", [1, 2, 5, 16, 33, 64])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_svd_pi(rule: sg.PowerIteration, n: int, dtype: torch.dtype, record_property: Any) -> None:
    def f(M: Tensor) -> tuple[Tensor, ...]:
        return *sg.eigh(M, gradient=rule), sg.inv_sqrtm(M, gradient=rule)

    assert power.runs_on(matrices(1, n, dtype))
    expected = derivatives(f, matrices(3, n, torch.float64, "cpu"))
    worst = max(map(error, derivatives(f, matrices(3, n, dtype)), expected))
    record_property("error", worst)
    assert worst <= LIMITS[dtype]


@pytest.mark.parametrize("dtype", LIMITS, ids=cases.ident)
@pytest.mark.parametrize("n", [1, 2, 5, 16, 33, 64])
def test_pi(n: int, dtype: torch.dtype, record_property: Any) -> None:
    """From the same starts; few steps, after which the vectors are far from eigenvectors."""
    H, start = matrices(3, n, torch.float64, "cpu"), cases.random(3, n, n, seed=7)
    gw, gV = cases.random(3, n, seed=1), cases.random(3, n, n, seed=2)
    X = H.clone().requires_grad_()
    expected = deflation.iterated(X, start, 4)
    (gradient,) = torch.autograd.grad(expected, X, (gw, gV))
    G, s, *cotangents = (x.to(dtype).cuda() for x in (H, start, gw, gV))
    w, V, kept = power.iterate(G, s, 4, keep=True)
    found = power.retrace(G, kept, *cotangents, 4)
    worst = max(error(w, expected[0]), error(V, expected[1]), error(found, gradient))
    record_property("error", worst)
    assert worst <= LIMITS[dtype]


@pytest.mark.parametrize("n", [100, 128])
def test_large_matrices(n: int) -> None:
    def f(M: Tensor) -> tuple[Tensor, ...]:
        return (sg.inv_sqrtm(M, gradient=sg.PowerIteration(3)),)

    assert power.runs_on(matrices(1, n, torch.float32))
    expected = derivatives(f, matrices(2, n, torch.float64, "cpu"))
    assert max(map(error, derivatives(f, matrices(2, n, torch.float32)), expected)) <= 2e-3
    M = matrices(1, n, torch.float32).requires_grad_()
    w, V = sg.eigh(M, solver=sg.PowerDeflation(3))
    torch.testing.assert_close(V.detach().norm(dim=-2), torch.ones(1, n, device="cuda"), rtol=1e-4, atol=0)
    (g,) = torch.autograd.grad(w.sum(), M)
    assert bool(g.isfinite().all())


def test_random_starts_are_those_of_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    M = matrices(2, 16, torch.float64)

    def f(M: Tensor) -> tuple[Tensor, ...]:
        return sg.eigh(M, solver=sg.PowerDeflation(4, torch.Generator("cuda").manual_seed(3)))

    found = derivatives(f, M)
    monkeypatch.setattr(power, "runs_on", lambda _: False)
    for x, y in zip(found, derivatives(f, M), strict=True):
        assert error(x, y) <= LIMITS[torch.float64]


def layer_step(options: dict[str, Any], d: int, **more: Any) -> Callable[[], tuple[Tensor, ...]]:
    layer = DecorrelatedBatchNorm2d(64, group_size=d, **options, **more).cuda()
    x, g = (cases.random(16, 64, 8, 8, seed=seed, dtype=torch.float32).cuda() for seed in (0, 1))
    x.requires_grad_()
    return lambda: torch.autograd.grad(layer(x), [x, *layer.parameters()], g)


@pytest.mark.parametrize("d", [16, 64])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_layer_does_not_wait(options: dict[str, Any], d: int) -> None:
    step = layer_step(options, d)
    step()
    with no_host_wait():
        step()


@pytest.mark.parametrize("d", [16, 64])
def test_a_layer_equals_the_plain_path(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SVD-PI; for PI see its own test: after 19 steps inside near ties its vectors are rounding."""
    found = layer_step(OPTIONS["svd-pi"], d)()
    monkeypatch.setattr(power, "runs_on", lambda _: False)
    for x, y in zip(found, layer_step(OPTIONS["svd-pi"], d)(), strict=True):
        assert error(x, y) <= LIMITS[torch.float32]


@pytest.mark.parametrize("d", [16, 64])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_captured_layer(options: dict[str, Any], d: int) -> None:
    """SVD-PI replays what it computed; PI draws new starts at every replay, as at every call."""
    eager, written, replay = captured(layer_step(options, d, track_running_stats=False))
    replay()
    torch.cuda.synchronize()
    first = [x.clone() for x in written]
    assert all(bool(x.isfinite().all()) for x in first)
    replay()
    torch.cuda.synchronize()
    if "gradient" in options:
        assert all(torch.equal(x, y) for x, y in zip(first, eager, strict=True))
        assert all(torch.equal(x, y) for x, y in zip(first, written, strict=True))
    else:
        assert not torch.equal(first[0], written[0])
