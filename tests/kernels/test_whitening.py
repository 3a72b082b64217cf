"""The kernels of a whitening step together: Triton's in its interpreter, CUDA's under the emulator."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parametrize

import spectralgrad as sg
from spectralgrad.counters import counts
from spectralgrad.kernels import moments, whitening
from spectralgrad.nn import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d
from support import cases, routes
from support.on_cpu import on_cpu  # noqa: F401
from support.routes import take
from support.triton_kernels import (
    SHARED_MEMORY,
    compile_for_hopper,
    compiles,
    in_interpreter,
    launches,
)

SHAPES = {"d=3": ((5, 6, 4, 3), 3), "d=4": ((6, 8, 3, 3), 4), "d=1": ((9, 2, 2, 2), 1), "d=5 in one": ((40, 5, 2, 1), 5)}


SMALL = (6, 4, 2, 2)  # of tests that ask for no shape: the interpreter is slow


def test_step_is_for_float32_on_a_gpu() -> None:
    assert not whitening.runs_on(torch.ones(4, 6, 2, 2), 3)
    assert not whitening.runs_on(torch.ones(4, 6, 2, 2, dtype=torch.float64), 3)


@pytest.fixture
def kernels(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """What happens on CUDA: the single step, without checks."""
    take(monkeypatch, routes.kernels)


def features(shape: tuple[int, ...], seed: int = 0, mean: float = 2.0) -> Tensor:
    mix = cases.random(shape[1], shape[1], seed=seed + 50)
    return (torch.einsum("ij,nj...->ni...", mix, cases.random(*shape, seed=seed)) + mean).float()


def steps(layer: torch.nn.Module, x: Tensor, count: int = 2) -> dict[str, Tensor]:
    """What some training steps give and leave behind."""
    found: dict[str, Tensor] = {}
    with sg.checks(False):
        for k in range(count):
            leaf = (x + k).requires_grad_()
            y = layer(leaf)
            y.backward(cases.random(*y.shape, seed=99 + k).to(y.dtype))
            assert leaf.grad is not None
            found |= {f"y {k}": y.detach(), f"dx {k}": leaf.grad}
    found |= {f"d{name}": p.grad for name, p in layer.named_parameters() if p.grad is not None}
    return found | {name: buffer.double() for name, buffer in layer.named_buffers()}


@pytest.mark.covering(1)
@in_interpreter
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
def test_interpreted_steps(name: str, affine: bool) -> None:
    shape, d = SHAPES[name]
    kind = DecorrelatedBatchNorm2d
    layer = kind(shape[1], d, affine=affine, momentum=0.3 if affine else 0.7, eps=1e-3)
    if affine:
        torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(1))
        torch.nn.init.normal_(layer.bias, generator=torch.Generator().manual_seed(2))
    exact = copy.deepcopy(layer).double()
    got, want = steps(layer, features(shape)), steps(exact, features(shape).double())
    assert got.keys() == want.keys()
    for key, value in want.items():
        assert cases.relative_error(got[key], value) < 3e-4, key
    assert layer.num_batches_tracked == 2


def tied(x: Tensor) -> Tensor:
    """Covariance I: all eigenvalues are equal, to the last bit or nearly so."""
    n = x.numel() // x.shape[1]
    signs = torch.tensor(
        [[(-1.0) ** (k >> i & 1) for k in range(n)] for i in range(x.shape[1])]
    )  # rows of a Hadamard matrix
    return signs.unflatten(1, (x.shape[0], *x.shape[2:])).transpose(0, 1).contiguous()


HARD: dict[str, Callable[[Tensor], Tensor]] = {
    "constant": lambda x: torch.full_like(x, 3.0),
    "tied": tied,
    "nearly tied": lambda x: tied(x) + 1e-4 * x,
    "rank deficient": lambda x: torch.cat([x[:, :2], x[:, :2], x[:, :2]], 1),
    "scaled 1e8": lambda x: 1e8 * x,
    "scaled 1e-8": lambda x: 1e-8 * x,
    "far mean": lambda x: x + 1e3,
}


@in_interpreter
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("hard", HARD)
def test_interpreted_hard_spectra(hard: str) -> None:
    x = HARD[hard](features((8, 6, 4, 2), mean=0.0))
    got, want = (steps(DecorrelatedBatchNorm2d(6, 3, eps=1e-2, dtype=x.dtype), x, 1) for x in (x, x.double()))
    for key, value in want.items():
        assert got[key].isfinite().all(), key
        scale = max(float(value.abs().max()), 1e-6)
        assert float((got[key].double() - value).abs().max()) < 1e-3 * scale, key


@in_interpreter
@pytest.mark.usefixtures("kernels")
def test_interpreted_graded_spectrum() -> None:
    """Deviations from 1e3 to 1e-3: single precision does not know the smallest eigenvalues, and eps speaks for them."""
    x = features((8, 6, 4, 2), mean=0.0) * torch.logspace(3, -3, 6).view(1, 6, 1, 1)
    got, want = (steps(DecorrelatedBatchNorm2d(6, eps=1.0, dtype=x.dtype), x, 1) for x in (x, x.double()))
    for key, value in want.items():
        assert cases.relative_error(got[key], value) < 1e-3, key


@in_interpreter
@pytest.mark.usefixtures("kernels")
def test_interpreted_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the step's kernels that run, and each option that they take changes what they give."""
    calls: list[object] = []
    forward = whitening.forward
    monkeypatch.setattr(whitening, "forward", lambda *args: calls.append(args[-1].start) or forward(*args))
    x = features(SMALL)
    plain = steps(DecorrelatedBatchNorm2d(4, 2), x)
    assert len(calls) == 2
    assert calls == [None, None]
    others = {
        "eps": DecorrelatedBatchNorm2d(4, 2, eps=0.1),
        "momentum": DecorrelatedBatchNorm2d(4, 2, momentum=0.9),
        "group_size": DecorrelatedBatchNorm2d(4, 4),
    }
    for option, layer in others.items():
        found = steps(layer, x, 2 if option == "momentum" else 1)
        key = "running_mean" if option == "momentum" else "dx 0"
        assert cases.relative_error(found[key], plain[key]) > 1e-3, option
    calls.clear()
    warm = DecorrelatedBatchNorm2d(4, 2, warm_start=True)
    found = steps(warm, x)
    assert calls[0] is None
    assert calls[1] is not None
    assert warm.last_basis is not None
    assert warm.last_basis.shape == (2, 2, 2)
    for key, value in plain.items():
        assert cases.relative_error(found[key], value) < 1e-4, key


