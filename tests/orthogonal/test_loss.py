"""OL: the value, the gradient at and near an orthogonal weight, and what it accepts."""

import pytest
import torch
from torch import Tensor, nn

from spectralgrad.errors import DtypeError, OptionError, ShapeError
from spectralgrad.orthogonal import orthogonal_loss, orthogonal_weight
from support.cases import DTYPES, random, rotation

SHAPES = [(5, 5), (8, 3), (3, 8), (1, 1), (64, 3, 3, 3), (4, 2, 2, 2, 2), (6, 2, 3)]


def reference(W: Tensor) -> Tensor:
    """|W^H W - I|_F with the smaller Gram matrix, as one would write it."""
    W = W.flatten(1)
    G = W.mH @ W if W.shape[0] >= W.shape[1] else W @ W.mH
    return (G - torch.eye(len(G))).abs().square().sum().sqrt()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_value_and_gradient(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    W = random(*shape, dtype=dtype).requires_grad_()
    X = W.detach().to(torch.complex128 if dtype.is_complex else torch.float64).requires_grad_()
    loss, expected = orthogonal_loss(W), reference(X)
    assert loss.shape == ()
    assert loss.dtype == W.real.dtype
    torch.testing.assert_close(loss, expected.to(loss.dtype))
    loss.backward()
    expected.backward()
    torch.testing.assert_close(W.grad, X.grad.to(dtype), rtol=1e-4 if W.real.dtype == torch.float32 else 1e-10, atol=1e-5)


def test_smaller_gram_matrix_is_taken() -> None:
    Q = rotation(8)[:, :3]
    for W in (Q, Q.mT):
        assert orthogonal_loss(W) < 1e-14  # of the larger one: |W W^T - I|_F = sqrt(5)
    assert abs(float((Q @ Q.mT - torch.eye(8)).square().sum().sqrt()) - 5**0.5) < 1e-12


def test_norm_is_not_squared() -> None:
    assert orthogonal_loss(2 * torch.eye(4)) == 6  # |3 I|_F, squared 36


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(4, 4), (5, 2), (2, 5)], ids=str)
def test_gradient_at_an_orthogonal_weight_is_finite(shape: tuple[int, int], dtype: torch.dtype) -> None:
    W = torch.eye(*shape, dtype=dtype).requires_grad_()
    loss = orthogonal_loss(W)
    (g,) = torch.autograd.grad(loss, W)
    assert loss == 0
    assert torch.equal(g, torch.zeros_like(g))
    (naive,) = torch.autograd.grad(reference(W), W)
    assert naive.isnan().any()  # control: the guard is needed


@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-8, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_near_an_orthogonal_weight_is_bounded(dtype: torch.dtype, distance: float) -> None:
    """2 W E / |E| has the norm 2 for nearly orthogonal W; less where E = W^T W - I is rounding, which is not symmetric."""
    S = random(7, 7)
    W = (rotation(16)[:, :7] @ (torch.eye(7) + distance * (S + S.mT))).to(dtype).requires_grad_()
    (g,) = torch.autograd.grad(orthogonal_loss(W), W)
    norm = float(torch.linalg.norm(g))
    assert norm < 2 + 10 * distance + 1e-5
    if distance > 1e3 * torch.finfo(dtype).eps:
        assert norm > 2 - 10 * distance - 1e-4


@pytest.mark.parametrize("scale", [1e-18, 1e-8, 1e8, 1e15])
def test_scales(scale: float) -> None:
    W = (scale * random(5, 3)).float().requires_grad_()
    loss = orthogonal_loss(W)
    loss.backward()
    torch.testing.assert_close(loss.double(), reference(W.detach().double()), rtol=1e-6, atol=0)
    assert W.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1e16, 1e19, 1e25, 1e37])
