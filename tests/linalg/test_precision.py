"""Full working precision whatever the global flags say, and no flag touched."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.linalg.precision import hermitian_part, is_reduced, matmul, sandwich
from support import cases
from support.catalogue import definite, having
from support.precision import matmul_precision

FLOAT32 = cases.eps(torch.float32)


def flags() -> tuple[Any, ...]:
    """Everything in torch that decides how float32 products are taken."""
    backends = torch.backends
    owners = (backends, backends.mkldnn, backends.mkldnn.matmul, backends.cuda.matmul, backends.cudnn)
    return (
        *(getattr(owner, "fp32_precision", None) for owner in owners),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
    )


@contextmanager
def restored(*owners: Any) -> Iterator[None]:
    before = [owner.fp32_precision for owner in owners]
    try:
        yield
    finally:
        for owner, value in zip(owners, before, strict=True):
            owner.fp32_precision = value


@contextmanager
def fp32_precision(owner: Any, value: str) -> Iterator[None]:
    with restored(owner):
        owner.fp32_precision = value
        yield


Context = Callable[[], AbstractContextManager[Any]]
REDUCED: dict[str, Context] = {
    "autocast": partial(torch.autocast, "cpu", dtype=torch.bfloat16),
    "autocast fp16": partial(torch.autocast, "cpu", dtype=torch.float16),
    "high": partial(matmul_precision, "high"),
    "medium": partial(matmul_precision, "medium"),
    "mkldnn.matmul bf16": partial(fp32_precision, torch.backends.mkldnn.matmul, "bf16"),
    "mkldnn bf16": partial(fp32_precision, torch.backends.mkldnn, "bf16"),
    "global tf32": partial(fp32_precision, torch.backends, "tf32"),
}
each_flag = pytest.mark.parametrize("reduced", REDUCED.values(), ids=REDUCED)


@pytest.fixture(autouse=True)
def no_flag_is_left_changed() -> Iterator[None]:
    before = flags()
    yield
    assert flags() == before


@each_flag
def test_reduced_precision_is_seen(reduced: Context) -> None:
    assert not is_reduced("cpu")
    with reduced():
        assert is_reduced("cpu")
    assert not is_reduced("cpu")


@each_flag
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=cases.ident)
def test_products(dtype: torch.dtype, reduced: Context) -> None:
    a, b = cases.random(3, 40, 50, dtype=dtype), cases.random(50, 30, dtype=dtype, seed=1)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    want = torch.matmul(a.to(wide), b.to(wide))
    with reduced():
        inside = flags()
        got = matmul(a, b)
        assert flags() == inside
    assert got.dtype == dtype
    assert cases.relative_error(got, want) <= 10 * cases.eps(dtype)
    assert cases.relative_error(got, matmul(a, b)) <= 10 * cases.eps(dtype)


@each_flag
def test_gradients_of_products(reduced: Context) -> None:
    a, b = cases.random(8, 40, dtype=torch.float32), cases.random(40, 8, dtype=torch.float32, seed=1)
    weight = cases.random(8, 8, dtype=torch.float32, seed=2)
    want = weight.double() @ b.double().mT
    with reduced():
        leaf = a.clone().requires_grad_()
        (got,) = torch.autograd.grad(matmul(leaf, b), leaf, weight)
    assert got.dtype == torch.float32
    assert cases.relative_error(got, want) <= 10 * FLOAT32


def test_a_plain_product_is_not_enough() -> None:
    a = cases.random(40, 40, dtype=torch.float32)
    with REDUCED["autocast"]():
        plain, ours = a @ a, matmul(a, a)
    assert plain.dtype == torch.bfloat16
    assert cases.relative_error(plain, a.double() @ a.double()) > 1e-3
    assert cases.relative_error(ours, a.double() @ a.double()) < 1e-6


def test_sandwich_and_hermitian_part() -> None:
    a, m = (cases.random(4, 4, dtype=torch.complex64, seed=i) for i in range(2))
    torch.testing.assert_close(sandwich(a, m), a @ m @ a.mH)
    torch.testing.assert_close(hermitian_part(m), (m + m.mH) / 2)
    huge = torch.full((2, 2), torch.finfo(torch.float32).max)
    assert torch.equal(hermitian_part(huge), huge)  # where a sum would overflow


FUNCTIONS = {
    **{
        name: case.call
        for name, case in having(but=("of scale", "real")).items()
        if case.input is definite and not case.others(definite())
    },
    "eigh(PowerIteration)": partial(sg.eigh, gradient=sg.PowerIteration(9)),
    "sqrtm(Lorentzian)": partial(sg.sqrtm, gradient=sg.Lorentzian()),
}


def evaluate(function: Callable[[Tensor], Any], M: Tensor, backward_inside: bool, reduced: Context) -> list[Tensor]:
    """Outputs, gradient and the gradient of a gradient; backward inside the context or after it."""
    M = M.clone().requires_grad_()
    outside = partial(torch.autocast, "cpu", enabled=False)
    with reduced():
        before = flags()
        out = function(M)
        out = out if isinstance(out, tuple) else (out,)
        assert flags() == before
    weights = [cases.random(*x.shape, dtype=torch.float32, seed=i) for i, x in enumerate(out)]
    with reduced() if backward_inside else outside():
        before = flags()
        (first,) = torch.autograd.grad(out, M, weights, create_graph=True)
        (second,) = torch.autograd.grad(first, M, cases.random(*M.shape, dtype=torch.float32, seed=9))
        assert flags() == before
    return [*(x.detach() for x in out), first.detach(), second]


@pytest.mark.parametrize("backward_inside", [False, True], ids=["after", "inside"])
@pytest.mark.parametrize("reduced", [REDUCED["autocast"], REDUCED["medium"]], ids=["autocast", "medium"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, reduced: Context, backward_inside: bool) -> None:
    M = cases.with_spectrum(torch.tensor([0.5, 1.0, 1.7, 2.5, 4.0], dtype=torch.float64), dtype=torch.float32)
    off = partial(torch.autocast, "cpu", enabled=False)
    want = evaluate(FUNCTIONS[name], M, True, off)
    got = evaluate(FUNCTIONS[name], M, backward_inside, reduced)
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        assert x.dtype == y.dtype == torch.float32
        assert cases.relative_error(x, y) <= 50 * FLOAT32, i  # 6e-6; one product in bf16 would cost 4e-3


def test_a_naive_square_root_is_not_enough() -> None:
    """The control: the same by torch's own eigenvectors and products."""
    M = cases.random_covariance(5, dtype=torch.float32)

    def naive(M: Tensor) -> Tensor:
        w, V = torch.linalg.eigh(M)
        return (V * w.sqrt().unsqueeze(-2)) @ V.mT

    with REDUCED["autocast"]():
        got = naive(M)
    assert cases.relative_error(got, naive(M.double())) > 1000 * FLOAT32


def test_compiled_code_follows_the_flags() -> None:
    """A function compiled with all flags off is right when called again under autocast or with other flags."""
    compiled = torch.compile(lambda M: sg.sqrtm(M), fullgraph=True, backend="aot_eager")
    M = cases.random_covariance(6, dtype=torch.float32)
    want = sg.sqrtm(M.double())
    assert cases.relative_error(compiled(M), want) <= 20 * FLOAT32
    for name in ("autocast", "medium"):
        with REDUCED[name]():
            got = compiled(M)
        assert got.dtype == torch.float32
        assert cases.relative_error(got, want) <= 20 * FLOAT32
