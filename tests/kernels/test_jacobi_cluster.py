"""The Jacobi kernel of a cluster of blocks, compiled for the CPU: accuracy, order of blocks, NaN, who takes it."""

import pytest
import torch
from torch import Tensor

from spectralgrad.kernels import jacobi, nvrtc
from spectralgrad.kernels.jacobi import Division
from support import cases
from support.families import SCALES, disagreements, families, faults
from support.on_cpu import SHARED_MEMORY, Kernel, on_cpu  # noqa: F401

pytestmark = pytest.mark.usefixtures("on_cpu")
REALS = [torch.float32, torch.float64]
MULTIPROCESSORS = 132  # of an H200
SMALL = [  # for matrices that an emulator can do: two to eight blocks, one and several warps, with and without idle threads
    (16, Division(1, 4, 2, 32)),
    (21, Division(2, 4, 2, 64)),
    (24, Division(1, 8, 4, 64)),
    (16, Division(1, 4, 8, 32)),
    (17, Division(4, 4, 2, 32)),
]
CHOSEN = [(least, largest, size, found) for size, (least, largest, found) in jacobi._CLUSTERS.items()]


def solve(M: Tensor, division: Division, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor, int]:
    """w, V and how many matrices were not finite."""
    monkeypatch.setattr(jacobi, "division", lambda *_: division)
    jacobi._kernel.cache_clear()
    counter = torch.zeros((), dtype=torch.int64)
    w, V = jacobi.eigh(M, counter)
    return w, V, int(counter)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", REALS, ids=cases.ident)
@pytest.mark.parametrize(("n", "division"), SMALL, ids=str)
def test_families_in_any_order_of_blocks(
    n: int, division: Division, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accurate, and the same bits whether the first or the last block of a cluster runs ahead, as far as barriers let it."""
    names, M = families(n, dtype, SCALES)
    w, V, broken = solve(M, division, monkeypatch)
    assert broken == 0
    assert faults(names, M, w, V) + disagreements(names, M, w, torch.linalg.eigvalsh(M.double())) == []
    monkeypatch.setattr(Kernel, "backwards", True)
    for x, y in zip((w, V), solve(M, division, monkeypatch)[:2], strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    ("n", "size", "division"),
    [pytest.param(least, size, found, marks=pytest.mark.slow) for least, _, size, found in CHOSEN],
    ids=str,
)
def test_what_the_table_has(n: int, size: int, division: Division, monkeypatch: pytest.MonkeyPatch) -> None:
    names, M = families(n, torch.float32 if size == 4 else torch.float64, ["plain"])
    w, V, _ = solve(M, division, monkeypatch)
    assert faults(names, M, w, V) == []


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_broken_matrix_spoils_no_other(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    M = cases.random_covariance(9, 4, dtype=torch.float32)
    clean = solve(M, Division(1, 4, 2, 32), monkeypatch)
    M[2, 3, 1] = value
    w, V, broken = solve(M, Division(1, 4, 2, 32), monkeypatch)
    assert broken == 1
    assert bool(w[2].isnan().all())
    assert bool(V[2].isnan().all())
    for i in (0, 1, 3):
        assert torch.equal(w[i], clean[0][i])
        assert torch.equal(V[i], clean[1][i])


def test_small_eigenvalues_relative_to_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = torch.logspace(0, -3, 16, dtype=torch.float64)
    M = (scale[:, None] * cases.random_covariance(16, 4) * scale).float()
    exact = torch.linalg.eigvalsh(M.double())
    assert float(((solve(M, Division(1, 4, 2, 32), monkeypatch)[0] - exact) / exact).abs().max()) < 1e-5


@pytest.mark.parametrize(("least", "largest", "size", "division"), CHOSEN, ids=str)
def test_layouts(least: int, largest: int, size: int, division: Division) -> None:
    """What the kernel asks of a layout: groups of whole players, a table for each group of lanes, whole warps, memory."""
    for n in range(least, largest + 1):
        layout = jacobi.shape(n, size, SHARED_MEMORY, division)
        tables = layout.N // (2 * layout.CLUSTER * layout.PLAYER)
        assert n <= layout.N < n + 2 * layout.CLUSTER * layout.PLAYER
        assert layout.N % (2 * layout.CLUSTER * layout.PLAYER) == layout.N % 4 == layout.TEAM % 32 == 0
        assert tables * layout.LANES <= layout.TEAM <= 1024
        assert 2 <= layout.CLUSTER <= 8  # more is not portable
        assert layout.MATRICES == 1
        assert not layout.IN_GLOBAL


def test_few_matrices_take_clusters() -> None:
    for n, size in ((65, 4), (128, 4), (65, 8), (128, 8)):
        found = jacobi.division(n, size, 1, MULTIPROCESSORS)
        assert found.CLUSTER > 1
        assert jacobi.division(n, size, MULTIPROCESSORS, MULTIPROCESSORS) == jacobi.division(n, size, 1)
        assert jacobi.division(n, size, 1).CLUSTER == 1
    assert jacobi.division(16, 4, 1, MULTIPROCESSORS).CLUSTER == 1


@pytest.mark.parametrize("obstacle", ["none", "start", "memory"])
def test_where_a_cluster_cannot_be_the_old_kernel_runs(obstacle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "for_clusters", lambda _: MULTIPROCESSORS)
    if obstacle == "memory":
        monkeypatch.setattr(nvrtc, "shared_memory", lambda _: 4 << 10)
    made: list[str] = []
    monkeypatch.setattr(nvrtc, "Kernel", lambda file, *_: made.append(file))
    jacobi._kernel.cache_clear()
    _, grid = jacobi._kernel(80, torch.float32, 0, 3, obstacle == "start")
    cluster = jacobi.division(80, 4, 3, MULTIPROCESSORS).CLUSTER
    assert (made, grid.blocks) == ((["jacobi_cluster.cu"], 3 * cluster) if obstacle == "none" else (["jacobi.cu"], 3))
    jacobi._kernel.cache_clear()
    jacobi._compiled.cache_clear()


@pytest.mark.parametrize(("major", "found"), [(8, 0), (9, 132), (12, 132)])
def test_clusters_need_hopper(major: int, found: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the emulator's own answer
    properties = type("Properties", (), {"major": major, "multi_processor_count": 132})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    nvrtc.for_clusters.cache_clear()
    assert nvrtc.for_clusters(0) == found
    nvrtc.for_clusters.cache_clear()
