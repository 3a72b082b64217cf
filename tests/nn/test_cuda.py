"""What the layers promise on a GPU: flags, gradients, evaluation after training, compile, nccl, CUDA graphs."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed
from torch import Tensor, nn

import spectralgrad as sg
from spectralgrad.kernels import launcher, whitening_ops
from spectralgrad.nn import CovariancePool2d, DecorrelatedBatchNorm2d, PCADenoise2d, WhitenColor2d
from support import cases
from support.gpu import captured, error
from support.precision import matmul_precision
from support.routes import node_of

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("default")]  # torch's compiler warns about TF32

Note = Callable[[str, object], None]
FUSED = ("Whitened", "Normalized")  # the whole step, or its ends
GROUP_SIZES = (4, 8, 16, 32, 64)


def images(*shape: int, seed: int = 0) -> Tensor:
    return (cases.random(*shape, dtype=torch.float32, seed=seed) + 1).cuda()


def features(*shape: int, mean: float = 1.0, seed: int = 0, last: bool = False) -> Tensor:
    """Correlated channels."""
    x = cases.random(*shape, dtype=torch.float32, seed=seed).cuda()
    x = x + 0.5 * x.roll(1, 1) + mean
    return x.contiguous(memory_format=torch.channels_last) if last else x


@pytest.mark.parametrize("group_size", [4, 16, 64])
def test_precision_flags_do_not_reach_the_whitening_matrix(group_size: int, record_property: Note) -> None:
    """TF32, medium precision and autocast on, against all of them off. Not bit for bit: with a flag on, products are
    taken in float64 and rounded."""
    x = images(32, 64, 16, 16)
    x = x + x.roll(1, 1)
    layer = DecorrelatedBatchNorm2d(64, group_size, momentum=1.0).cuda()
    matrices = []
    for flags in (False, True):
        with matmul_precision("medium" if flags else "highest"), torch.autocast("cuda", torch.bfloat16, enabled=flags):
            one = copy.deepcopy(layer)
            one(x)
            matrices.append(one.whitening_matrix(one.running_covariance).detach())
    record_property("difference", difference := error(matrices[1], matrices[0]))
    assert difference <= 1e-5


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "DecorrelatedBatchNorm2d": lambda: DecorrelatedBatchNorm2d(16, 8),
    "DecorrelatedBatchNorm2d pca": lambda: DecorrelatedBatchNorm2d(16, 8, whitening="pca"),
    "PCADenoise2d": lambda: PCADenoise2d(16, rank=5),
    "CovariancePool2d": lambda: CovariancePool2d(16, reduced=None),
    "CovariancePool2d NewtonSchulz": lambda: CovariancePool2d(16, reduced=None, solver=sg.NewtonSchulz()),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients(name: str, record_property: Note) -> None:
    """Against the CPU in float64."""
    grads = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        x = images(8, 16, 6, 6).to(device, dtype).requires_grad_()
        y = LAYERS[name]().to(device, dtype)(x)
        weight = torch.sin(torch.arange(y.numel(), device=device, dtype=dtype)).reshape(y.shape)
        grads.append(torch.autograd.grad((y * weight).sum(), x)[0])
    record_property("gradient", found := error(grads[1], grads[0]))
    assert found <= 1e-4


def test_gradients_of_coloring_are_finite() -> None:
    content, style = images(2, 16, 9, 9).requires_grad_(), images(2, 16, 7, 7, seed=1).requires_grad_()
    loss = WhitenColor2d(group_size=8).cuda()(content, style).square().sum()
    for g in torch.autograd.grad(loss, [content, style]):
        assert g.isfinite().all()


def test_gradients_at_constant_input_are_finite() -> None:
    x = torch.ones(4, 16, 5, 5, device="cuda", requires_grad=True)
    (g,) = torch.autograd.grad(DecorrelatedBatchNorm2d(16).cuda()(x).pow(3).sum(), x)
    assert g.isfinite().all()


@pytest.mark.parametrize("rule", [sg.Exact(), sg.Taylor(9)], ids=cases.ident)
def test_evaluation_follows_training(rule: sg.Rule, record_property: Note) -> None:
    """The matrix that evaluation keeps is that of the running values, after every training step."""
    layer = DecorrelatedBatchNorm2d(16, 8, gradient=rule).cuda()
    worst = 0.0
    for step in range(3):
        layer.train()(images(8, 16, 6, 6, seed=step) * (1 + step))
        x = images(8, 16, 6, 6, seed=9)
        worst = max(worst, error(layer.eval()(x), copy.deepcopy(layer)(x)))
    record_property("difference", worst)
    assert worst <= 1e-6


COMPILED: dict[str, dict[str, object]] = {
    "d=16": {"group_size": 16},
    "d=64": {"group_size": 64, "eps": 1e-2, "momentum": 0.5},
    "no weight": {"group_size": 4, "affine": False},
    "untracked": {"group_size": 8, "track_running_stats": False},
}


def compiled_and_eager(
    options: str, dtype: torch.dtype, last: bool, mode: str | None
) -> tuple[list[dict[str, Tensor]], list[str], int]:
    """What four training steps give and leave, eager and compiled; the backward nodes; and how often it was compiled."""
    torch.compiler.reset()
    counter = torch._dynamo.utils.counters
    counter.clear()
    found, nodes = [], []
    for compile_it in (False, True):
        torch.manual_seed(0)
        layer = DecorrelatedBatchNorm2d(64, **COMPILED[options]).cuda()  # type: ignore[arg-type]
        call = torch.compile(layer, fullgraph=True, mode=mode) if compile_it else layer
        results: dict[str, Tensor] = {}
        for step in range(4):
            x = features(16, 64, 8, 8, seed=step, last=last).to(dtype).requires_grad_()
            g = cases.random(16, 64, 8, 8, dtype=torch.float32, seed=9 + step).cuda().to(dtype)
            if mode == "reduce-overhead" and compile_it:
                torch.compiler.cudagraph_mark_step_begin()
            layer.zero_grad()  # torch's own graphs write over the gradients of the step before
            y = call(x)
            y.backward(g)
            assert y.stride() == x.stride()
            results |= {f"y {step}": y.detach().clone(), f"dx {step}": x.grad.clone()}
            results |= {f"d{name} {step}": p.grad.clone() for name, p in layer.named_parameters()}
        nodes.append(node_of(y))
        found.append(results | {name: buffer.clone() for name, buffer in layer.named_buffers()})
    return found, nodes, counter["stats"]["unique_graphs"]


@pytest.mark.parametrize("options", COMPILED)
@pytest.mark.parametrize(
    ("dtype", "last"), [(torch.float32, False), (torch.bfloat16, True)], ids=["float32", "bfloat16 last"]
)
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_compiled_steps_are_the_eager_ones(
    options: str, dtype: torch.dtype, last: bool, mode: str | None, record_property: Note, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values, gradients and running statistics, by the same kernels, compiled once."""
    launched: list[bool] = []
    whiten = whitening_ops.whitening.forward
    monkeypatch.setattr(whitening_ops.whitening, "forward", lambda *args: (launched.append(True), whiten(*args))[1])
    (want, got), nodes, graphs = compiled_and_eager(options, dtype, last, mode)
    assert nodes[0] == "Whitened"
    assert len(launched) >= 4 + (4 if mode is None else 1)  # four eager steps; replays of a graph do not come here
    assert graphs == 1
    assert got.keys() == want.keys()
    record_property("difference", worst := max(error(got[key], value) for key, value in want.items()))
    assert worst <= (1e-5 if dtype == torch.float32 else 1e-2)


