"""A device without float64, as mps is one: all is computed in the widest dtype that there is.

There is no such device here. Shapes are tried on meta, of which the predicate then says that it has no float64, and a mode
that sees every operation refuses one that makes such a tensor there. Values are tried on the CPU, told the same.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import spectralgrad as sg
from spectralgrad.diagnostics.spectrum import eigenvalues_of
from spectralgrad.linalg import precision
from spectralgrad.linalg.precision import has_float64, in_widest, matmul, widest
from support.catalogue import having

WIDE = (torch.float64, torch.complex128)


class NoFloat64(TorchDispatchMode):
    """Raises where an operation makes a tensor in float64 on a kind of device."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and x.device.type == self.kind and x.dtype in WIDE:
                raise TypeError(f"{func} makes {x.dtype} on {self.kind}")
        return result


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Takes float64 from a kind of device, as the library sees it."""

    def take(kind: str) -> None:
        monkeypatch.setattr(precision, "has_float64", lambda given, index: given != kind and has_float64(given, index))

    return take


# The predicate.


def test_mps_has_no_float64() -> None:
    kinds = ("cpu", "cuda", "mps", "meta", "privateuseone")
    assert [kind for kind in kinds if not has_float64(kind, 0)] == ["mps"]


@pytest.mark.parametrize("answer", [True, False])
def test_an_intel_gpu_is_asked(answer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda index: SimpleNamespace(has_fp64=answer, index=index))
    assert has_float64("xpu", 0) is answer


def test_the_widest_dtype_is_real_or_complex_as_what_it_is_for(without: Callable[[str], None]) -> None:
    half, whole = torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.complex64)
    assert (widest(half), widest(whole)) == (torch.float64, torch.complex128)
    without("cpu")
    assert (widest(half), widest(whole)) == (torch.float32, torch.complex64)
    assert in_widest(half).dtype == torch.float32


# Shapes.

ALL = having(but=("of scale", "once"))
M = torch.zeros(5, 4, 4, device="meta")
MAPS, CLOUD = torch.zeros(8, 4, 3, 3, device="meta"), torch.zeros(5, 7, 3, device="meta")


def layer(module: nn.Module) -> Callable[[Tensor], Tensor]:
    return module.to("meta").train()


LAYERS: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "spd batch norm": (layer(sg.nn.SPDBatchNorm(4)), M),
    "spd batch norm, cumulative": (layer(sg.nn.SPDBatchNorm(4, momentum=None)), M),
    "whitening": (layer(sg.nn.DecorrelatedBatchNorm2d(4)), MAPS),
    "whitening, all batches alike": (layer(sg.nn.DecorrelatedBatchNorm2d(4, momentum=None)), MAPS),
    "denoising": (layer(sg.nn.PCADenoise2d(4, rank=2)), MAPS),
    "pooling": (layer(sg.nn.CovariancePool2d(4, reduced=2)), MAPS),
    "spd layers": (layer(nn.Sequential(sg.nn.BiMap(4, 3), sg.nn.ReEig(), sg.nn.LogEig())), M),
    "spectral_norm": (lambda x: sg.orthogonal.spectral_norm(nn.Linear(4, 3, device="meta"))(x), M),
    "orthogonal_weight": (lambda x: sg.orthogonal.orthogonal_weight(nn.Linear(4, 3, device="meta"))(x), M),
}


FUNCTIONS = {
    name: (case, case.input(*() if "whole" in case.tags else (5,)).float().to("meta")) for name, case in ALL.items()
}


@pytest.mark.parametrize(("call", "given"), (FUNCTIONS | LAYERS).values(), ids=FUNCTIONS | LAYERS)
def test_nothing_asks_a_device_for_what_it_has_not(
    call: Callable[..., Any], given: Tensor, without: Callable[[str], None]
) -> None:
    """In the value and its first two derivatives."""
    without("meta")
    x = given.clone().requires_grad_()
    with NoFloat64("meta"):
        result = call(x)
        (first,) = torch.autograd.grad(result.square().sum(), x, create_graph=True)
        if first.requires_grad:
            torch.autograd.grad(first.square().sum(), x)
    assert result.dtype == torch.float32


def test_fusing_asks_for_no_more_either(without: Callable[[str], None]) -> None:
    without("meta")
    model = nn.Sequential(nn.Conv2d(4, 4, 1), sg.nn.DecorrelatedBatchNorm2d(4)).to("meta")
    with NoFloat64("meta"):
        fused = sg.nn.fuse(model.eval())
        assert fused(MAPS).shape == MAPS.shape


def test_float64_would_be_seen() -> None:
    """The control: the same on a device that has it."""
    with NoFloat64("meta"), pytest.raises(TypeError, match=r"makes torch\.float64 on meta"):
        sg.kabsch(CLOUD, CLOUD)


@pytest.mark.parametrize(
    "pooled", [sg.nn.functional.covariance_pool, lambda x, **o: sg.nn.functional.whiten_color(x, x, **o)]
)
def test_what_cannot_do_without_says_so(pooled: Callable[..., Tensor], without: Callable[[str], None]) -> None:
    without("meta")
    with pytest.raises(sg.errors.DtypeError, match=r"in float64, which meta has not\. Use another solver"):
        pooled(MAPS, solver=sg.NewtonSchulz())
    pooled(MAPS, solver=sg.NewtonSchulz(steps=5))


# Values.


VALUES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kabsch": lambda x, y: sg.kabsch(x, y).R,
    "kabsch, translation": lambda x, y: sg.kabsch(x, y, y[..., 0].square() + 1).t,
    "umeyama": lambda x, y: sg.umeyama(x, y).s,
    "frechet_distance_of": sg.frechet_distance_of,
    "frechet_distance_of, singular": lambda x, y: sg.frechet_distance_of(x.repeat(1, 1, 2), y.repeat(1, 1, 2)),
    "frechet_distance": lambda x, y: sg.frechet_distance(x.mean(-2), x.mT @ x, y.mean(-2), y.mT @ y),
    "cca_loss": lambda x, y: sg.cca_loss(x, y),
    "spectral_map": lambda x, y: sg.spectral_map(x.mT @ y + y.mT @ x, torch.asinh),
    "powm": lambda x, y: sg.powm(x.mT @ x + y.mT @ y, -0.3),
}


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
@pytest.mark.parametrize("call", VALUES.values(), ids=VALUES)
def test_float32_alone_gives_the_same_to_its_digits(
    call: Callable[[Tensor, Tensor], Tensor], scale: float, without: Callable[[str], None]
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (scale * torch.randn(20, 30, 3, generator=generator) for _ in range(2))
    G = torch.randn(call(x, y).shape, generator=generator)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return (call(x, y) * G.to(x.dtype)).sum()

    expected = call(x.double(), y.double())
    slopes = torch.func.grad(loss)(x.double(), y.double())
    without("cpu")
    found = call(x, y)
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
    assert (torch.func.grad(loss)(x, y) - slopes).abs().max() < 1e-3 * slopes.abs().max()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_views_have_a_gradient_everywhere(dtype: torch.dtype, without: Callable[[str], None]) -> None:
    x, y = (torch.randn(9, 3, dtype=dtype, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    expected = torch.func.grad(lambda x: sg.cca_loss(x, y))(x)
    without("cpu")
    if dtype == torch.complex64:
        found = torch.func.grad(lambda x: sg.cca_loss(x, y))(x)
        assert (found - expected).abs().max() < 1e-3 * expected.abs().max()


def test_a_watched_layer_says_the_same(without: Callable[[str], None]) -> None:
    images = torch.randn(16, 4, 3, 3, generator=torch.Generator().manual_seed(0))

    def condition(where: str) -> float:
        whitening = sg.nn.DecorrelatedBatchNorm2d(4)
        with sg.diagnostics.ConditionMonitor(whitening, decompose_on=where) as monitor:
            whitening(images)
            (record,) = monitor.step()
        return float(record["condition"])

    expected = condition("cpu")
    without("cpu")
    assert eigenvalues_of(torch.eye(3)).dtype == torch.float32
    for where in ("cpu", "device"):
        assert abs(condition(where) - expected) < 1e-4 * expected


def test_products_under_autocast_keep_their_digits(without: Callable[[str], None]) -> None:
    """Where there is no float64 to flee to, autocast is left for the product."""
    without("cpu")
    a = torch.randn(40, 40, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
        found = matmul(a, a)
    assert found.dtype == torch.float32
    assert (found - a.double() @ a.double()).abs().max() < 1e-4


# Another default device, as after torch.set_default_device("cuda"): what is made for an input must lie where that does.


def wide(x: Tensor) -> Tensor:
    """(20, 30, 3) as maps (20, 3, 30, 160), which go block by block."""
    return x.mT.unsqueeze(-1).expand(-1, -1, -1, 160)


def converted(x: Tensor, y: Tensor) -> Tensor:
    """By the checkpoint of a batch norm that is older than num_batches_tracked."""
    norm = nn.BatchNorm1d(3, device="cpu", dtype=x.dtype)
    state = {name: value for name, value in norm.state_dict().items() if name != "num_batches_tracked"}
    layer = sg.nn.convert_batchnorm(norm)
    layer.load_state_dict(state)
    return layer((x + y).mT)


def fused(x: Tensor, y: Tensor) -> Tensor:
    torch.manual_seed(0)
    conv = nn.Conv1d(30, 60, 1, groups=30, device="cpu", dtype=x.dtype)
    whitening = sg.nn.DecorrelatedBatchNorm1d(60, group_size=4, device="cpu", dtype=x.dtype)
    return sg.nn.fuse(nn.Sequential(conv, whitening).eval())(x + y)


ELSEWHERE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **VALUES,
    "kabsch, many": lambda x, y: sg.kabsch(x.repeat(100, 1, 1), y.repeat(100, 1, 1)).t,
    "expm": lambda x, y: sg.expm(0.1 * (x.mT @ y + y.mT @ x)),
    "polar": lambda x, y: sg.polar(x.mT @ y),
    "whiten": lambda x, y: sg.nn.functional.whiten(wide(x + y)),
    "whitening": lambda x, y: sg.nn.DecorrelatedBatchNorm2d(3, device="cpu", dtype=x.dtype)(wide(x + y)),
    "denoising": lambda x, y: sg.nn.PCADenoise2d(3, rank=2, device="cpu", dtype=x.dtype).eval()(wide(x + y)),
    "converted": converted,
    "fused": fused,
}


@pytest.mark.parametrize("name", ["kabsch", "whiten"])
def test_a_negative_view_lies_somewhere_too(name: str) -> None:
    """Some of torch's ways to make a tensor where another lies cannot tell where a view with a pending sign does."""
    x, y = torch.randn(2, 20, 30, 3, dtype=torch.complex128, generator=torch.Generator().manual_seed(0)).conj().imag
    assert x.is_neg()
    torch.testing.assert_close(ELSEWHERE[name](x, y), ELSEWHERE[name](x.resolve_neg(), y.resolve_neg()))


@pytest.mark.parametrize("call", ELSEWHERE.values(), ids=ELSEWHERE)
def test_the_default_device_does_not_matter(call: Callable[[Tensor, Tensor], Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(20, 30, 3, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(2))
    value = call(x, y)
    expected = value, *torch.autograd.grad(value.sin().sum(), (x, y))
    with torch.device("meta"):
        value = call(x, y)
        found = value, *torch.autograd.grad(value.sin().sum(), (x, y))
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)
