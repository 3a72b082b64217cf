"""Clouds in one kernel there and one back, compiled for the CPU: against the plain composition, which tests/align holds
against mpmath, finite differences and roma."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.align import clouds as composition
from spectralgrad.align import motions
from spectralgrad.kernels import clouds
from support import cases
from support.on_cpu import on_cpu  # noqa: F401

pytestmark = pytest.mark.usefixtures("on_cpu")
BOTH: dict[str, Callable[..., tuple[Tensor, ...]]] = {"kabsch": sg.kabsch, "umeyama": sg.umeyama}
each = pytest.mark.parametrize("function", BOTH.values(), ids=BOTH)
LIMIT = 4 * cases.eps(torch.float32)


@pytest.fixture(autouse=True)
def _unchecked() -> object:
    sg.reset_counts()
    with sg.checks(False):  # as on CUDA
        yield
    sg.reset_counts()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that ran."""
    found: list[str] = []
    for name in ("align", "spread"):
        kernel = getattr(clouds, name)
        monkeypatch.setattr(clouds, name, lambda *args, name=name, kernel=kernel: found.append(name) or kernel(*args))
    return found


def sample(kind: str, *shape: int) -> list[Tensor]:
    x, y = (cases.random(*shape, seed=seed).float() + 3 for seed in range(2))
    if kind == "plain":
        return [x, y]
    w = cases.random(*shape[:-1], seed=2).abs().float()
    if kind == "masked":
        w[..., 1] = 0
        x[..., 1, :], y[..., 1, :] = torch.nan, torch.inf
    return [x, y, w]


def found_and_slopes(function: Callable[..., tuple[Tensor, ...]], given: list[Tensor], leaves: list[int]) -> list[Tensor]:
    given = [z.detach().requires_grad_(i in leaves) for i, z in enumerate(given)]
    out = function(*given)
    cotangents = [cases.random(*z.shape, seed=5 + i).to(z.dtype) for i, z in enumerate(out)]
    return [*(z.detach() for z in out), *torch.autograd.grad(out, [given[i] for i in leaves], cotangents)]


def plainly(function: Callable[..., tuple[Tensor, ...]], *args: object) -> list[Tensor]:
    """What the composition of torch operations finds."""
    with pytest.MonkeyPatch.context() as context:
        context.setattr(composition, "motion_at_once", lambda *_: None)
        return found_and_slopes(function, *args)  # type: ignore[arg-type]


def assert_same(found: list[Tensor], wanted: list[Tensor], limit: float = LIMIT) -> None:
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        size = float(want[want.isfinite()].abs().max()) if want.isfinite().any() else 0.0
        torch.testing.assert_close(got, want, rtol=limit, atol=limit * size, equal_nan=True)


@each
@pytest.mark.parametrize("kind", ["plain", "weighted", "masked"])
@pytest.mark.parametrize("shape", [(2, 3, 7, 3), (40, 5, 2), (3, 4, 1), (2, 30, 4), (3, 100, 3), (2, 1100, 3)], ids=str)
def test_it_is_the_composition(shape: tuple[int, ...], kind: str, function: Callable, launches: list[str]) -> None:
    given = sample(kind, *shape)
    for leaves in ([0], [1], list(range(len(given))), [len(given) - 1]):
        assert_same(found_and_slopes(function, given, leaves), plainly(function, given, leaves))
    assert launches == 4 * ["align", "spread"]


