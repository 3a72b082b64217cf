"""Statistics over two ranks (gloo) against one process that holds every sample; what happens when a rank fails.

One pair of processes runs all the scenarios that need no failure, each on both ranks, and the tests read what came out.
"""

import copy
import faulthandler
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import spectralgrad as sg
import spectralgrad.nn as snn
from spectralgrad.errors import DtypeError, NonFiniteError, OptionError, ShapeError
from spectralgrad.nn import base
from spectralgrad.orthogonal import orthogonal_loss
from support import cases

WORLD, TIMEOUT = 2, 30  # ranks; seconds
LIFETIME = 240  # seconds of a rank: less than a test may take
CLOSE = 1e-11  # float64, relative

LAYERS: dict[str, Callable[..., Any]] = {
    "zca": lambda **options: snn.DecorrelatedBatchNorm2d(6, group_size=3, **options),
    "pca": lambda **options: snn.DecorrelatedBatchNorm2d(6, whitening="pca", **options),
    "running whitening": lambda **options: snn.DecorrelatedBatchNorm2d(6, running="whitening", momentum=None, **options),
    "denoise": lambda **options: snn.PCADenoise2d(6, rank=3, **options),
    "batch norm": lambda **options: snn.PCADenoise2d(6, energy=1, **options),
}
BATCHES = {"equal": (4, 4), "unequal": (5, 2), "one each": (1, 1), "empty": (7, 0), "empty first": (0, 7)}


def samples(n: int, seed: int = 0, offset: float = 0.0) -> Tensor:
    """Correlated channels (n, 6, 3, 2), with a mean that drifts so that ranks differ."""
    mix = cases.random(6, 6, seed=seed + 100) + 2 * torch.eye(6, dtype=torch.float64)
    drift = torch.linspace(-1, 1, n, dtype=torch.float64).view(-1, 1, 1, 1)
    return torch.einsum("cd,ndhw->nchw", mix, cases.random(n, 6, 3, 2, seed=seed)) + drift + offset


def objective(y: Tensor, weights: Tensor) -> Tensor:
    return (weights * y).sum() + (y**3).sum() / 10


def run_layer(layer: Any, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = layer(x)
    objective(y, weights).backward()
    assert x.grad is not None
    return y.detach(), x.grad


def assert_close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=CLOSE, atol=CLOSE)


# Scenarios: each runs on both ranks, with a process group.


def merges_exactly(rank: int, group: Any) -> None:
    for make in LAYERS.values():
        for sizes in BATCHES.values():
            torch.manual_seed(0)
            alone, merged = make(dtype=torch.float64), make(dtype=torch.float64, process_group=group)
            for step in range(2):  # the second meets running statistics that have moved
                x, weights = samples(sum(sizes), seed=step), cases.random(sum(sizes), 6, 3, 2, seed=step + 7)
                mine = slice(0, sizes[0]) if rank == 0 else slice(sizes[0], None)
                y, grad = run_layer(alone, x, weights)
                y_mine, grad_mine = run_layer(merged, x[mine], weights[mine])
                assert_close(y_mine, y[mine])
                assert_close(grad_mine, grad[mine])
            for buffer, want in zip(merged.buffers(), alone.buffers(), strict=True):
                assert_close(buffer, want)
            for parameter, want in zip(merged.parameters(), alone.parameters(), strict=True):
                total = parameter.grad.clone()
                dist.all_reduce(total)  # DistributedDataParallel's work
                assert_close(total, want.grad)
            assert_close(merged.eval()(x[mine]), alone.eval()(x)[mine])


def does_not_merge_by_default(rank: int, group: Any) -> None:
    """The control of `merges_exactly`: without process_group the results are the rank's own."""
    for make in LAYERS.values():
        x = samples(8)
        y = make(dtype=torch.float64)(x)[4 * rank : 4 * rank + 4]
        assert (make(dtype=torch.float64)(x[4 * rank : 4 * rank + 4]) - y).abs().max() > 0.1


