"""One pass over the points, and one back: what plain torch makes of the same clouds."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.align import clouds, passes
from spectralgrad.align.moments import moments_at_once
from support import cases

EPS = cases.eps(torch.float64)
KINDS = ["plain", "weighted", "masked"]


@pytest.fixture(autouse=True, params=[1, 2], ids=["1 thread", "2 threads"])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def sample(kind: str, dtype: torch.dtype, *shape: int) -> list[Tensor]:
    x, y = (cases.random(*shape, seed=seed).to(dtype) + 3 for seed in range(2))
    if kind == "plain":
        return [x, y]
    w = cases.random(*shape[:-1], seed=2).abs().to(dtype)
    if kind == "masked":
        w[..., 1] = 0
        x[..., 1, :], y[..., 1, :] = torch.nan, torch.inf
    return [x, y, w]


def outputs_and_slopes(function, given: list[Tensor], leaves: list[int]) -> list[Tensor]:  # type: ignore[no-untyped-def]
    given = [z.detach().requires_grad_(i in leaves) for i, z in enumerate(given)]
    out = function(*given)
    cotangents = [cases.random(*z.shape, seed=5 + i).to(z.dtype) for i, z in enumerate(out)]
    return [*(z.detach() for z in out), *torch.autograd.grad(out, [given[i] for i in leaves], cotangents)]


def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clouds, "moments_at_once", lambda *_: None)


@pytest.mark.parametrize("function", [sg.kabsch, sg.umeyama])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=cases.ident)
def test_it_is_the_composition(dtype: torch.dtype, kind: str, function, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    limit = 1e-11 if dtype == torch.float64 else 2 * cases.eps(dtype)
    for shape in ((2, 3, 7, 3), (5, 60, 3), (3, 4, 1), (2, 30, 5)):  # small and large products
        given = sample(kind, dtype, *shape)
        assert moments_at_once(*(*given, None)[:3], torch.Size(shape[:-2]), cases.eps(dtype)) is not None
        monkeypatch.setattr(passes, "_CHUNK", 2 * shape[-2])
        for leaves in ([0], [1], list(range(len(given))), [len(given) - 1]):
            found = outputs_and_slopes(function, given, leaves)
            with monkeypatch.context() as context:
                plainly(context)
                wanted = outputs_and_slopes(function, given, leaves)
            for got, want in zip(found, wanted, strict=True):
                assert got.dtype == want.dtype
                torch.testing.assert_close(got, want, rtol=limit, atol=limit * float(want.abs().max()))


def test_points_stay_as_they_are() -> None:
    """Planes of float64 are copies, also where points already lie so in memory."""
    for x in (cases.random(4, 6, 1), cases.random(3, 4, 6).permute(1, 2, 0), cases.random(4, 6, 3)):
        given = [x, x.flip(1), torch.ones(x.shape[:-1], dtype=x.dtype)]
        given[2][0, 0] = 0
        before = [z.clone() for z in given]
        outputs_and_slopes(sg.umeyama, given, [0, 1, 2])
        assert all(map(torch.equal, given, before))


def test_batches_that_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [cases.random(6, 3), cases.random(4, 1, 6, 3, seed=1), cases.random(2, 6, seed=2).abs()]
    found = outputs_and_slopes(sg.umeyama, given, [0, 1, 2])
    plainly(monkeypatch)
    for got, want in zip(found, outputs_and_slopes(sg.umeyama, given, [0, 1, 2]), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


def test_what_asks_for_another_way() -> None:
    x, w, batch = cases.random(40, 5, 3), torch.ones(40, 5, dtype=torch.float64), torch.Size([40])
    assert moments_at_once(x, x, w, batch, EPS) is not None
    for size in (1e-60, 1e60, torch.nan, torch.inf):
        holed = x.clone()
        holed[7] *= size
        assert moments_at_once(x, holed, w, batch, EPS) is None
        assert moments_at_once(holed, x, None, batch, EPS) is None
    for bad in (torch.nan, torch.inf):
        holed = x.float()
        holed[7, 1, 1] = bad
        assert moments_at_once(x.float(), holed, None, batch, EPS) is None
    for bad in (-1.0, 0.0, torch.nan, torch.inf, 1e60, 1e-60):
        wrong = w.clone()
        wrong[7] = bad
        assert moments_at_once(x, x, wrong, batch, EPS) is None


def test_slopes_that_overflow_float32_become_the_largest_number() -> None:
    x, y = (1e-30 * cases.random(5, 4, 3, seed=seed).float() for seed in range(2))
    for slope in outputs_and_slopes(lambda *z: (1e30 * sg.kabsch(*z).R,), [x, y], [0, 1])[1:]:
        assert slope.isfinite().all()
        assert float(slope.abs().max()) == torch.finfo(torch.float32).max


def test_a_far_point_of_almost_no_weight_does_not_make_the_others_one() -> None:
    x = cases.random(4, 3).float()
    x[3] = 1e7
    w = torch.tensor([1.0, 1.0, 1.0, 1e-30])
    y = 2 * x
    y[3] = 0
    s = sg.umeyama(x, y, w).s
    torch.testing.assert_close(s, sg.umeyama(x[:3], y[:3]).s, rtol=1e-5, atol=0)


def test_a_light_point_beside_a_heavy_one_is_another_point() -> None:
    """Whatever the weights: here they differ by 1e7, and the points by some thousand roundings."""
    x = torch.tensor([[0.8045, 0.3305, -0.4223], [0.8050, 0.3303, -0.4225]])
    y = torch.tensor([[-4.2e-4, -1.3e-4, 7.3e-5], [5.0e-4, 1.5e-4, -8.6e-5]])
    w = torch.tensor([4.7e-11, 1.2e-4])
    R, _, s = sg.umeyama(x, y, w)
    torch.testing.assert_close(s * R @ (x[1] - x[0]), y[1] - y[0], rtol=1e-3, atol=0)
    assert float(s) > 1.5


def test_second_derivatives_that_overflow_float32_are_no_infinity() -> None:
    """Two contributions, each cut to the largest number, must not meet in float32."""
    x = torch.tensor([[0.0, 0, 0], [0.8, -0.8, 0.4]])
    y = torch.tensor([[0.0, 0, 0], [4e-24, -8e-25, 6e-24]])
    given = [z.requires_grad_() for z in (x, y, torch.tensor([1e-40, 9e-34]))]
    first = torch.autograd.grad([z.sum() for z in sg.kabsch(*given)], given, create_graph=True)
    assert all(z.isfinite().all() for z in torch.autograd.grad([z.sin().sum() for z in first], given))
