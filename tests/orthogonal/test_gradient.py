"""NOG: the gradient that the step uses, with every optimizer, and under all that stands between backward and step."""

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn, optim
from torch.nn.parallel import DistributedDataParallel

from spectralgrad.errors import DtypeError, NonFiniteError, OptionError, ShapeError
from spectralgrad.orthogonal import NearestOrthogonalGradient, OptimalLearningRate, orthogonal_weight, spectral_norm
from support.cases import random, relative_error
from support.optimizers import FUSED, OPTIMIZERS, assert_same, data, loss_of, nearest, network


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def twins(make: Callable[..., optim.Optimizer]) -> tuple[nn.Sequential, optim.Optimizer, nn.Sequential, optim.Optimizer]:
    """Two equal networks with equal optimizers, the first one with NOG on the weight of its convolution."""
    model = network()
    other = copy.deepcopy(model)
    optimizer = make(model.parameters())
    NearestOrthogonalGradient(optimizer, [model[0].weight])
    return model, optimizer, other, make(other.parameters())


def step_by_hand(model: nn.Sequential, optimizer: optim.Optimizer) -> None:
    model[0].weight.grad = nearest(model[0].weight.grad)
    optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_uses_the_nearest_orthogonal_gradient(name: str) -> None:
    model, optimizer, other, reference = twins(OPTIMIZERS[name])
    plain = copy.deepcopy(model)
    unchanged = OPTIMIZERS[name](plain.parameters())
    for i in range(3):
        for m, o in ((model, optimizer), (other, reference), (plain, unchanged)):
            o.zero_grad()
            loss_of(m, data(i)).backward()
        optimizer.step()
        step_by_hand(other, reference)
        unchanged.step()
        G = model[0].weight.grad.flatten(1)
        assert float((G @ G.mT - torch.eye(8)).abs().max()) < 1e-5
    assert_same(model, other)
    if name != "Rprop":  # Rprop looks at signs; U V^T need not change them
        assert relative_error(model[0].weight.detach(), plain[0].weight.detach()) > 1e-3  # control


def test_only_the_chosen_gradients_change() -> None:
    model, optimizer, other, _ = twins(OPTIMIZERS["SGD"])
    for m in (model, other):
        loss_of(m, data(0)).backward()
    optimizer.step()
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad) == (name != "0.weight")


@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7), (8, 2, 3, 3), (4, 2, 2), (2, 3, 2, 2, 2), (1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.bfloat16], ids=str)
def test_shapes_and_dtypes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    p = nn.Parameter(torch.zeros(shape, dtype=dtype))
    p.grad = random(*shape, dtype=torch.complex64 if dtype.is_complex else torch.float64).to(dtype)
    expected, held = nearest(p.grad), p.grad
    optimizer = optim.SGD([p], lr=1.0)
    NearestOrthogonalGradient(optimizer, p)
    optimizer.step()
    assert p.grad is held  # in place
    torch.testing.assert_close(p.grad, expected)
    torch.testing.assert_close(p.detach(), -expected)


def test_channels_last() -> None:
    conv = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    optimizer = optim.SGD(conv.parameters(), lr=0.1)
    NearestOrthogonalGradient(optimizer, [conv.weight])
    conv(random(2, 3, 5, 5).float().to(memory_format=torch.channels_last)).square().sum().backward()
    assert conv.weight.grad.is_contiguous(memory_format=torch.channels_last)
    expected = nearest(conv.weight.grad)
    optimizer.step()
    torch.testing.assert_close(conv.weight.grad, expected, rtol=1e-5, atol=1e-6)


def test_scale_of_the_gradient_does_not_matter() -> None:
    G = random(6, 4).float()
    for scale in (1e-30, 1e-8, 1e8, 1e30):
        p = nn.Parameter(torch.zeros(6, 4))
        p.grad = G * scale
        optimizer = optim.SGD([p], lr=1.0)
        NearestOrthogonalGradient(optimizer, p)
        optimizer.step()
        torch.testing.assert_close(p.grad, nearest(G))


# Accumulation, GradScaler, DDP, closures, compile.


def test_accumulation() -> None:
    model, optimizer, other, reference = twins(OPTIMIZERS["SGD"])
    early = copy.deepcopy(other)
    early[0].weight.register_hook(nearest)  # the wrong way: in the backward pass
    wrong = OPTIMIZERS["SGD"](early.parameters())
    for i in range(4):
        for m in (model, other, early):
            loss_of(m, data(i)).div(4).backward()
    optimizer.step()
    step_by_hand(other, reference)
    wrong.step()
    assert_same(model, other)
    assert relative_error(early[0].weight.grad, model[0].weight.grad) > 0.05  # control: the backward hook is off