def merges_within_its_group_alone(rank: int, group: Any) -> None:
    """A group of this rank alone: what the others do at the same time is nothing to it."""
    own = [dist.new_group([each]) for each in range(WORLD)][rank]
    for make in LAYERS.values():
        torch.manual_seed(0)
        alone, grouped = make(dtype=torch.float64), make(dtype=torch.float64, process_group=own)
        x, weights = samples(4, seed=rank), cases.random(4, 6, 3, 2, seed=7)
        for got, want in zip(run_layer(grouped, x, weights), run_layer(alone, x, weights), strict=True):
            assert_close(got, want)


def float32_and_far_means(rank: int, group: Any) -> None:
    sizes, layer = (5, 2), snn.DecorrelatedBatchNorm2d(6, process_group=group)
    x = samples(7, offset=100.0)
    mine = slice(0, 5) if rank == 0 else slice(5, None)
    want = snn.DecorrelatedBatchNorm2d(6, dtype=torch.float64)(x)[mine]
    assert sum(sizes) == len(x)
    assert (
        cases.relative_error(layer(x[mine].float()).detach(), want.detach()) < 1e-4
    )  # the input itself is rounded by 1e-7 * 100


def second_derivatives(rank: int, group: Any) -> None:
    x, weights = samples(6), cases.random(6, 6, 3, 2, seed=7)
    mine = slice(0, 4) if rank == 0 else slice(4, None)

    def penalty(layer: Any, part: slice) -> Tensor:
        leaf = x[part].clone().requires_grad_()
        (grad,) = torch.autograd.grad(objective(layer(leaf), weights[part]), leaf, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), leaf)[0]

    for make in LAYERS.values():
        alone, merged = make(dtype=torch.float64), make(dtype=torch.float64, process_group=group)
        want, got = penalty(alone, slice(None))[mine], penalty(merged, mine)
        assert cases.relative_error(got, want) < 1e-9


def compiles(rank: int, group: Any) -> None:
    x, weights = samples(6), cases.random(6, 6, 3, 2, seed=7)
    mine = slice(0, 4) if rank == 0 else slice(4, None)
    for name in ("zca", "denoise"):
        alone, merged = LAYERS[name](dtype=torch.float64), LAYERS[name](dtype=torch.float64, process_group=group)
        y, grad = run_layer(alone, x, weights)
        compiled = torch.compile(merged, fullgraph=True, backend="aot_eager")
        y_mine, grad_mine = run_layer(compiled, x[mine], weights[mine])
        assert_close(y_mine, y[mine])
        assert_close(grad_mine, grad[mine])


def refuses_what_one_rank_brings(rank: int, group: Any) -> None:
    for bad in (torch.nan, torch.inf):
        for make in LAYERS.values():
            layer = make(dtype=torch.float64, process_group=group)
            layer(samples(4, seed=rank))
            before = copy.deepcopy(layer.state_dict())
            x = samples(3, seed=rank)
            if rank == 1:
                x[1, 2, 0, 1] = bad
            with pytest.raises(NonFiniteError) as caught:
                layer(x)
            message = str(caught.value)
            assert ("rank [1] of process_group" in message) if rank == 0 else ("the first at index (1, 2, 0, 1)" in message)
            for name, value in layer.state_dict().items():
                assert torch.equal(value, before[name])
            assert layer(samples(4, seed=rank)).isfinite().all()  # the ranks are still in step


def needs_two_samples_in_all(rank: int, group: Any) -> None:
    layer = snn.DecorrelatedBatchNorm1d(3, process_group=group)
    with pytest.raises(ShapeError, match="more than 1 value per channel"):
        layer(torch.ones(1 - rank, 3))
    assert layer.num_batches_tracked == 0
    assert layer(torch.full((1, 3), float(rank))).isfinite().all()
    before = layer.running_covariance.clone()
    assert layer(torch.ones(0, 3)).shape == (0, 3)
    assert torch.equal(layer.running_covariance, before)


