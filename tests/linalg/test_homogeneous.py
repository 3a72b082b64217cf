"""Scale at the door: a map that plain torch can take near scale 1 only is right at every scale, in each derivative."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from spectralgrad.linalg.homogeneous import Scales, homogeneous
from support import cases
from support.extremes import times

FAR = [(1000, -500), (-1000, 500), (600, 0), (-600, 0), (0, 0)]  # log2 of the sizes of A and B
ONE = torch.tensor(1.0, dtype=torch.float64)

Map = Callable[..., tuple[Tensor, ...]]


def plain(A: Tensor, B: Tensor, far: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
    """|A|^(1/2) |B| and log |A| |B|; their squares leave the range, and so does what the derivatives divide by."""
    a, b = (x.square().sum((-2, -1)) for x in (A, B))
    return a.sqrt().sqrt() * b.sqrt(), (a.log() + b.log()) / 2 + far * torch.log(torch.full_like(a, 2.0))


def scales(a: Tensor, b: Tensor) -> Scales:
    half = torch.ceil(a / 2)
    return Scales((2 * half, b), (half + b, torch.zeros_like(b)), (2 * half + b,))


def ours(A: Tensor, B: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return homogeneous(plain, [(A, 2), (B, 2)], scales, **options)


def arguments(*batch: int, seed: int = 1) -> list[Tensor]:
    return [cases.random(*batch, 3, 2, seed=seed), cases.random(*batch, 2, 2, seed=seed + 1)]


def at(sizes: tuple[float, float], given: list[Tensor]) -> list[Tensor]:
    return [times(x, k) for x, k in zip(given, sizes, strict=True)]


def leaves(given: list[Tensor]) -> list[Tensor]:
    return [x.detach().clone().requires_grad_() for x in given]


def close(got: Tensor, want: Tensor, k: float) -> None:
    """got is want 2^k."""
    torch.testing.assert_close(times(got, -k), want, rtol=1e-12, atol=1e-14)


# Each of these: of outputs i at ``given``, for a cotangent or along directions.


def once(f: Map, given: list[Tensor], i: int, cotangent: Tensor) -> tuple[Tensor, ...]:
    given = leaves(given)
    return torch.autograd.grad(f(*given)[i], given, cotangent)


def by_func(f: Map, given: list[Tensor], i: int, cotangent: Tensor) -> tuple[Tensor, ...]:
    return torch.func.vjp(lambda *x: f(*x)[i], *given)[1](cotangent)


def by_vmap(f: Map, given: list[Tensor], i: int, cotangent: Tensor) -> tuple[Tensor, ...]:
    found = torch.vmap(lambda *x: by_func(f, list(x[:2]), i, x[2]))(*(x[None] for x in given), cotangent[None])
    return tuple(g[0] for g in found)


def batched(f: Map, given: list[Tensor], i: int, cotangent: Tensor) -> tuple[Tensor, ...]:
    given = leaves(given)
    found = torch.autograd.grad(f(*given)[i], given, cotangent[None], is_grads_batched=True)
    return tuple(g[0] for g in found)


def twice(f: Map, given: list[Tensor], along: list[Tensor]) -> tuple[Tensor, ...]:
    given = leaves(given)
    first = torch.autograd.grad(f(*given)[0], given, create_graph=True)
    return torch.autograd.grad(first, given, along)


def twice_by_func(f: Map, given: list[Tensor], along: list[Tensor]) -> tuple[Tensor, ...]:
    gradient = torch.func.grad(lambda *x: f(*x)[0], argnums=(0, 1))
    return torch.func.vjp(gradient, *given)[1](tuple(along))


def forward_over_reverse(f: Map, given: list[Tensor], along: list[Tensor]) -> tuple[Tensor, ...]:
    gradient = torch.func.grad(lambda *x: f(*x)[0], argnums=(0, 1))
    return torch.func.jvp(gradient, tuple(given), tuple(along))[1]  # type: ignore[no-any-return]


def forward(f: Map, given: list[Tensor], along: list[Tensor]) -> Tensor:
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, t) for x, t in zip(given, along, strict=True)]
        return forward_ad.unpack_dual(f(*duals)[0]).tangent


@pytest.mark.parametrize("sizes", FAR)
def test_values(sizes: tuple[float, float]) -> None:
    a, b = sizes
    size, log = ours(*at(sizes, arguments()))
    want = plain(*arguments())
    close(size, want[0], a / 2 + b)
    torch.testing.assert_close(log, want[1] + (a + b) * torch.log(2 * ONE), rtol=1e-14, atol=0)


@pytest.mark.parametrize("cotangent", [-900, 0, 900])
@pytest.mark.parametrize("pull", [once, by_func, by_vmap, batched])
@pytest.mark.parametrize("sizes", FAR)
def test_first_derivatives(sizes: tuple[float, float], pull: Callable[..., Any], cotangent: int) -> None:
    if pull is batched and cotangent:
        pytest.skip("a batched cotangent cannot be looked at")
    for i, size in ((0, sizes[0] / 2 + sizes[1]), (1, 0)):
        found = pull(ours, at(sizes, arguments()), i, times(ONE, cotangent))
        for got, want, own in zip(found, once(plain, arguments(), i, ONE), sizes, strict=True):
            scale = cotangent + size - own
            assert got.isfinite().all()
            if -950 < scale < 1015:  # else it is cut
                close(got, want, scale)


@pytest.mark.parametrize("again", [twice, twice_by_func, forward_over_reverse])
@pytest.mark.parametrize("sizes", FAR)
def test_second_derivatives(sizes: tuple[float, float], again: Callable[..., Any]) -> None:
    """Along directions of the size of A and B, so that they are of the size of the first ones."""
    along = arguments(seed=5)
    found = again(ours, at(sizes, arguments()), at(sizes, along))
    for got, want, own in zip(found, twice(plain, arguments(), along), sizes, strict=True):
        close(got, want, sizes[0] / 2 + sizes[1] - own)


@pytest.mark.parametrize("sizes", FAR)
def test_tangents(sizes: tuple[float, float]) -> None:
    along = arguments(seed=5)
    want = torch.func.jvp(lambda *x: plain(*x)[0], tuple(arguments()), tuple(along))[1]
    close(forward(ours, at(sizes, arguments()), at(sizes, along)), want, sizes[0] / 2 + sizes[1])


def test_what_plain_torch_gives_is_wrong() -> None:
    """The measure can fail."""
    far = at((1000, -500), arguments())
    assert not plain(*far)[0].isfinite()
    assert not all(g.isfinite().all() and g.any() for g in once(plain, far, 0, ONE))


def test_what_vmap_returns_holds_no_graph() -> None:
    far = [x[None] for x in at((1000, -500), arguments())]
    found = torch.vmap(torch.func.grad(lambda *x: ours(*x)[0], argnums=(0, 1)))(*far)
    assert not any(g.requires_grad for g in found)


def test_gradcheck_of_batches_that_broadcast() -> None:
    A, B = leaves([cases.random(2, 1, 3, 2, seed=1), cases.random(3, 2, 2, seed=2)])
    assert gradcheck(ours, (A, B), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(ours, (A, B))
    ones = torch.ones(2, 3, dtype=torch.float64)
    want = once(ours, [A, B], 1, ones)
    for size, cotangent in ((700, 0), (0, 900)):  # B is far, or the cotangent alone
        found = once(ours, [A, times(B.detach(), size)], 1, times(ones, cotangent))
        for got, w, own in zip(found, want, (0, size), strict=True):
            close(got, w, cotangent - own)


def test_an_output_without_a_cotangent_does_not_drown_the_other() -> None:
    given = leaves(at((1000, 500), arguments()))
    y = ours(*given)
    found = torch.autograd.grad(y, given, (torch.zeros_like(y[0]), times(ONE, -100)))
    for got, want, own in zip(found, once(plain, arguments(), 1, ONE), (1000, 500), strict=True):
        if own == 500:  # 2^-1100 is no number
            close(got, want, -100 - own)


@pytest.mark.parametrize("cotangent", [1.0, 1e200])
def test_a_far_member_of_a_batch_changes_no_bit_of_the_others(cotangent: float) -> None:
    given, far = arguments(3), times(ONE, 500)
    other = [torch.stack([x[0], far * x[1], x[2]]) for x in given]
    cotangents = torch.tensor([1.0, cotangent, -2.0], dtype=torch.float64)
    for i in range(2):
        assert torch.equal(ours(*given)[i][::2], ours(*other)[i][::2])
        for pull in (once, by_func):
            alone, together = (pull(ours, x, i, c) for x, c in ((given, cotangents.clamp(max=1)), (other, cotangents)))
            assert all(torch.equal(x[::2], y[::2]) for x, y in zip(alone, together, strict=True))


def test_a_gradient_beyond_the_range_keeps_its_direction() -> None:
    want = once(plain, arguments(), 0, ONE)
    for sizes, cotangent in (((0, 0), 1023), ((-1000, 0), 700)):
        got = once(ours, at(sizes, arguments()), 0, times(ONE, cotangent))[0]
        assert got.isfinite().all()
        assert float(got.abs().max()) > 1e300
        torch.testing.assert_close(got / got.abs().max(), want[0] / want[0].abs().max(), rtol=1e-12, atol=0)


def test_ordinary_inputs_see_plain_autograd() -> None:
    seen: list[bool] = []

    def looked(*x: Tensor) -> tuple[Tensor, ...]:
        seen.append(all(each.requires_grad for each in x[:2]))
        return plain(*x)

    given = leaves(arguments())
    run = partial(homogeneous, looked, [(x, 2) for x in given], scales)
    torch.autograd.grad(run()[0], given)
    assert seen == [True]
    torch.autograd.grad(run()[0], given, times(ONE, 900))
    assert len(seen) == 3  # once more, at scale 1
    torch.autograd.grad(run(watched=False)[0], given, times(ONE, 900))
    assert len(seen) == 4
    seen.clear()
    run(bits=0)
    assert seen == [False]
    run(bits=0, known=True)
    assert seen == [False, True]


def test_others_have_gradients_and_no_scale() -> None:
    def powered(A: Tensor, t: Tensor, k: Tensor | None = None, whole: Tensor | None = None) -> tuple[Tensor]:
        """|A|^t, with A / 2^k, divided by 2^whole."""
        log = A.square().sum((-2, -1)).sqrt().log2() * t
        return (torch.exp2(log if k is None else log + (t * k - whole)),)

    def scales(t: Tensor, k: Tensor) -> Scales:
        whole = (t.detach() * k).round()
        return Scales((k,), (whole,), (k, whole))

    A, t = times(arguments()[0], 900).requires_grad_(), torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    (y,) = homogeneous(powered, [(A, 2)], partial(scales, t), others=(t,))
    size = torch.linalg.matrix_norm(arguments()[0])
    close(y.detach(), size.sqrt(), 450)
    gA, gt = torch.autograd.grad(y, (A, t))
    close(gA, arguments()[0] / size**1.5 / 2, -450)
    close(gt, size.sqrt() * (size.log() + 900 * torch.log(2 * ONE)), 450)


@pytest.mark.parametrize("sizes", FAR)
def test_compiled(sizes: tuple[float, float]) -> None:
    """Values at every scale, and gradients of cotangents near 1: powers of two stand before and after f."""
    f = torch.compile(ours, fullgraph=True, backend="aot_eager")
    given = leaves(at(sizes, arguments()))
    size, want = sizes[0] / 2 + sizes[1], plain(*arguments())
    y = f(*given)
    close(y[0].detach(), want[0], size)
    for got, w, own in zip(torch.autograd.grad(y[0], given), once(plain, arguments(), 0, ONE), sizes, strict=True):
        close(got, w, size - own)


def test_compiled_it_loses_what_leaves_the_range_on_its_way() -> None:
    """The cotangent meets 2^q before f does, and is cut there: shorter, and of the right direction."""
    f = torch.compile(ours, fullgraph=True, backend="aot_eager")
    given = leaves(at((1000, 0), arguments()))
    want = once(plain, arguments(), 0, ONE)[0]
    (got,) = torch.autograd.grad(f(*given)[0], given[:1], times(ONE, 800))
    torch.testing.assert_close(got / got.abs().max(), want / want.abs().max(), rtol=1e-12, atol=0)
    assert float(got.abs().max()) < float(times(want.abs().max(), 300)) / 2**200