def test_compiled_counts_what_is_not_finite() -> None:
    torch.compiler.reset()
    layer = torch.compile(DecorrelatedBatchNorm2d(16, 8).cuda(), fullgraph=True)
    x = images(8, 16, 6, 6)
    layer(x)
    before = sg.counts().get("nonfinite_input", 0)
    x[0, 0, 0, 0] = float("nan")
    assert layer(x)[:, :8].isnan().all()
    assert sg.counts()["nonfinite_input"] == before + 1


def test_compiled_evaluation(record_property: Note) -> None:
    torch.compiler.reset()
    layer = DecorrelatedBatchNorm2d(16, 8).cuda()
    x = images(8, 16, 6, 6)
    compiled = torch.compile(layer, fullgraph=True)
    compiled(x)
    layer.eval()
    record_property("difference", difference := error(compiled(x), layer(x)))
    assert difference <= 1e-5


def test_statistics_over_nccl(tmp_path: Path, record_property: Note) -> None:
    """Through nccl's collectives, in a group of one rank, against none: forward and backward."""
    torch.distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    results = []
    try:
        for group in (None, torch.distributed.group.WORLD):
            x = images(8, 16, 6, 6).requires_grad_()
            y = DecorrelatedBatchNorm2d(16, 8, process_group=group).cuda()(x)
            results.append((y.detach(), torch.autograd.grad(y.pow(3).sum(), x)[0]))
    finally:
        torch.distributed.destroy_process_group()
    worst = max(error(a, b) for a, b in zip(*results, strict=True))
    record_property("difference", worst)
    assert worst <= 1e-5


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("d", GROUP_SIZES)
def test_a_training_step(d: int, last: bool, record_property: Note) -> None:
    """Output, gradients and running values against the CPU in float64; and the layer takes the kernels."""
    x, g = features(16, 64, 16, 16, last=last), features(16, 64, 16, 16, mean=0.0, seed=1)
    found = []
    for device, dtype in (("cuda", torch.float32), ("cpu", torch.float64)):
        layer = DecorrelatedBatchNorm2d(64, d).to(device, dtype)
        given = x.to(device, dtype).requires_grad_()
        y = layer(given)
        grads = torch.autograd.grad(y, [given, *layer.parameters()], g.to(device, dtype))
        found.append([y.detach(), *grads, layer.running_covariance, layer.running_mean])
        assert device == "cpu" or node_of(y) in FUSED
    names = ("y", "dx", "dweight", "dbias", "covariance", "mean")
    errors = dict(zip(names, map(error, *found), strict=True))
    for name, value in errors.items():
        record_property(name, value)
    assert max(errors.values()) <= 1e-4