DISAGREEMENTS: dict[str, tuple[type[Exception], Callable[[int, Any], tuple[Any, Tensor]]]] = {
    "other channels": (
        ShapeError,
        lambda rank, group: (
            snn.DecorrelatedBatchNorm2d(6 + 2 * rank, process_group=group),
            cases.random(4, 6 + 2 * rank, 3, 2).float(),
        ),
    ),
    "other groups": (
        ShapeError,
        lambda rank, group: (snn.DecorrelatedBatchNorm2d(6, group_size=3 - rank, process_group=group), samples(4).float()),
    ),
    "another dtype of the input": (
        DtypeError,
        lambda rank, group: (snn.DecorrelatedBatchNorm2d(6, process_group=group), samples(4).to(REALS[rank])),
    ),
    "another dtype of the layer": (
        DtypeError,
        lambda rank, group: (snn.DecorrelatedBatchNorm2d(6, process_group=group, dtype=REALS[rank]), samples(4).float()),
    ),
    "another layer": (
        OptionError,
        lambda rank, group: (LAYERS["denoise" if rank else "pca"](process_group=group), samples(4).float()),
    ),
}
REALS = (torch.float32, torch.float64)


def refuses_ranks_that_disagree(rank: int, group: Any) -> None:
    """On every rank, in words that say which has what; nothing moves, and the ranks stay in step."""
    for name, (error, make) in DISAGREEMENTS.items():
        layer, x = make(rank, group)
        before = copy.deepcopy(layer.state_dict())
        for _ in range(2):
            with pytest.raises(
                error, match=r"`\w+`: every rank of process_group must bring the same .* on rank 0: .* on rank 1: "
            ):
                layer(x)
        assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items()), name
    assert LAYERS["zca"](process_group=group)(samples(4).float()).isfinite().all()


def asks_the_ranks_once(rank: int, group: Any) -> None:
    """Not in later steps, nor in eval mode; again for a copy, and after a change of dtype on all ranks."""
    asked: list[Any] = []
    real = base.require_agreement
    base.require_agreement = lambda share, *args: (asked.append(share), real(share, *args))
    try:
        layer = LAYERS["zca"](process_group=group)
        layer.eval()(samples(4).float())
        assert len(asked) == 0
        for _ in range(3):
            layer.train()(samples(4).float())
        assert len(asked) == 1
        copy.deepcopy(layer)(samples(4).float())
        assert len(asked) == 2
        layer.double()(samples(4))
        assert [share.dtype for share in asked] == ["float32", "float32", "float64"]
    finally:
        base.require_agreement = real


def copies_keep_the_group(rank: int, group: Any) -> None:
    layer = copy.deepcopy(nn.Sequential(LAYERS["zca"](process_group=group)))[0]
    assert layer.process_group is group
    with pytest.raises(OptionError, match="process_group must be"):
        snn.DecorrelatedBatchNorm2d(4, process_group=dist.GroupMember.NON_GROUP_MEMBER)


def torchs_conversion_merges_too(rank: int, group: Any) -> None:
    """`convert_sync_batchnorm` gives the layer the group, and the statistics are those of all samples."""
    for name, make in LAYERS.items():
        layer = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(make()))[0]
        assert layer.process_group is group, name
        x = samples(10)
        layer(x[4:] if rank else x[:4])
        alone = make()
        alone(x)
        for got, want in zip(layer.buffers(), alone.buffers(), strict=True):
            assert_close(got, want)


def network(group: Any) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3),
        snn.DecorrelatedBatchNorm2d(8, group_size=4, process_group=group),
        nn.ReLU(),
        nn.Conv2d(8, 6, 2),
        snn.PCADenoise2d(6, rank=4, process_group=group),
        nn.Flatten(),
        nn.Linear(6 * 4, 3),
    ).double()


