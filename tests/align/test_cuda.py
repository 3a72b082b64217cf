"""Clouds on a GPU: against the CPU, masks, no host wait, a CUDA graph, counts, the same bits."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.kernels import clouds
from support import cases
from support.gpu import captured, error, no_host_wait

pytestmark = pytest.mark.cuda
BOTH: dict[str, Callable[..., tuple[Tensor, ...]]] = {"kabsch": sg.kabsch, "umeyama": sg.umeyama}
each = pytest.mark.parametrize("function", BOTH.values(), ids=BOTH)
# Eight lanes a pair, a warp, several warps; one pair, and more than a block holds.
SHAPES = [(1, 5, 3), (1000, 32, 3), (5, 60, 2), (3, 500, 4), (2, 5000, 3), (300_000, 6, 3)]


def sample(*shape: int, masked: bool = False) -> list[Tensor]:
    x, y = (cases.random(*shape, seed=seed).float() + 1 for seed in range(2))
    w = cases.random(*shape[:-1], seed=2).abs().float()
    if masked:
        w[..., 1] = 0
        x[..., 1, :], y[..., 1, :] = torch.nan, torch.inf
    return [x, y, w]


def found_and_slopes(function: Callable[..., tuple[Tensor, ...]], given: list[Tensor]) -> list[Tensor]:
    given = [z.detach().requires_grad_() for z in given]
    out = function(*given)
    cotangents = [cases.random(*z.shape, seed=5 + i).to(z) for i, z in enumerate(out)]
    return [*(z.detach() for z in out), *torch.autograd.grad(out, given, cotangents)]


@each
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_the_cpu(shape: tuple[int, ...], function: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    for name in ("align", "spread"):
        kernel = getattr(clouds, name)
        monkeypatch.setattr(clouds, name, lambda *args, name=name, kernel=kernel: launched.append(name) or kernel(*args))
    given = sample(*shape, masked=True)
    found = found_and_slopes(function, [z.cuda() for z in given])
    assert launched == ["align", "spread"]
    expected = found_and_slopes(function, given)
    assert all(z.isfinite().all() for z in found)
    assert max(map(error, found, expected)) <= 1e-5


@each
def test_the_same_bits_no_host_wait_and_a_graph(function: Callable) -> None:
    given = [z.cuda() for z in sample(100, 700, 3)]
    expected = found_and_slopes(function, given)
    leaves = [z.clone().requires_grad_() for z in given]
    cotangents = [cases.random(*z.shape, seed=5 + i).to(z) for i, z in enumerate(expected[: -len(leaves)])]

    def step() -> list[Tensor]:
        out = function(*leaves)
        return [*(z.detach() for z in out), *torch.autograd.grad(out, leaves, cotangents)]

    with no_host_wait():
        again = step()
    _, written, replay = captured(step)
    replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, again, expected))
    assert all(map(torch.equal, written, expected))


@each
def test_bad_pairs_are_counted_and_stay_alone(function: Callable) -> None:
    x, y, w = (z.cuda() for z in sample(5, 6, 3))
    x[0, 2, 1], w[1] = torch.nan, -1
    x[2] = x[2, :1]
    sg.reset_counts()
    found = found_and_slopes(function, [x, y, w])
    assert sg.counts() == {"nonfinite_input": 2, "rotation_not_unique": 1}
    sg.reset_counts()
    for z in found:
        assert bool(z[2:].isfinite().all())
    assert bool(found[0][:2].isnan().all())
    with sg.checks(True), pytest.raises(sg.errors.NonFiniteError):
        function(x, y)