@pytest.mark.parametrize("d", GROUP_SIZES)
def test_a_captured_step_is_the_eager_one(d: int) -> None:
    """And the running averages move at every replay."""
    x, g = features(128, 64, 32, 32).requires_grad_(), features(128, 64, 32, 32, mean=0.0, seed=1)
    layer = DecorrelatedBatchNorm2d(64, d).cuda()
    out: list[Tensor] = []

    def step() -> None:
        y = layer(x)
        out[:] = [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], g)]

    _, _, replay = captured(step)
    replay()
    got = [value.clone() for value in out]
    before = layer.num_batches_tracked.clone()
    replay()
    assert int(layer.num_batches_tracked - before) == 1
    step()
    assert max(map(error, got, out)) <= 1e-6


@pytest.mark.parametrize("h", [14, 7])
def test_gradient_of_large_pooling(h: int, record_property: Note) -> None:
    """By products on the GPU in float32, against eigenvectors on the CPU in float64."""
    pool = CovariancePool2d(256, reduced=None)
    x = cases.random(2, 256, h, h).relu().float()
    with torch.no_grad():
        weight = cases.random(*pool(x).shape, seed=1).float()
    found = []
    for given in (x.cuda(), x.double()):
        leaf = given.requires_grad_()
        found.append(torch.autograd.grad(pool(leaf), leaf, weight.to(leaf))[0])
    record_property("gradient", of_gradient := error(found[0], found[1]))
    assert of_gradient <= 1e-3


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("memory", ["contiguous", "channels last", "misaligned"])
@pytest.mark.parametrize("d", [1, 3, 16, 64])
def test_a_step_with_a_kept_launch(d: int, memory: str) -> None:
    """Output, gradients and running values against the CPU in float64, twice: the second launch is the kept one."""
    channels = 2 * d
    mix = cases.random(channels, channels)
    x = torch.einsum("ij,njhw->nihw", mix, cases.random(16, channels, 8, 8, seed=1)).float() + 2
    g = cases.random(16, channels, 8, 8, seed=2).float()
    on_gpu = x.cuda()
    if memory == "channels last":
        on_gpu = on_gpu.contiguous(memory_format=torch.channels_last)
    if memory == "misaligned":
        on_gpu = torch.empty(x.numel() + 1, device="cuda")[1:].view_as(x).copy_(x)
        assert on_gpu.data_ptr() % 16
    layer = DecorrelatedBatchNorm2d(channels, d, eps=1e-3).cuda()
    exact = copy.deepcopy(layer).cpu().double()
    for _ in range(2):
        found = []
        for which, value in ((layer, on_gpu), (exact, x.double())):
            leaf = value.detach().requires_grad_()
            y = which(leaf)
            assert (node_of(y) == "Whitened") == y.is_cuda
            found.append([y.detach(), *torch.autograd.grad(y, [leaf, *which.parameters()], g.to(y))])
        for got, want in zip(*found, strict=True):
            assert cases.relative_error(got.cpu(), want) < 1e-4
    for name, buffer in exact.named_buffers():
        assert cases.relative_error(layer.get_buffer(name).cpu().double(), buffer.double()) < 1e-5