@pytest.mark.parametrize("shape", [(5, 3), (3, 5)], ids=str)
def test_what_overflows_is_the_largest_number(scale: float, shape: tuple[int, int]) -> None:
    """Its gradient is shorter then, and of the right direction."""
    W = (scale * random(*shape)).float().requires_grad_()
    X = W.detach().double().requires_grad_()
    loss, expected = orthogonal_loss(W), reference(X)
    loss.backward()
    expected.backward()
    largest = torch.finfo(torch.float32).max
    torch.testing.assert_close(loss.double(), expected.detach().clamp(max=largest), rtol=1e-6, atol=0)
    found, direction = W.grad.double(), X.grad / X.grad.norm()
    assert found.norm() > largest / scale / 1e6
    torch.testing.assert_close(found / found.norm(), direction, rtol=1e-4, atol=1e-5)
    if scale == 1e16:
        torch.testing.assert_close(found, X.grad, rtol=1e-5, atol=0)


def test_gradcheck() -> None:
    W = random(3, 2, 2).requires_grad_()
    assert torch.autograd.gradcheck(orthogonal_loss, W)
    assert torch.autograd.gradgradcheck(orthogonal_loss, W)


def test_descent_makes_a_weight_orthogonal() -> None:
    W = (random(9, 4) / 3).requires_grad_()
    optimizer = torch.optim.SGD([W], lr=0.01)
    first = orthogonal_loss(W).item()
    for _ in range(300):
        optimizer.zero_grad()
        orthogonal_loss(W).backward()
        optimizer.step()
    assert orthogonal_loss(W) < 0.1 < 0.5 < first


def test_what_it_accepts() -> None:
    conv, linear = nn.Conv2d(2, 8, 3), nn.Linear(4, 4)
    a, b = (reference(m.weight.detach()) for m in (conv, linear))
    torch.testing.assert_close(orthogonal_loss(conv), a)
    torch.testing.assert_close(orthogonal_loss(conv.weight), a)
    for both in ([conv, linear], (conv.weight, linear), iter([conv, linear.weight]), {conv: 0, linear: 0}):
        torch.testing.assert_close(orthogonal_loss(both), a + b)
    torch.testing.assert_close(orthogonal_loss(nn.ModuleList([conv, linear])), a + b)
    torch.testing.assert_close(orthogonal_loss(nn.ParameterList([conv.weight, linear.weight])), a + b)
    assert orthogonal_loss([linear.weight, linear.weight.double()]).dtype == torch.float64


def test_nothing_costs_nothing() -> None:
    assert orthogonal_loss([]) == 0
    assert orthogonal_loss(torch.zeros(3, 0)) == 0


def test_treated_and_transposed_layers() -> None:
    assert orthogonal_loss(orthogonal_weight(nn.Conv2d(3, 64, 3))) < 1e-6
    layer = nn.ConvTranspose2d(5, 3, 2)  # (in, out, kh, kw)
    torch.testing.assert_close(orthogonal_loss(layer), reference(layer.weight.detach().transpose(0, 1)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast(dtype: torch.dtype) -> None:
    W = random(8, 5).to(dtype).requires_grad_()
    loss = orthogonal_loss(W)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, reference(W.detach().float()))
    loss.backward()
    assert W.grad.dtype == dtype
    X = random(8, 5).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(orthogonal_loss(X), orthogonal_loss(X.clone()))
        torch.testing.assert_close(orthogonal_loss(X), reference(X.double()).float())


def test_nan_stays_nan() -> None:
    assert orthogonal_loss(torch.full((3, 2), float("nan"))).isnan()


def test_compiles_in_one_graph() -> None:
    W = random(8, 5).requires_grad_()
    torch.compiler.reset()
    compiled = torch.compile(orthogonal_loss, fullgraph=True, backend="aot_eager")
    (a,), (b,) = (torch.autograd.grad(f([W, W]), W) for f in (compiled, orthogonal_loss))
    torch.testing.assert_close(a, b)
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (3, OptionError, "must be tensors or modules, got int"),
        ([1.0], DtypeError, "must be a tensor or a module, got float"),
        (nn.Linear(3, 3).bias, ShapeError, "Leave out biases"),
        ([nn.BatchNorm2d(3)], ShapeError, r"got shape \(3,\)"),
        (nn.Sequential(nn.Linear(3, 3)), OptionError, "Sequential has none"),
        ([nn.ReLU()], OptionError, "ReLU has none"),
        (torch.ones(3, 3, dtype=torch.int64), DtypeError, "int64"),
    ],
)
def test_bad_input(weights: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        orthogonal_loss(weights)
