"""SN and OW: the weight, its gradient, and everything that a parametrized layer has to survive."""

import copy
import io
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import is_parametrized, remove_parametrizations

from spectralgrad.errors import DtypeError, NonFiniteError, OptionError, ShapeError
from spectralgrad.orthogonal import orthogonal_weight, spectral_norm
from support.cases import random, relative_error, rotation
from support.marks import slow_but
from support.precision import matmul_precision

# Square, tall with m <= 2k and m > 2k, wide both ways; every kind of convolution.
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear 6x6": lambda: nn.Linear(6, 6),
    "linear 1x1": lambda: nn.Linear(1, 1),
    "linear 7x4": lambda: nn.Linear(4, 7),
    "linear 9x2": lambda: nn.Linear(2, 9),
    "linear 4x7": lambda: nn.Linear(7, 4),
    "linear 1x5": lambda: nn.Linear(5, 1),
    "conv1d 16x6": lambda: nn.Conv1d(2, 16, 3),
    "conv2d 64x27": lambda: nn.Conv2d(3, 64, 3),
    "conv3d 4x16": lambda: nn.Conv3d(2, 4, 2),
    "groups 8x8": lambda: nn.Conv2d(4, 8, 2, groups=2),
    "transposed 3x20": lambda: nn.ConvTranspose2d(5, 3, 2),
}
SMALL = [name for name in LAYERS if "64x27" not in name]
TREATMENTS = {"SN": spectral_norm, "OW": orthogonal_weight, "OW as printed": lambda m: orthogonal_weight(m, keep=False)}


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def matrix(layer: nn.Module, weight: Tensor | None = None) -> Tensor:
    """(out, in*kh*kw)"""
    W = layer.weight if weight is None else weight
    return W.transpose(0, 1).flatten(1) if isinstance(layer, nn.ConvTranspose2d) else W.flatten(1)


def tall(W: Tensor) -> Tensor:
    return W if W.shape[0] >= W.shape[1] else W.mT


def off_orthogonal(layer: nn.Module) -> float:
    """max |W^T W - I|, in float64."""
    W = tall(matrix(layer).detach().double())
    return float((W.mT @ W - torch.eye(W.shape[1])).abs().max())


def original(layer: nn.Module) -> nn.Parameter:
    return layer.parametrizations.weight.original


def polar_factor(W: Tensor) -> Tensor:
    U, _, Vh = torch.linalg.svd(W.double(), full_matrices=False)
    return U @ Vh


# The spectral norm.


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spectral_norm_is_one(kind: str, dtype: torch.dtype) -> None:
    layer = LAYERS[kind]().to(dtype)
    before = matrix(layer).detach().clone()
    assert spectral_norm(layer) is layer
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    assert abs(float(torch.linalg.matrix_norm(matrix(layer).detach().double(), ord=2)) - 1) < tolerance
    expected = before.double() / torch.linalg.svdvals(before.double())[0]
    assert relative_error(matrix(layer).detach(), expected) < tolerance
    assert float(torch.linalg.svdvals(before.double())[0] - 1) != 0  # control: it was not so before


def test_spectral_norm_is_exact_in_the_first_pass_where_one_power_iteration_is_not() -> None:
    W = torch.diag(torch.tensor([1.0, 0.99, 0.98, 0.97]))
    layer, other = nn.Linear(4, 4), parametrizations.spectral_norm(nn.Linear(4, 4))
    layer.weight.data = W @ rotation(4).float()
    other.parametrizations.weight.original.data = layer.weight.data.clone()
    norms = [float(torch.linalg.matrix_norm(m.weight, ord=2).detach()) for m in (spectral_norm(layer), other)]
    assert abs(norms[0] - 1) < 1e-6 < 1e-3 < abs(norms[1] - 1)