@in_interpreter
@pytest.mark.usefixtures("kernels")
def test_interpreted_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's write leaves no version, the interpreter's does: so it gets aliases here. The step bumps it by hand."""
    write = whitening.moments.launch_covariances

    def as_a_kernel(x: Tensor, groups: int, eps: float, out: moments.Covariances, running: moments.Running) -> None:
        aliases = [buffer.data for buffer in running[:3]]
        write(x, groups, eps, out, moments.Running(*aliases, running.momentum))

    monkeypatch.setattr(whitening.moments, "launch_covariances", as_a_kernel)
    layer, x = DecorrelatedBatchNorm2d(4, 2), features(SMALL)
    before = {name: (buffer._version, buffer.clone()) for name, buffer in layer.named_buffers()}
    steps(layer, x, 1)
    for name, buffer in layer.named_buffers():
        version, old = before[name]
        assert buffer._version > version, name
        assert not torch.equal(buffer, old), name


@in_interpreter
@pytest.mark.usefixtures("kernels")
def test_interpreted_state() -> None:
    """What is kept for evaluation follows the running values, and frozen ones are left alone."""
    x = features(SMALL)
    layer = DecorrelatedBatchNorm2d(4, 2)
    steps(layer, x, 1)
    before = layer.eval()(x).detach()
    steps(layer.train(), 3 * x, 1)
    assert cases.relative_error(layer.eval()(x).detach(), before) > 1e-3
    untracked = DecorrelatedBatchNorm2d(4, 2, track_running_stats=False)
    assert cases.relative_error(steps(untracked, x, 1)["y 0"], steps(DecorrelatedBatchNorm2d(4, 2), x, 1)["y 0"]) < 1e-6
    layer.train().monitored = True
    steps(layer, x, 1)
    assert layer.last_covariance is not None
    mean = x.transpose(0, 1).flatten(1)[:2]
    torch.testing.assert_close(layer.last_covariance[0], torch.cov(mean, correction=0), rtol=1e-4, atol=1e-4)


@in_interpreter
@pytest.mark.usefixtures("kernels")
def test_interpreted_parametrization() -> None:
    """A weight that is computed when it is asked for."""

    class Doubled(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    x = features(SMALL)
    layer = DecorrelatedBatchNorm2d(4, 2)
    parametrize.register_parametrization(layer, "weight", Doubled())
    got, plain = steps(layer, x, 1), steps(DecorrelatedBatchNorm2d(4, 2), x, 1)
    assert cases.relative_error(got["y 0"], 2 * plain["y 0"]) < 1e-6
    assert cases.relative_error(got["dparametrizations.weight.original"], 2 * plain["dweight"]) < 1e-5


@in_interpreter
@pytest.mark.usefixtures("kernels")
def test_interpreted_nonfinite() -> None:
    """A group with NaN gives NaN and is counted."""
    x = features(SMALL)
    x[0, 0, 0, 0] = float("nan")
    before = counts().get("nonfinite_input", 0)
    found = steps(DecorrelatedBatchNorm2d(4, 2), x, 1)
    assert found["y 0"][1:, :2].isnan().all()
    assert counts()["nonfinite_input"] == before + 1


@in_interpreter
@pytest.mark.usefixtures("kernels")
def test_interpreted_second_derivative() -> None:
    """Goes through the composition, as in the other nodes."""
    layer = DecorrelatedBatchNorm1d(4, 2)
    x = features((12, 4)).requires_grad_()
    with sg.checks(False):
        (first,) = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
    assert second.isfinite().all()
    assert second.abs().max() > 0


@compiles
@pytest.mark.parametrize("d", [16, *(pytest.param(d, marks=pytest.mark.slow) for d in (3, 64))])
def test_compiles_for_a_gpu(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's compiler is stricter than its interpreter."""
    x = torch.empty(16, 2 * d, 8, 8)
    vector, counter = torch.empty(2 * d), torch.zeros((), dtype=torch.int64)
    running = whitening.Running(vector, torch.empty(2, d, d), counter, 0.1)
    for name in ("launch", "launch_value", "launch_derivative"):
        owner = whitening.jacobi if name == "launch" else whitening.spectral
        monkeypatch.setattr(owner, name, lambda *_: None)

    def step() -> None:
        options = whitening.StepOptions(groups=2, eps=1e-4, nonfinite=counter, running=running)
        _, kept = whitening.forward(x, vector, vector, options)
        whitening.backward(x, x, vector, kept, True)

    seen = launches(monkeypatch, step)
    names = ["moments_of_splits", "merge_covariances", "transform", "products_of_splits", "add_gradients", "combine"]
    assert [kernel.__name__ for kernel, _, _ in seen] == names
    for launch in seen:
        assert compile_for_hopper(*launch).metadata.shared <= SHARED_MEMORY