def losses(model: nn.Module, part: slice, steps: int = 20) -> list[Tensor]:
    """Training on 64 samples a step, of which ``part`` is ours."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    out = []
    for step in range(steps):
        x = cases.random(64, 2, 5, 5, seed=step)
        target = (x.flatten(1) @ cases.random(50, 3, seed=1000)).tanh()
        loss = (model(x[part]) - target[part]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.detach())
    return out


def trains_as_one_process(rank: int, group: Any) -> None:
    alone, model = network(None), network(group)
    mine = slice(32 * rank, 32 * rank + 32)
    parallel = DistributedDataParallel(model)
    got = torch.stack(losses(parallel, mine))
    dist.all_reduce(got)
    want = torch.stack(losses(alone, slice(None)))
    print(f"rank {rank}: largest difference of losses {float((got / WORLD - want).abs().max()):.1e}")
    assert (got / WORLD - want).abs().max() <= 1e-6  # measured: 1e-15
    assert want[-1] < 0.9 * want[0]
    for parameter, reference in zip(model.state_dict().values(), alone.state_dict().values(), strict=True):
        torch.testing.assert_close(parameter, reference, rtol=1e-6, atol=1e-8)
    parallel.eval()
    x = cases.random(5, 2, 5, 5, seed=5)
    torch.testing.assert_close(parallel(x), alone.eval()(x), rtol=1e-6, atol=1e-8)


def trains_otherwise_without_a_group(rank: int, group: Any) -> None:
    """The control of `trains_as_one_process`."""
    parallel = DistributedDataParallel(network(None))
    got = torch.stack(losses(parallel, slice(32 * rank, 32 * rank + 32), steps=5))
    dist.all_reduce(got)
    want = torch.stack(losses(network(None), slice(None), steps=5))
    assert (got / WORLD - want).abs().max() > 1e-4


def sharded_parameters_train_as_whole_ones(rank: int, group: Any) -> None:
    """FSDP2: `fully_shard` before the process group merges the statistics of the ranks' shares of a batch."""
    mesh = init_device_mesh("cpu", (WORLD,))
    alone, model = network(None), network(group)
    for part in (*model, model):
        if any(True for _ in part.parameters()):
            fully_shard(part, mesh=mesh)
    got = torch.stack(losses(model, slice(32 * rank, 32 * rank + 32), steps=5))
    dist.all_reduce(got)
    want = torch.stack(losses(alone, slice(None), steps=5))
    assert (got / WORLD - want).abs().max() <= 1e-6


def sharded_matrices_are_matrices(rank: int, group: Any) -> None:
    """DTensors, as FSDP2's weights are outside a forward pass."""
    mesh = init_device_mesh("cpu", (WORLD,))
    for name, function in {
        "orthogonal_loss": orthogonal_loss,
        "covariance": sg.covariance,
        "polar": sg.polar,
        "eigvalsh": sg.eigvalsh,
    }.items():
        M = cases.random_covariance(4, seed=3) + torch.eye(4)
        X, Y = distribute_tensor(M.clone(), mesh, [Shard(0)]).requires_grad_(), M.clone().requires_grad_()
        got, want = function(X), function(Y)
        torch.testing.assert_close(got.full_tensor(), want, msg=name)
        got.sum().backward()
        want.sum().backward()
        torch.testing.assert_close(X.grad.full_tensor(), Y.grad, msg=name)


SCENARIOS = [
    merges_exactly,
    does_not_merge_by_default,
    merges_within_its_group_alone,
    float32_and_far_means,
    second_derivatives,
    refuses_what_one_rank_brings,
    needs_two_samples_in_all,
    refuses_ranks_that_disagree,
    asks_the_ranks_once,
    copies_keep_the_group,
    torchs_conversion_merges_too,
    trains_as_one_process,
    trains_otherwise_without_a_group,
    sharded_parameters_train_as_whole_ones,
    sharded_matrices_are_matrices,
]