@pytest.mark.parametrize("name", ["SGD-momentum", "Adam", "AdamW", *FUSED])
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("both", [False, True], ids=["NOG", "NOG and OLR"])
def test_grad_scaler_changes_nothing(name: str, unscale: bool, both: bool) -> None:
    model, optimizer, other, _ = twins(OPTIMIZERS[name])
    reference = OPTIMIZERS[name](other.parameters())
    NearestOrthogonalGradient(reference, [other[0].weight])
    treated = []
    if both:
        treated = [OptimalLearningRate(o, [m[0].weight, m[4].weight]) for o, m in ((optimizer, model), (reference, other))]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=2)
    for i in range(4):
        for m, o in ((model, optimizer), (other, reference)):
            o.zero_grad()
            loss = loss_of(m, data(i))
            (scaler.scale(loss) if m is model else loss).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        reference.step()
        torch.testing.assert_close(model[0].weight.grad, other[0].weight.grad)  # unscaled afterwards, as torch leaves it
        if both:
            torch.testing.assert_close(treated[0].rates, treated[1].rates, rtol=1e-4, atol=0)
    assert_same(model, other, rtol=1e-4, atol=1e-5)
    assert scaler.get_scale() > 2.0**16  # control: it scaled, and grew


@pytest.mark.parametrize("name", ["SGD-momentum", "Adam", *FUSED])
def test_a_step_that_the_scaler_skips_is_left_alone(name: str) -> None:
    model, optimizer, _, _ = twins(OPTIMIZERS[name])
    OptimalLearningRate(optimizer, [model[0].weight])
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = copy.deepcopy(model.state_dict())
    for poisoned in (model[0].weight, model[4].weight):
        for value in (float("inf"), float("nan")):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, data(0))).backward()
            poisoned.grad[0, 0] = value
            grads = [p.grad.clone() for p in model.parameters()]
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            assert scaler.get_scale() == scale / 2
            fused = getattr(optimizer, "_step_supports_amp_scaling", False)  # what the scaler asks; fused Adagrad of 2.9: no
            unscaled = 1 if fused else scale  # unscale_ has divided the others
            for p, g in zip(model.parameters(), grads, strict=True):
                torch.testing.assert_close(p.grad * unscaled, g, rtol=0, atol=0, equal_nan=True)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


def test_a_float16_gradient_that_would_overflow_is_refused() -> None:
    p = nn.Parameter(torch.zeros(4, 4, dtype=torch.float16))
    p.grad = torch.eye(4, dtype=torch.float16)
    optimizer = optim.SGD([p], lr=0.1, fused=True)
    NearestOrthogonalGradient(optimizer, p)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(65536.0), torch.tensor(0.0)
    with pytest.raises(DtypeError, match="float16"):
        optimizer.step()
    assert torch.equal(p, torch.zeros_like(p))
    assert torch.equal(p.grad, torch.eye(4, dtype=torch.float16))


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["SGD-momentum", "SGD-fused", "Adam-fused", "AdamW-fused"])
@pytest.mark.parametrize("scaled", [False, True])
def test_gpu_equals_cpu(name: str, scaled: bool) -> None:
    models = [network().double()]
    models.append(copy.deepcopy(models[0]).cuda())
    scaler = torch.amp.GradScaler("cuda", enabled=scaled)
    rates = []
    for m, device in zip(models, ("cpu", "cuda"), strict=True):
        optimizer = OPTIMIZERS[name](m.parameters())
        olr = OptimalLearningRate(optimizer, [m[0].weight, m[4].weight])
        NearestOrthogonalGradient(optimizer, [m[0].weight])
        for i in range(4):
            x, y = data(i)
            optimizer.zero_grad()
            loss = loss_of(m, (x.double().to(device), y.to(device)))
            if device == "cpu":
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        rates.append(olr.rates)
    assert rates[0] == pytest.approx(rates[1], rel=1e-6)
    assert_same(models[1].cpu(), models[0])


@pytest.fixture
def _one_rank() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("_one_rank")
@pytest.mark.parametrize("views", [False, True])
def test_distributed_data_parallel_of_one_rank(views: bool) -> None:
    """The wrapper renames parameters and, with views, keeps gradients in its buckets."""
    model, optimizer, other, reference = twins(OPTIMIZERS["SGD-momentum"])
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=views)
    assert "module.0.weight" in dict(wrapped.named_parameters())
    for i in range(3):
        for m, o in ((wrapped, optimizer), (other, reference)):
            o.zero_grad(set_to_none=not views)
            loss_of(m, data(i)).backward()
        optimizer.step()
        step_by_hand(other, reference)
    assert_same(model, other)