WAYS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "plain": lambda: (DecorrelatedBatchNorm2d(16, 8), images(4, 16, 6, 6)),
    "larger groups": lambda: (DecorrelatedBatchNorm2d(16), images(4, 16, 6, 6)),
    "eps": lambda: (DecorrelatedBatchNorm2d(16, 8, eps=0.1), images(4, 16, 6, 6)),
    "momentum": lambda: (DecorrelatedBatchNorm2d(16, 8, momentum=0.7), images(4, 16, 6, 6)),
    "no weight": lambda: (DecorrelatedBatchNorm2d(16, 8, affine=False), images(4, 16, 6, 6)),
    "no averages": lambda: (DecorrelatedBatchNorm2d(16, 8, track_running_stats=False), images(4, 16, 6, 6)),
    "warm start": lambda: (DecorrelatedBatchNorm2d(16, 8, warm_start=True), images(4, 16, 6, 6)),
    "bfloat16": lambda: (DecorrelatedBatchNorm2d(16, 8), images(4, 16, 6, 6).bfloat16()),
    "channels last": lambda: (DecorrelatedBatchNorm2d(16, 8), features(4, 16, 6, 6, last=True)),
    "an image more": lambda: (DecorrelatedBatchNorm2d(16, 8), images(5, 16, 6, 6)),
    "not aligned": lambda: (DecorrelatedBatchNorm2d(16, 8), images(1, 4 * 16 * 6 * 6 + 1)[0, 1:].view(4, 16, 6, 6)),
}


def five_steps(build: Callable[[], tuple[nn.Module, Tensor]]) -> list[Tensor]:
    """Outputs and gradients of training steps whose inputs differ and whose gradients lie in memory in several ways."""
    layer, x = build()
    layer.cuda()
    found = []
    for k in range(5):
        given = (x + 0.1 * k * x.roll(k, 2)).requires_grad_()
        given = x.requires_grad_() if k == 4 else given  # not aligned, where that is the way
        y = layer(given)
        loss = y.sum() if k == 3 else (y * y.detach().cos()).sum()
        found += [y, *torch.autograd.grad(loss, (given, *layer.parameters()))]
    return [x.detach().clone() for x in [*found, *layer.buffers()]]


def test_launches_that_go_on_by_themselves_compute_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ways after one another, twice, so that one kind could be taken for another; then without sequences."""
    launcher.forget()
    kept = [five_steps(build) for _ in range(2) for build in WAYS.values()]
    assert len(launcher._kept) >= 2 * (len(WAYS) - 1)
    monkeypatch.setattr(launcher, "launch_kernel", None)
    for way, first, second in zip(WAYS, kept, kept[len(WAYS) :], strict=False):
        for got in (first, second):
            for x, y in zip(got, five_steps(WAYS[way]), strict=True):
                assert torch.equal(x, y), way