def join(rank: int, folder: str, timeout: float = TIMEOUT) -> Any:
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(LIFETIME, exit=True)  # a rank that hangs, in a destructor too, shows where and ends
    init = f"file://{folder}/init"
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=WORLD, timeout=timedelta(seconds=timeout))
    dist.barrier()  # a rank that dies at once would spoil the start of the others
    return dist.group.WORLD


def run_scenarios(rank: int, folder: str, scenarios: list[Callable[[int, Any], None]]) -> None:
    group = join(rank, folder)
    for scenario in scenarios:
        outcome = ""
        try:
            scenario(rank, group)
        except Exception:
            outcome = traceback.format_exc()
        Path(folder, f"{scenario.__name__}.{rank}").write_text(outcome)
        dist.barrier()
    dist.destroy_process_group()


def start(work: Callable[..., None], args: tuple[Any, ...]) -> None:
    """``work(rank, *args)`` on all ranks, which come from a server that has imported torch."""
    mp.get_context("forkserver").set_forkserver_preload(["spectralgrad.nn", "torch.distributed"])
    mp.start_processes(work, args, nprocs=WORLD, start_method="forkserver")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    start(run_scenarios, (str(folder), SCENARIOS))
    return folder


def require_success(scenario: Callable[[int, Any], None], folder: Path) -> None:
    for rank in range(WORLD):
        outcome = (folder / f"{scenario.__name__}.{rank}").read_text()
        assert not outcome, f"rank {rank}: {outcome}"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(scenario: Callable[[int, Any], None], outcomes: Path) -> None:
    require_success(scenario, outcomes)


@pytest.mark.slow
def test_compile(tmp_path: Path) -> None:
    mp.spawn(run_scenarios, (str(tmp_path), [compiles]), nprocs=WORLD)
    require_success(compiles, tmp_path)


# A rank that fails.


def lose_a_rank(rank: int, folder: str, how: str, when: str, timeout: float) -> None:
    """Rank 1 dies or stalls before its forward or backward pass; rank 0 writes what it saw, and when."""
    layer = LAYERS["zca"](dtype=torch.float64, process_group=join(rank, folder, timeout))
    x = samples(4, seed=rank).requires_grad_()
    y = layer(x) if when == "backward" else None
    if rank == 1:
        if how == "stalls":
            time.sleep(2 * timeout)
        os._exit(0)  # no goodbye, as a crash or kill -9
    start = time.monotonic()
    try:
        (layer(x) if y is None else y.square().sum()).sum().backward()
        outcome = "no error"
    except RuntimeError as error:
        outcome = str(error)
    Path(folder, "outcome").write_text(f"{time.monotonic() - start}\n{outcome}")
    os._exit(0)


@pytest.mark.parametrize(
    ("how", "when", "timeout"),
    [
        pytest.param("dies", "forward", TIMEOUT, marks=pytest.mark.slow),
        ("dies", "backward", TIMEOUT),
        pytest.param("stalls", "forward", 3, marks=pytest.mark.slow),
    ],
)
def test_a_lost_rank_is_an_error_on_the_others(how: str, when: str, timeout: float, tmp_path: Path) -> None:
    start(lose_a_rank, (str(tmp_path), how, when, timeout))
    seconds, outcome = (tmp_path / "outcome").read_text().split("\n", 1)
    assert "`DecorrelatedBatchNorm2d`: the statistics could not be exchanged over process_group" in outcome
    assert float(seconds) < timeout + 2


@pytest.mark.slow
def test_torchrun() -> None:
    """`trains_as_one_process` once more, started as users start it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD}", "-m", __name__]
    tests = Path(__file__).parents[1]
    found = os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])  # as pytest finds what is in support
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tests.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": found},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("largest difference of losses") == WORLD


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
    trains_as_one_process(dist.get_rank(), dist.group.WORLD)
    dist.destroy_process_group()