def _train_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = network().double()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    OptimalLearningRate(optimizer, [model[0].weight])
    NearestOrthogonalGradient(optimizer, [model[0].weight])
    wrapped = DistributedDataParallel(model)
    for i in range(5):
        x, y = data(i)
        optimizer.zero_grad()
        loss_of(wrapped, (x.double()[6 * rank : 6 * rank + 6], y[6 * rank : 6 * rank + 6])).backward()
        optimizer.step()
    torch.save(model.state_dict(), Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_equal_one_process(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_train_rank, (str(tmp_path),), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    results = []
    for early in (False, True):
        torch.manual_seed(0)
        model = network().double()
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        OptimalLearningRate(optimizer, [model[0].weight])
        if not early:
            NearestOrthogonalGradient(optimizer, [model[0].weight])
        for i in range(5):
            x, y = data(i)
            optimizer.zero_grad()
            halves = [torch.autograd.grad(loss_of(model, (x.double()[s], y[s])), list(model.parameters()))
                      for s in (slice(0, 6), slice(6, 12))]  # fmt: skip
            for p, a, b in zip(model.parameters(), *halves, strict=True):
                p.grad = (nearest(a) + nearest(b)) / 2 if early and p is model[0].weight else (a + b) / 2
            optimizer.step()
        results.append(model.state_dict())
    for key, value in results[0].items():
        assert torch.equal(ranks[0][key], ranks[1][key])
        torch.testing.assert_close(ranks[0][key], value, rtol=1e-9, atol=1e-12)
    # Control: factors taken on each rank, before the average, give something else.
    assert relative_error(results[1]["0.weight"], results[0]["0.weight"]) > 1e-2


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("name", ["SGD-momentum", "Adam", "Adam-fused"])
def test_closure(name: str, by_name: bool) -> None:
    """The gradient comes into being inside the step: NOG and OLR act on it there, not on a stale one."""
    model, optimizer, other, _ = twins(OPTIMIZERS[name])
    reference = OPTIMIZERS[name](other.parameters())
    NearestOrthogonalGradient(reference, [other[0].weight])
    rates = [OptimalLearningRate(o, [m[4].weight]) for o, m in ((optimizer, model), (reference, other))]
    for i in range(3):

        def closure(m: nn.Module = model, o: optim.Optimizer = optimizer, i: int = i) -> Tensor:
            assert torch.is_grad_enabled()
            o.zero_grad()
            loss = loss_of(m, data(i))
            loss.backward()
            return loss

        returned = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
        expected = closure(other, reference)
        reference.step()
        torch.testing.assert_close(returned, expected)
        assert rates[0].rates == pytest.approx(rates[1].rates)
    assert_same(model, other)


def test_compiled_model() -> None:
    model, optimizer, other, reference = twins(OPTIMIZERS["SGD"])
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager")
    assert all("_orig_mod" in name for name, _ in compiled.named_parameters())
    for i in range(2):
        for m, o in ((compiled, optimizer), (other, reference)):
            o.zero_grad()
            loss_of(m, data(i)).backward()
        optimizer.step()
        step_by_hand(other, reference)
    assert_same(model, other)
    torch.compiler.reset()


@pytest.mark.parametrize("attach", [orthogonal_weight, spectral_norm])
def test_with_a_treated_weight_it_acts_on_what_the_optimizer_holds(attach: Callable[[nn.Module], nn.Module]) -> None:
    layer = attach(nn.Linear(4, 6))
    optimizer = optim.SGD(layer.parameters(), lr=0.1)
    with pytest.raises(OptionError, match=r"parametrizations\.weight\.original"):
        NearestOrthogonalGradient(optimizer, [layer.weight])
    A = layer.parametrizations.weight.original
    NearestOrthogonalGradient(optimizer, [A])
    (layer.weight * random(6, 4).float()).sum().backward()
    expected = nearest(A.grad)
    optimizer.step()
    torch.testing.assert_close(A.grad, expected, rtol=1e-4, atol=1e-5)


# Gradients that are not there, zero, sparse, not finite.


def test_no_gradient_is_skipped() -> None:
    model, optimizer, _, _ = twins(OPTIMIZERS["Adam"])
    before = copy.deepcopy(model.state_dict())
    optimizer.step()
    model[4](torch.ones(2, 8)).sum().backward()
    optimizer.step()
    assert torch.equal(model[0].weight, before["0.weight"])
    assert not torch.equal(model[4].weight, before["4.weight"])


def test_zero_gradient_stays_zero() -> None:
    p, q = nn.Parameter(random(3, 3)), nn.Parameter(random(3, 3))
    optimizer = optim.SGD([p, q], lr=0.1)
    NearestOrthogonalGradient(optimizer, [p, q])
    p.grad, q.grad = torch.zeros(3, 3).double(), torch.diag(torch.tensor([0, 0, 1e-300], dtype=torch.float64))
    optimizer.step()
    assert torch.equal(p.grad, torch.zeros_like(p))
    assert torch.equal(p, random(3, 3))
    torch.testing.assert_close(q.grad @ q.grad.mT, torch.eye(3).double())  # rank 1: one of many, all orthogonal


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_refused_before_anything_changes(value: float) -> None:
    model, optimizer, _, _ = twins(OPTIMIZERS["SGD-momentum"])
    NearestOrthogonalGradient(optimizer, [model[4].weight])
    loss_of(model, data(0)).backward()
    model[4].weight.grad[1, 2] = value
    before, grads = copy.deepcopy(model.state_dict()), [p.grad.clone() for p in model.parameters()]
    with pytest.raises(NonFiniteError, match=r"`NearestOrthogonalGradient`: `gradient`.*index \(1, 2\)"):
        optimizer.step()
    assert not optimizer.state
    for p, g in zip(model.parameters(), grads, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=0, atol=0, equal_nan=True)
    for key, parameter in model.state_dict().items():
        assert torch.equal(parameter, before[key])


@pytest.mark.parametrize("kind", [NearestOrthogonalGradient, OptimalLearningRate])
def test_sparse_gradient_is_refused(kind: type[Any]) -> None:
    layer = nn.Embedding(5, 3, sparse=True)
    optimizer = optim.SGD(layer.parameters(), lr=0.1)
    kind(optimizer, layer.weight)
    before = layer.weight.detach().clone()
    layer(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(OptionError, match=f"{kind.__name__}.*sparse=False"):
        optimizer.step()
    assert torch.equal(layer.weight, before)


# Attaching and detaching.


def snapshot(optimizer: optim.Optimizer) -> tuple[Any, ...]:
    """All that attaching could change."""
    hooks = [getattr(optimizer, f"_optimizer_step_{when}_hooks") for when in ("pre", "post")]
    return type(optimizer), set(optimizer.__dict__), optimizer.state_dict(), [dict(h) for h in hooks]


@pytest.mark.parametrize("name", ["SGD-momentum", "Adam-fused"])
def test_detach_restores_the_optimizer(name: str) -> None:
    model, _, other, reference = twins(OPTIMIZERS[name])
    optimizer = OPTIMIZERS[name](model.parameters())
    before = snapshot(optimizer)
    one = NearestOrthogonalGradient(optimizer, [model[0].weight])
    two = NearestOrthogonalGradient(optimizer, [model[4].weight])
    three = OptimalLearningRate(optimizer, [model[0].weight])
    assert len(optimizer._optimizer_step_pre_hooks) == 1  # one pre-hook for all
    for treatment in (two, three, two, one):
        treatment.detach()
    assert snapshot(optimizer) == before
    for m, o in ((model, optimizer), (other, reference)):
        loss_of(m, data(0)).backward()
        o.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
    NearestOrthogonalGradient(optimizer, [model[0].weight])  # and it can be attached again


def test_detach_takes_off_one_treatment_only() -> None:
    model = network()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    NearestOrthogonalGradient(optimizer, [model[0].weight])
    NearestOrthogonalGradient(optimizer, [model[4].weight]).detach()
    loss_of(model, data(0)).backward()
    grads = [model[i].weight.grad.clone() for i in (0, 4)]
    optimizer.step()
    torch.testing.assert_close(model[0].weight.grad, nearest(grads[0]), rtol=1e-5, atol=1e-6)
    assert torch.equal(model[4].weight.grad, grads[1])


def test_a_copy_starts_without_and_a_loaded_state_keeps_it() -> None:
    model, optimizer, other, reference = twins(OPTIMIZERS["SGD-momentum"])
    assert not copy.deepcopy(optimizer)._optimizer_step_pre_hooks
    for m, o in ((model, optimizer), (other, reference)):
        loss_of(m, data(0)).backward()
        o.load_state_dict(o.state_dict())
    optimizer.step()
    step_by_hand(other, reference)
    assert_same(model, other)


def test_the_treatment_lives_as_long_as_the_optimizer_and_no_longer() -> None:
    model = network()
    optimizer = OPTIMIZERS["Adam"](model.parameters())
    nog = NearestOrthogonalGradient(optimizer, [model[0].weight])
    OptimalLearningRate(optimizer, [model[0].weight])
    gone = weakref.ref(optimizer)
    gc.collect()
    loss_of(model, data(0)).backward()
    optimizer.step()  # OLR was not kept by anyone but the optimizer
    G = model[0].weight.grad.flatten(1)
    torch.testing.assert_close(G @ G.mT, torch.eye(8), rtol=0, atol=1e-5)
    gc.disable()
    try:
        del optimizer
        assert gone() is None  # no cycle
    finally:
        gc.enable()
    nog.detach()


def test_a_step_that_calls_its_parent_s_step() -> None:
    """torch then runs the hooks twice."""
    calls = []

    class Child(optim.SGD):
        def step(self, closure: Any = None) -> Any:
            calls.append([group["lr"] for group in self.param_groups])
            return super().step(closure)

    optim.SGD([nn.Parameter(torch.zeros(1))])  # wraps the parent's step
    model, optimizer, other, _ = twins(lambda params: Child(params, lr=0.5))
    olr = OptimalLearningRate(optimizer, [model[0].weight])
    reference = optim.SGD(other.parameters(), lr=0.5)
    NearestOrthogonalGradient(reference, [other[0].weight])
    OptimalLearningRate(reference, [other[0].weight])
    for i in range(4):
        for m, o in ((model, optimizer), (other, reference)):
            o.zero_grad()
            loss_of(m, data(i)).backward()
            o.step()
    assert_same(model, other)
    assert any(len(rates) == 2 for rates in calls)  # control: OLR was used
    assert isinstance(olr.rates[0], float)


BAD: list[tuple[Callable[[nn.Sequential], Any], type[Exception], str]] = [
    (lambda _: nn.Parameter(torch.zeros(3, 3)), OptionError, "not held by this SGD"),
    (lambda m: [m[4].weight.detach()], OptionError, "not held by this SGD"),
    (lambda m: [m[4].weight, m[0].weight], OptionError, "parameter 1 .* already has this treatment"),
    (lambda m: m[0].weight, OptionError, "already has this treatment"),
    (lambda m: [m[4].weight, m[4].weight], OptionError, "parameter 1 .* already has this treatment"),
    (lambda _: [], OptionError, "one or more parameters, got none"),
    (lambda m: m[4], OptionError, "must be parameters, got Linear"),
    (lambda _: 3, OptionError, "must be parameters, got int"),
    (lambda m: m.state_dict(), OptionError, "got str"),
]


@pytest.mark.parametrize("kind", [NearestOrthogonalGradient, OptimalLearningRate])
@pytest.mark.parametrize(("params", "error", "message"), BAD)
def test_bad_parameters(kind: type[Any], params: Callable[[nn.Module], Any], error: type[Exception], message: str) -> None:
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    kind(optimizer, [model[0].weight])
    before = snapshot(optimizer)
    with pytest.raises(error, match=f"`{kind.__name__}`.*{message}"):
        kind(optimizer, params(model))
    assert snapshot(optimizer) == before
    kind(optimizer, [model[4].weight])  # what was not attached is still free


def test_vectors_are_refused() -> None:
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ShapeError, match="Leave out biases"):
        NearestOrthogonalGradient(optimizer, model.parameters())
    with pytest.raises(ShapeError, match=r"got shape \(3,\)"):
        NearestOrthogonalGradient(optimizer, model[4].bias)
    assert not optimizer._optimizer_step_pre_hooks
    NearestOrthogonalGradient(optimizer, (p for p in model.parameters() if p.ndim > 1))


@pytest.mark.parametrize("kind", [NearestOrthogonalGradient, OptimalLearningRate])
def test_bad_optimizers(kind: type[Any]) -> None:
    p = nn.Parameter(torch.zeros(3, 3))
    with pytest.raises(OptionError, match=r"must be a torch\.optim\.Optimizer, got Parameter"):
        kind(p, p)
    with pytest.raises(OptionError, match="LBFGS"):
        kind(optim.LBFGS([p]), p)
    with pytest.raises(OptionError, match="differentiable=True"):
        kind(optim.SGD([p], lr=0.1, differentiable=True), p)