@pytest.mark.parametrize("kind", SMALL)
def test_spectral_norm_gradient(kind: str) -> None:
    layer = spectral_norm(LAYERS[kind]().double())
    sn, X = layer.parametrizations.weight[0], original(layer)
    assert torch.autograd.gradcheck(sn, X)
    C = random(*X.shape)
    (g,) = torch.autograd.grad((sn(X) * C).sum(), X)
    M = matrix(layer, X)
    (expected,) = torch.autograd.grad((X / torch.linalg.matrix_norm(M, ord=2) * C).sum(), X)
    torch.testing.assert_close(g, expected)
    (naive,) = torch.autograd.grad((X / torch.linalg.matrix_norm(M, ord=2).detach() * C).sum(), X)
    assert not torch.allclose(g, naive)  # control: the norm is differentiated, not held


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_spectral_norm_of_zero_and_of_a_tie_is_finite(dtype: torch.dtype) -> None:
    for W in (torch.zeros(4, 3), torch.eye(4, 3), torch.ones(4, 3)):
        layer = nn.Linear(3, 4, dtype=dtype)
        layer.weight.data = W.to(dtype)
        spectral_norm(layer)
        assert layer.weight.dtype == dtype
        layer.weight.abs().sum().backward()
        assert layer.weight.isfinite().all()
        assert original(layer).grad.isfinite().all()
        assert torch.equal(layer.weight == 0, W.to(dtype) == 0)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_spectral_norm_does_not_depend_on_the_scale(scale: float) -> None:
    layer, other = spectral_norm(nn.Linear(5, 4)), spectral_norm(nn.Linear(5, 4))
    original(other).data = original(layer).data * scale
    torch.testing.assert_close(other.weight, layer.weight)


@pytest.mark.parametrize("size", [1e-38, 1e-40, 1e-45])
def test_spectral_norm_of_tiny_weights_has_a_finite_gradient(size: float) -> None:
    layer = nn.Linear(4, 4, bias=False)
    layer.weight = nn.Parameter(torch.full((4, 4), size) + torch.diag(torch.full((4,), size)))
    spectral_norm(layer)
    torch.testing.assert_close(layer.weight, (torch.ones(4, 4) + torch.eye(4)) / 5)
    layer(torch.arange(4.0).expand(2, 4)).sum().backward()
    [p] = layer.parameters()
    assert p.grad is not None
    assert bool(p.grad.isfinite().all())
    assert float(p.grad.abs().max()) > 1e37


def test_spectral_norm_follows_a_parametrization_that_is_not_ours() -> None:
    layer = spectral_norm(parametrizations.weight_norm(nn.Linear(5, 4)))
    assert abs(float(torch.linalg.matrix_norm(layer.weight, ord=2).detach()) - 1) < 1e-6


# The orthogonal weight.


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("keep", [True, False])
def test_weight_is_orthogonal_wherever_the_optimizer_goes(kind: str, dtype: torch.dtype, keep: bool) -> None:
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    layer = LAYERS[kind]().to(dtype)
    if kind != "linear 1x1":
        assert off_orthogonal(layer) > 1e-2  # control: it was not so before
    assert orthogonal_weight(layer, keep=keep) is layer
    assert original(layer).shape == layer.weight.shape
    assert off_orthogonal(layer) < tolerance
    for size in (1e-9, 1e-3, 1.0, 30.0):
        original(layer).data = size * random(*layer.weight.shape).to(dtype)
        assert off_orthogonal(layer) < tolerance


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_initial_weight_is_kept_as_near_as_possible(kind: str, dtype: torch.dtype) -> None:
    layer = LAYERS[kind]().to(dtype)
    expected = polar_factor(matrix(layer).detach())
    printed = orthogonal_weight(copy.deepcopy(layer), keep=False)
    orthogonal_weight(layer)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    assert float((matrix(layer).detach() - expected).abs().max()) < tolerance
    if kind != "linear 1x1":
        assert float((matrix(printed).detach() - expected).abs().max()) > 0.1  # control: the option changes it