@each
def test_without_a_gradient_nothing_is_kept(function: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []
    align = clouds.align
    monkeypatch.setattr(clouds, "align", lambda *args: kept.append(args[2]) or align(*args))
    given = sample("weighted", 3, 5, 3)
    for got, want in zip(function(*given), plainly(function, given, [0]), strict=False):
        torch.testing.assert_close(got, want, rtol=LIMIT, atol=LIMIT)
    assert kept == [False]


@each
def test_memory_of_any_kind(function: Callable) -> None:
    """Batches that broadcast, points that lie transposed, masks, and slopes that are one number."""
    x, y = cases.random(6, 3).float(), cases.random(3, 4, 6, seed=1).float().permute(1, 2, 0)
    mask = torch.tensor([True, True, False, True, True, True])
    assert_same(found_and_slopes(function, [x, y, mask], [0, 1]), plainly(function, [x, y, mask], [0, 1]))
    x = x.clone().requires_grad_()
    (expanded,) = torch.autograd.grad(sum(z.sum() for z in function(x, y)), x)
    assert_same([expanded], [torch.autograd.grad([z.sum() for z in function(x, y)], x)[0]])
    w = cases.random(6, seed=2).abs().float().requires_grad_()
    (slope,) = torch.autograd.grad(function(x, y, w)[1].sum(), w)
    assert slope.shape == w.shape


@each
@pytest.mark.parametrize("scale", [1e-36, 1e-15, 1e15, 1e36])
def test_any_scale(scale: float, function: Callable) -> None:
    """What overflows float32 becomes its largest number, and nothing is NaN."""
    x, y = (scale * z - 3 * scale for z in sample("plain", 4, 9, 3))
    for pair in ([x, y], [x, y / scale], [x / scale, y]):
        found = found_and_slopes(function, pair, [0, 1])
        assert all(z.isfinite().all() for z in found)
        assert_same(found, plainly(function, pair, [0, 1]), 16 * LIMIT)


def shapes() -> dict[str, tuple[Tensor, Tensor]]:
    """Pairs of clouds whose rotation is not unique."""
    x = cases.random(5, 3).float()
    line = torch.outer(cases.random(5).float(), torch.tensor([1.0, 2.0, -1.0]))
    deep = torch.cat([torch.diag(torch.tensor([3.0, 1.0, 1.0])), -torch.diag(torch.tensor([3.0, 1.0, 1.0]))])
    return {
        "line": (line, line),
        "one point": (x[:1], x[:1]),
        "coinciding": (x[:1].expand(5, 3), x),
        "coinciding to rounding": (1 + 1.2e-7 * torch.eye(3).repeat(2, 1)[:5], x),
        "onto one": (x, x[:1].expand(5, 3)),
        "mirrored": (deep, deep * torch.tensor([1.0, 1.0, -1.0])),
    }


@each
@pytest.mark.parametrize("name", shapes())
def test_where_it_is_not_unique(name: str, function: Callable) -> None:
    given = list(shapes()[name])
    sg.reset_counts()
    found = found_and_slopes(function, given, [0, 1])
    assert sg.counts() == {"rotation_not_unique": 1}
    assert all(z.isfinite().all() for z in found)
    wanted = plainly(function, given, [0, 1])
    torch.testing.assert_close(torch.linalg.det(found[0]), torch.ones(()))
    x, y = given
    s = found[2] if function is sg.umeyama else 1.0
    t = wanted[2] if function is sg.umeyama else 1.0
    loss, least = ((a * x @ R[0].mT + R[1] - y).square().sum() for a, R in ((s, found), (t, wanted)))
    assert float(loss) <= float(least) * (1 + 1e-5) + 1e-10


@each
def test_bad_pairs_stay_alone(function: Callable) -> None:
    """NaN in a point, weights that cannot be used: NaN for that pair, counted, and nothing for the others."""
    x, y, w = sample("weighted", 6, 5, 3)
    x[0, 2, 1], y[1, 0, 0] = torch.nan, torch.inf
    w[2], w[3, 1], w[4, 4] = 0, -1, torch.nan
    sg.reset_counts()
    found = found_and_slopes(function, [x, y, w], [0, 1, 2])
    assert sg.counts() == {"nonfinite_input": 5}
    for z in found[:2]:
        assert z[:5].isnan().flatten(1).all()
    assert all(z[5].isfinite().all() for z in found)
    assert_same([z[5] for z in found], [z[5] for z in plainly(function, [x, y, w], [0, 1, 2])])


@each
def test_thin_clouds(function: Callable) -> None:
    """Against float64, an aspect of 1e-2: float32 arithmetic would leave three digits."""
    x = cases.random(8, 20, 3) * torch.tensor([1.0, 1.0, 1e-2], dtype=torch.float64)
    x, y = x.float(), (x @ torch.linalg.qr(cases.random(3, 3))[0] + 0.01 * cases.random(8, 20, 3, seed=3)).float()
    found, wanted = (found_and_slopes(function, [x.to(d), y.to(d)], [0, 1]) for d in (torch.float32, torch.float64))
    for got, want in zip(found, wanted, strict=True):
        assert float((got.double() - want).abs().max() / want.abs().max()) < 1e-6


@each
def test_second_derivatives_are_the_compositions(function: Callable) -> None:
    given = sample("weighted", 2, 5, 3)

    def slopes(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad([z.square().sum() for z in function(x, y, w)], (x, y, w), create_graph=True)

    leaves = [0, 1, 2]
    assert_same(found_and_slopes(slopes, given, leaves), plainly(slopes, given, leaves), 64 * LIMIT)


@each
def test_another_way(function: Callable, launches: list[str]) -> None:
    """float64, five coordinates, torch.func and value checks are the composition's."""
    x, y = sample("plain", 3, 6, 3)
    function(x.double(), y.double())
    function(*sample("plain", 3, 7, 5))
    torch.func.vmap(lambda a, b: function(a, b)[0])(x, y)
    with sg.checks(True):
        function(x, y)
    assert not launches
    function(x.bfloat16(), y.bfloat16())
    assert launches == ["align"]


def test_the_order_of_threads_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    from support.on_cpu import Kernel

    for shape in ((20, 5, 3), (2, 1100, 3)):
        given = sample("weighted", *shape)
        found = found_and_slopes(sg.umeyama, given, [0, 1, 2])
        with monkeypatch.context() as context:
            context.setattr(Kernel, "backwards", True)
            again = found_and_slopes(sg.umeyama, given, [0, 1, 2])
        assert all(map(torch.equal, found, again))


def test_clouds_of_two_devices_are_not_taken() -> None:
    x, y = torch.zeros(2, 4, 3), torch.zeros(2, 4, 3, device="meta")
    assert clouds.runs_on(x, x, None)
    assert not clouds.runs_on(x, y, None)
    assert not clouds.runs_on(x, x, y[..., 0])


def test_what_is_kept_fits() -> None:
    """The layout of `Kept` in clouds.cu, counted."""
    for d in range(1, 5):
        assert clouds._kept(d) == 2 * d + d * d + d * d + d + 5
    assert motions.NOT_UNIQUE == "rotation_not_unique"
