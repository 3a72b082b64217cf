"""Every CUDA C++ kernel under the emulator, with each access to memory looked at: no two threads meet at one place, one of
them writing, without a barrier between, and none goes beyond the memory that it was given."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from spectralgrad.kernels import clouds, eigenpairs, jacobi, nvrtc, polar, power, scale, small_svd, spectral, svd, syev
from spectralgrad.kernels.clouds import Clouds, Slopes
from spectralgrad.kernels.eigenpairs import Coefficients, Cotangents
from spectralgrad.kernels.small_svd import Polar
from spectralgrad.kernels.spectral import ScalarFunction
from support import cases
from support.on_cpu import Kernel, on_cpu  # noqa: F401
from support.on_cpu import addresses as on_cpu_addresses

pytestmark = pytest.mark.usefixtures("on_cpu")


@pytest.fixture(autouse=True, params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["forwards", "backwards"])
def _watched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kernel, "watched", True)
    monkeypatch.setattr(Kernel, "backwards", request.param)


def count() -> Tensor:
    return torch.zeros((), dtype=torch.int64)


def random(*shape: int, seed: int = 0) -> Tensor:
    return cases.random(*shape, seed=seed).float()


def pairs(batch: int, n: int) -> tuple[Tensor, Tensor]:
    M = random(batch, n, n)
    w, V = torch.linalg.eigh(M @ M.mT + torch.eye(n))
    return w, V.contiguous()


def of_spectral(n: int) -> None:
    (w, V), root = pairs(2, n), ScalarFunction("INVERSE_SQRT", "TO_ROUNDING")
    spectral.value(V, w, root, None, count())[0]
    spectral.derivative(V, w, root, None, random(2, n, n))


def of_eigenpairs(n: int) -> None:
    of = Cotangents(random(2, n), random(2, n, n, seed=1))
    eigenpairs.pullback(pairs(2, n), of, Coefficients("EXACT"), None, True, eigenpairs.Rounding(1e3, 2.0))


def of_polar(n: int) -> None:
    Q, V = (torch.linalg.qr(random(2, n, n, seed=seed))[0].contiguous() for seed in (1, 2))
    Q[0, 0] *= -torch.linalg.det(Q)[0]  # a mirror image for certain
    of = Polar(Q, torch.arange(n, 0.0, -1).repeat(2, 1), V)
    polar.turn(of)
    polar.derivative(of, random(2, n, n), 1e-7)


def of_jacobi(n: int, batch: int = 1, warm: bool = False) -> None:
    M = random(batch, n, n)
    jacobi.eigh(M + M.mT, count(), pairs(batch, n)[1] if warm else None)


def of_small_svd(n: int) -> None:
    A = random(2, n, n)
    svd.svd(A, count())
    of = small_svd.polar(A, True, 1e-7, count(), count())
    small_svd.derivative(of, A, 1e-7)
    small_svd.derivative(Polar(*(x[:1].expand_as(x) for x in of)), A, 1e-7)  # as vmap repeats them


def of_clouds(points: int) -> None:
    given = Clouds(random(3, points, 3), random(3, points, 3, seed=1), random(3, points, seed=2).abs())
    found = clouds.align(given, True, True, clouds.Rounding(1e-6, 1e-12, 1e-6), count(), count())
    assert found.kept is not None
    clouds.spread(given, found.kept, Slopes(found.R, found.t, found.s), (True, True, True), True, 1e-6)


def of_power(n: int) -> None:
    w, V = pairs(2, n)
    M = (V * w.unsqueeze(-2)) @ V.mT
    power.quotients(M, V, True)
    power.pullback(w, V, torch.ones(2, n, dtype=torch.bool), w, V, 3, True)
    _, _, kept = power.iterate(M, random(2, n, n), 2, True)
    power.retrace(M, kept, w, V, 2)


def of_scale(n: int) -> None:
    scale.shifted(random(2, n, n), scale.exponent(random(2, n, n), 2))


def of_syev(n: int, dtype: torch.dtype = torch.complex64) -> None:
    """All but cuSOLVER itself."""
    M = cases.random(2, n, n, dtype=dtype)
    q, H, states = M.new_empty(2, n), torch.empty_like(M), torch.empty(2, 4, dtype=torch.int32)
    size, beta = nvrtc.c_int(n), nvrtc.c_float(syev._beta(n))
    w, failed = torch.zeros(2, n), torch.zeros(2, dtype=torch.int32)
    syev._compiled("look", dtype, 0).launch(0, 2, 1024, *on_cpu_addresses(M, states, q, count()), size, beta)
    blocks = -(-M.numel() // 256)
    syev._compiled("prepare", dtype, 0).launch(
        0, blocks, 256, *on_cpu_addresses(M, states, q, H), size, nvrtc.c_longlong(M.numel())
    )
    syev._compiled("finish", dtype, 0).launch(0, 2, 1024, *on_cpu_addresses(states, failed, w, H, count()), size, beta)


CALLS: dict[str, Callable[[], None]] = {
    "spectral": lambda: of_spectral(18),  # more threads than tiles
    "eigenpairs": lambda: of_eigenpairs(18),
    "polar": lambda: of_polar(18),
    "jacobi, several matrices a warp": lambda: of_jacobi(5, batch=3),
    "jacobi": lambda: of_jacobi(20),
    "jacobi, warm": lambda: of_jacobi(20, warm=True),
    "singular triplets": lambda: svd.svd(random(2, 12, 7), count()),
    "singular triplets by a triangle": lambda: svd.svd(random(1, 70, 12), count()),
    "small matrices": lambda: of_small_svd(3),
    "clouds": lambda: of_clouds(7),
    "large clouds": lambda: of_clouds(1030),
    "power": lambda: of_power(18),
    "scale": lambda: of_scale(9),
    "syev": lambda: of_syev(9),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_races(call: Callable[[], None]) -> None:
    call()


@pytest.mark.slow
def test_no_races_in_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "for_clusters", lambda _: 132)
    of_jacobi(66)