@pytest.mark.parametrize("W", [torch.eye(4), -torch.eye(4), torch.eye(4)[[1, 0, 2, 3]], torch.zeros(4, 4), torch.ones(4, 4)])
def test_initial_weights_with_reflections_and_without_rank(W: Tensor) -> None:
    layer = nn.Linear(4, 4)
    layer.weight.data = W.clone()
    orthogonal_weight(layer)
    assert off_orthogonal(layer) < 1e-6
    if torch.linalg.matrix_rank(W) == 4:  # determinants of both signs
        torch.testing.assert_close(layer.weight.detach(), W)


def printed_form(A: Tensor) -> Tensor:
    """exp of the m x m skew matrix, its first k columns, for A (m, k)."""
    A = A.double()
    full = torch.cat([A, A.new_zeros(A.shape[0], A.shape[0] - A.shape[1])], 1)
    return torch.matrix_exp(full - full.mT)[:, : A.shape[1]]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("size", [0.1, 3.0])
def test_weight_is_the_exponential_of_a_skew_matrix(kind: str, size: float) -> None:
    layer = orthogonal_weight(LAYERS[kind]().double(), keep=False)
    original(layer).data = size * random(*layer.weight.shape)
    expected = printed_form(tall(matrix(layer, original(layer).detach())))
    torch.testing.assert_close(tall(matrix(layer)).detach(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", LAYERS)
def test_kept_weight_turns_by_the_same_exponential(kind: str) -> None:
    """W = Q_0 E D with Q = Q_0 [I; 0] D the initial weight: Q^T W = D E_top D, D the signs on the diagonal of `base`."""
    layer = orthogonal_weight(LAYERS[kind]().double())
    Q = tall(matrix(layer)).detach().clone()
    original(layer).data = 0.3 * random(*layer.weight.shape)
    W, E = tall(matrix(layer)).detach(), printed_form(tall(matrix(layer, original(layer).detach())))
    D = layer.parametrizations.weight[0].base.diagonal().sign()
    torch.testing.assert_close(Q.mT @ W, D[:, None] * E[: len(D)] * D, rtol=0, atol=1e-13)


@pytest.mark.covering(2)
@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("size", [0.0, 0.5])
@pytest.mark.parametrize("keep", [True, False])
def test_orthogonal_weight_gradient(kind: str, size: float, keep: bool) -> None:
    layer = orthogonal_weight(LAYERS[kind]().double(), keep=keep)
    original(layer).data = size * random(*layer.weight.shape)  # at 0 too, where a QR of the lower block would fail
    assert torch.autograd.gradcheck(layer.parametrizations.weight[0], original(layer))


def test_training_reaches_a_rotation_and_stays_orthogonal() -> None:
    target = rotation(8)[:, :3].float()
    layer = orthogonal_weight(nn.Linear(3, 8))
    optimizer = torch.optim.Adam([original(layer)], lr=0.05)
    losses = []
    for _ in range(300):
        optimizer.zero_grad()
        loss = (layer.weight - target).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        assert off_orthogonal(layer) < 1e-6
    assert losses[0] > 1
    assert losses[-1] < 1e-6


def test_base_stays_orthogonal_when_rounded() -> None:
    layer = orthogonal_weight(nn.Conv2d(3, 16, 3))
    W = layer.weight.detach().clone()
    layer.bfloat16()
    assert layer.weight.dtype == torch.bfloat16
    layer.float()
    assert off_orthogonal(layer) < 1e-6
    assert 1e-4 < float((layer.weight - W).detach().abs().max()) < 0.1  # control: it was rounded


# What a parametrized layer has to survive.


@pytest.fixture(params=[(t, k) for t in TREATMENTS for k in ("conv2d 64x27", "linear 4x7", "transposed 3x20")], ids=str)
def layer(request: pytest.FixtureRequest) -> nn.Module:
    treatment, kind = request.param
    layer = TREATMENTS[treatment](LAYERS[kind]())
    original(layer).data += 0.1 * random(*layer.weight.shape).float()  # as after training
    return layer


def test_remove_and_leave_the_weight(layer: nn.Module) -> None:
    W, parameter = layer.weight.detach().clone(), original(layer)
    remove_parametrizations(layer, "weight", leave_parametrized=True)
    assert type(layer).__name__ in ("Linear", "Conv2d", "ConvTranspose2d")
    assert layer.weight is parameter  # the optimizer goes on with it
    assert torch.equal(layer.weight, W)
    pickle.loads(pickle.dumps(layer))


def test_remove_and_leave_the_original(layer: nn.Module) -> None:
    parameter, A = original(layer), original(layer).detach().clone()
    remove_parametrizations(layer, "weight", leave_parametrized=False)
    assert layer.weight is parameter
    assert torch.equal(layer.weight, A)
    assert not is_parametrized(layer)
    x = torch.zeros(1, 7) if isinstance(layer, nn.Linear) else torch.zeros(1, layer.in_channels, 5, 5)
    layer(x)  # the original has the shape of the weight
    for treatment in (spectral_norm, orthogonal_weight):  # and can be treated again
        remove_parametrizations(treatment(layer), "weight")


def test_deepcopy_is_independent(layer: nn.Module) -> None:
    W = layer.weight.detach().clone()
    other = copy.deepcopy(layer)
    assert torch.equal(other.weight, W)
    original(other).data += random(*W.shape).float()
    assert torch.equal(layer.weight, W)
    assert not torch.equal(other.weight, W)


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("kind", ["conv2d 64x27", "linear 4x7"])
def test_state_dict_round_trip(treatment: str, kind: str) -> None:
    attach = TREATMENTS[treatment]
    one, two = attach(LAYERS[kind]()), attach(LAYERS[kind]())
    original(one).data += 0.1 * random(*one.weight.shape).float()
    assert not torch.equal(one.weight, two.weight)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    two.load_state_dict(torch.load(file))
    assert torch.equal(one.weight, two.weight)
    with torch.device("meta"):
        three = attach(LAYERS[kind]())
    three.load_state_dict(one.state_dict(), assign=True)
    assert torch.equal(one.weight, three.weight)


def test_pickle_is_torch_s_to_refuse(layer: nn.Module) -> None:
    with pytest.raises(RuntimeError, match="only supported through state_dict"):
        pickle.dumps(layer)


def test_attaching_keeps_the_parameter_that_an_optimizer_holds() -> None:
    for attach in TREATMENTS.values():
        layer = nn.Linear(5, 4)
        held = layer.weight
        attach(layer)
        assert original(layer) is held
        assert held.requires_grad
        layer(random(3, 5).float()).square().sum().backward()
        assert held.grad.abs().max() > 0


def test_weight_can_be_assigned() -> None:
    W = rotation(5)[:, :3].float()
    layer = orthogonal_weight(nn.Linear(3, 5))
    layer.weight = 2 * W
    torch.testing.assert_close(layer.weight.detach(), W)
    layer = spectral_norm(nn.Linear(3, 5))
    layer.weight = 2 * W
    torch.testing.assert_close(layer.weight.detach(), W)


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("kind", slow_but(["conv2d 64x27"], ["linear 7x4", "conv2d 64x27", "transposed 3x20"]))
def test_compiles_in_one_graph(treatment: str, kind: str) -> None:
    layer = TREATMENTS[treatment](LAYERS[kind]())
    x = random(2, 4).float() if isinstance(layer, nn.Linear) else random(2, layer.in_channels, 5, 5).float()
    torch.compiler.reset()
    y = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(y, layer(x))
    (compiled,) = torch.autograd.grad(y.square().sum(), original(layer))
    (eager,) = torch.autograd.grad(layer(x).square().sum(), original(layer))
    torch.testing.assert_close(compiled, eager)
    assert eager.abs().max() > 1e-3
    torch.compiler.reset()


@pytest.mark.parametrize("treatment", TREATMENTS)
def test_weight_does_not_see_autocast_or_matmul_flags(treatment: str) -> None:
    layer = TREATMENTS[treatment](nn.Conv2d(3, 64, 3))
    original(layer).data += 0.1 * random(64, 3, 3, 3).float()
    W = layer.weight.detach()
    with matmul_precision("medium"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer.weight, W)
        assert layer(torch.zeros(1, 3, 4, 4)).dtype == torch.bfloat16  # control: autocast is on


@pytest.mark.cuda
@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("kind", LAYERS)
def test_gpu_equals_cpu(treatment: str, kind: str) -> None:
    layer = LAYERS[kind]()
    other = TREATMENTS[treatment](copy.deepcopy(layer).cuda())
    TREATMENTS[treatment](layer)
    torch.testing.assert_close(other.weight.detach().cpu(), layer.weight.detach(), rtol=0, atol=2e-6)
    if treatment != "SN":
        assert off_orthogonal(other.cpu()) < 1e-6


# Bad input.


class Holder(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)


BAD: list[tuple[Callable[[], object], str, type[Exception], str]] = [
    (lambda: torch.zeros(3, 3), "weight", OptionError, "must be a torch.nn.Module"),
    (lambda: nn.ReLU(), "weight", OptionError, "no parameter called 'weight'"),
    (lambda: nn.Linear(3, 3), "weights", OptionError, "no parameter called 'weights'"),
    (lambda: nn.Linear(3, 3), "training", OptionError, "no parameter called 'training'"),
    (lambda: nn.Linear(3, 3), "bias", ShapeError, "at least two dimensions"),
    (lambda: Holder(torch.zeros(3, 0)), "weight", ShapeError, "none of them 0"),
    (lambda: nn.LazyLinear(3), "weight", OptionError, "Run the module once"),
    (lambda: Holder(torch.ones(3, 3, dtype=torch.int64)), "weight", DtypeError, "floating point"),
    (lambda: Holder(torch.eye(3).to_sparse()), "weight", DtypeError, r"must be a dense \(strided\) tensor"),
    (lambda: Holder(torch.full((3, 3), float("nan"))), "weight", NonFiniteError, "9 NaN"),
    (lambda: spectral_norm(nn.Linear(3, 3)), "weight", OptionError, "already has SpectralNorm"),
    (lambda: orthogonal_weight(nn.Linear(3, 3)), "weight", OptionError, "already has OrthogonalWeight"),
]


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize(("make", "name", "error", "message"), BAD)
def test_bad_input_is_refused_and_changes_nothing(
    treatment: str, make: Callable[[], object], name: str, error: type[Exception], message: str
) -> None:
    module = make()
    kind = type(module)
    before = {} if not isinstance(module, nn.Module) or "Lazy" in kind.__name__ else copy.deepcopy(module.state_dict())
    attach = spectral_norm if treatment == "SN" else lambda m, n: orthogonal_weight(m, n, keep=treatment == "OW")
    with pytest.raises(error, match=message) as caught:
        attach(module, name)
    assert ("spectral_norm" if treatment == "SN" else "orthogonal_weight") in str(caught.value)
    assert type(module) is kind
    for key, value in before.items():
        torch.testing.assert_close(module.state_dict()[key], value, rtol=0, atol=0, equal_nan=True)


def test_orthogonal_weight_comes_first_and_is_real() -> None:
    with pytest.raises(OptionError, match="already has _WeightNorm"):
        orthogonal_weight(parametrizations.weight_norm(nn.Linear(5, 4)))
    with pytest.raises(DtypeError, match="must be real"):
        orthogonal_weight(nn.Linear(5, 4, dtype=torch.complex64))
