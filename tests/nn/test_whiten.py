"""`functional.whiten` is `DecorrelatedBatchNorm` in training without its state."""

import copy
import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.errors import DtypeError, NonFiniteError, OptionError, ShapeError
from spectralgrad.nn import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, DecorrelatedBatchNorm3d
from spectralgrad.nn.functional import whiten
from support import cases
from support.features import images, rows
from support.marks import slow_but
from support.routes import node_of, one_node

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "groups": {"group_size": 3},
    "eps": {"eps": 0.1},
    "pca": {"whitening": "pca"},
    "rule": {"gradient": sg.Lorentzian(rtol=0.3)},
    "steps": {"solver": sg.NewtonSchulz(steps=3)},
    "svd": {"solver": sg.SVD()},
}
CHANGED = ("groups", "eps", "pca", "steps")  # in value; the rule in the gradient
each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
LAYERS = {2: DecorrelatedBatchNorm1d, 3: DecorrelatedBatchNorm1d, 4: DecorrelatedBatchNorm2d, 5: DecorrelatedBatchNorm3d}
WEIGHT, BIAS = (cases.random(6, seed=seed) + 2 for seed in (11, 12))


def value_and_gradient(f: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().clone().requires_grad_()
    y = f(x)
    return y.detach(), torch.autograd.grad((y**3 + cases.random(*y.shape, seed=4).to(y) * y).sum(), x)[0]


def shaped(ndim: int, dtype: torch.dtype = torch.float64) -> Tensor:
    x = images(dtype=dtype)  # (8, 6, 3, 2)
    return {2: x[:, :, 0, 0], 3: x.flatten(2), 4: x, 5: x.unsqueeze(2)}[ndim]


@each_option
@pytest.mark.parametrize("ndim", LAYERS)
def test_as_the_layer(options: dict[str, Any], ndim: int) -> None:
    x = shaped(ndim)
    layer: Any = LAYERS[ndim](6, **options, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(WEIGHT)
        layer.bias.copy_(BIAS)
    got = value_and_gradient(lambda x: whiten(x, WEIGHT, BIAS, **options), x)
    for a, b in zip(got, value_and_gradient(layer, x), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_changes_the_result(name: str) -> None:
    plain, other = (value_and_gradient(lambda x, o=o: whiten(x, **o), images()) for o in ({}, OPTIONS[name]))
    if name in CHANGED:
        assert (plain[0] - other[0]).abs().max() > 1e-3
    elif name == "rule":
        assert (plain[1] - other[1]).abs().max() > 1e-3
    else:
        torch.testing.assert_close(plain, other)


def test_the_output_is_white() -> None:
    y = whiten(images(), group_size=3, eps=1e-9)
    Y = rows(y, 2)
    torch.testing.assert_close(Y @ Y.mT / Y.shape[-1], torch.eye(3, dtype=Y.dtype).expand(2, 3, 3), rtol=0, atol=1e-7)
    assert Y.mean(-1).abs().max() < 1e-12
    torch.testing.assert_close(whiten(images(), WEIGHT), WEIGHT[:, None, None] * whiten(images()))
    torch.testing.assert_close(whiten(images(), bias=BIAS), whiten(images()) + BIAS[:, None, None])


def test_batches_do_not_touch_each_other() -> None:
    """No state is left: the second call gives what the first gave."""
    first = whiten(images())
    whiten(100 * images(seed=3))
    assert torch.equal(whiten(images()), first)


@pytest.mark.parametrize("scale", slow_but(["1"], {"1e-8": 1e-8, "1": 1.0, "1e8": 1e8}))
@pytest.mark.parametrize("name", slow_but(["default", "pca"], ["default", "groups", "pca"]))
def test_derivatives(name: str, scale: float) -> None:
    options = {"eps": 1e-4 * scale**2, **OPTIONS[name]}
    if name == "pca":
        options["gradient"] = sg.Exact()
    x = images(n=3)[:, :, :2]
    inputs = [t.clone().requires_grad_() for t in (x, WEIGHT, BIAS)]
    f = lambda x, w, b: whiten(scale * x, w, b, **options)  # noqa: E731
    assert torch.autograd.gradcheck(f, inputs)
    assert torch.autograd.gradgradcheck(f, inputs)


@pytest.mark.parametrize("name", ["default", "groups"])
def test_tied_and_singular_covariances(name: str) -> None:
    """Ties, constant and repeated channels: finite, and the gradient is that of finite differences."""
    tied = torch.cat([torch.eye(6), -torch.eye(6)]).double()  # covariance I / 6
    repeated = images(n=4)[:, :, 0, 0].clone()
    repeated[:, 1] = repeated[:, 0]
    for x in (tied, repeated, torch.ones(4, 6, dtype=torch.float64)):
        x = x.requires_grad_()
        assert torch.autograd.gradcheck(lambda x: whiten(x, eps=1e-2, **OPTIONS[name]), x, atol=1e-4)


@pytest.mark.parametrize("name", ["groups", "pca", "rule"])
def test_in_one_node_as_on_cuda(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way past the kernels, with their plain twins."""
    functional = importlib.import_module("spectralgrad.nn.functional")
    x = images()
    f = lambda x: whiten(x, WEIGHT, BIAS, **OPTIONS[name])  # noqa: E731
    want = value_and_gradient(f, x)
    monkeypatch.setattr(functional, "route_of", one_node)
    torch.testing.assert_close(value_and_gradient(f, x), want)
    assert node_of(f(x.requires_grad_())) == "Normalized"


@pytest.mark.cuda
def test_on_cuda() -> None:
    """A step in kernels from end to end, value and gradient as in float64 on the CPU."""
    x = images(n=64, dtype=torch.float32)
    layer = DecorrelatedBatchNorm2d(6, group_size=3, affine=False).cuda()
    f = lambda x: whiten(x, group_size=3)  # noqa: E731
    got = value_and_gradient(f, x.cuda())
    for a, b in zip(got, value_and_gradient(layer, x.cuda()), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(got, value_and_gradient(f, x.double()), strict=True):
        assert (a.cpu().double() - b).abs().max() < 1e-4 * b.abs().max()
    assert node_of(f(x.cuda().requires_grad_())) == "Whitened"


def test_transforms() -> None:
    x = torch.stack([images(seed=i) for i in range(3)])
    f = lambda x: whiten(x, WEIGHT, group_size=3)  # noqa: E731
    torch.testing.assert_close(torch.func.vmap(f)(x), torch.stack([f(part) for part in x]))
    direction = images(seed=7)
    _, forward = torch.func.jvp(f, (x[0],), (direction,))
    backward = torch.func.vjp(f, x[0])[1](direction)[0]
    torch.testing.assert_close((forward * direction).sum(), (backward * direction).sum())


@pytest.mark.parametrize("name", slow_but(["groups"], ["groups", "pca"]))
def test_compile(name: str) -> None:
    torch.compiler.reset()
    f = lambda x: whiten(x, WEIGHT, BIAS, **OPTIONS[name])  # noqa: E731
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for a, b in zip(value_and_gradient(compiled, images()), value_and_gradient(f, images()), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    x = images(dtype=dtype)
    y = whiten(x, WEIGHT.to(dtype), group_size=2)
    assert y.dtype == dtype
    want = whiten(x.double(), WEIGHT.to(dtype).double(), group_size=2)
    assert (y.double() - want).abs().max() < 8 * torch.finfo(dtype).eps * want.abs().max()


def test_empty_and_single() -> None:
    assert whiten(torch.empty(0, 6, 2, 2)).shape == (0, 6, 2, 2)
    y = whiten(images()[:, :1], eps=1e-12)
    torch.testing.assert_close(y.square().mean(), torch.ones((), dtype=y.dtype))


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"x": torch.ones(6)}, ShapeError, "must be 2D or 3D or 4D or 5D"),
    ({"x": torch.ones(3, 0)}, ShapeError, "at least one channel"),
    ({"x": torch.ones(1, 6)}, ShapeError, "more than 1 value per channel"),
    ({"x": torch.ones(4, 6, dtype=torch.int64)}, DtypeError, "int64"),
    ({"x": torch.full((4, 6), torch.nan)}, NonFiniteError, "`x` must be finite, got 24 NaN"),
    ({"x": torch.full((4, 6), 1e30) * torch.eye(4, 6)}, NonFiniteError, "the covariance of `x` overflows"),
    ({"group_size": 4}, OptionError, "group_size must be a whole number that divides"),
    ({"eps": 0.0}, OptionError, "eps must be a finite number > 0"),
    ({"whitening": "cholesky"}, OptionError, 'whitening must be "zca" or "pca"'),
    ({"whitening": "pca", "solver": sg.NewtonSchulz()}, OptionError, "NewtonSchulz has no eigenvectors"),
    ({"weight": torch.ones(5)}, ShapeError, r"`weight` must have shape \(6,\), .* got \(5,\)"),
    ({"bias": [1.0] * 6}, DtypeError, "`bias` must be a real floating-point tensor or None, got list"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD, ids=[message[:20] for _, _, message in BAD])
def test_bad_input(options: dict[str, Any], error: type[Exception], message: str) -> None:
    options = copy.copy(options)
    x = options.pop("x", torch.eye(8, 6))
    with pytest.raises(error, match=f"^`whiten`: .*{message}"):
        whiten(x, **options)


def test_what_products_cannot_whiten_is_refused_in_the_name_of_who_was_called() -> None:
    x = torch.randn(2, 1, 3, 3).expand(-1, 4, -1, -1)  # four equal channels
    options = {"eps": 1e-12, "solver": sg.NewtonSchulz()}
    with pytest.raises(sg.errors.DefinitenessError, match=r"^`whiten`: Newton-Schulz needs"):
        whiten(x, **options)
    with pytest.raises(sg.errors.DefinitenessError, match=r"^`DecorrelatedBatchNorm2d`: Newton-Schulz needs"):
        DecorrelatedBatchNorm2d(4, **options)(x)


def test_an_eps_that_is_no_number_of_the_dtype_is_refused() -> None:
    with pytest.raises(OptionError, match=r"floor=1e-46 is no number of torch.float32"):
        whiten(images().float(), eps=1e-46)
    assert whiten(images(), eps=1e-46).isfinite().all()  # float64
