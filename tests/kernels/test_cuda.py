"""The CUDA C++ kernels on a GPU: what the emulator cannot show."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.kernels import jacobi, nvrtc, spectral, syev
from spectralgrad.linalg.elementary import Exp, InverseSqrt, Log, Power, Sqrt
from spectralgrad.linalg.precision import hermitian_part, in_basis, sandwich
from spectralgrad.linalg.scalars import Scalar
from support import cases
from support.families import SCALES, disagreements, families, faults
from support.gpu import captured, no_host_wait

Note = Callable[[str, object], None]

pytestmark = pytest.mark.cuda
REALS = [torch.float32, torch.float64]
SCALARS: list[Scalar] = [Sqrt(), InverseSqrt(), Log(), Exp(), Power(alpha=0.3), Power(alpha=-1.7), InverseSqrt(1.2)]


def solve(M: Tensor, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
    counter = torch.zeros((), dtype=torch.int64, device="cuda")
    return jacobi.eigh(M.cuda(), counter, None if start is None else start.cuda())


@pytest.mark.parametrize("dtype", REALS, ids=cases.ident)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13, 16, 24, 31, 64, 100, 128, 130, 232, 256, 300])
def test_families(n: int, dtype: torch.dtype) -> None:
    """Shared memory up to n = 232 in single precision, the cache beyond; the same bits in two runs."""
    names, M = families(n, dtype, SCALES)
    w, V = solve(M)
    again = solve(M)
    assert torch.equal(w, again[0])
    assert torch.equal(V, again[1])
    w, V = w.cpu(), V.cpu()
    assert faults(names, M, w, V) + disagreements(names, M, w, torch.linalg.eigvalsh(M.double())) == []


@pytest.mark.parametrize("n", [3, 16, 23, 32])
def test_thousands(n: int) -> None:
    M = cases.random_covariance(n, 4096, dtype=torch.float32)
    w, V = (x.cpu() for x in solve(M))
    assert faults([str(n)] * len(M), M, w, V) == []


@pytest.mark.parametrize("dtype", REALS, ids=cases.ident)
@pytest.mark.parametrize("n", [4, 16, 33, 64, 128])
def test_a_starting_basis(n: int, dtype: torch.dtype) -> None:
    M = cases.random_covariance(n, 5, dtype=dtype)
    start = torch.linalg.eigh(M + 1e-3 * cases.random_covariance(n, 5, seed=1).to(dtype))[1]
    w, V = (x.cpu() for x in solve(M, start))
    assert faults(["moved"] * 5, M, w, V) == []


@pytest.mark.parametrize("dtype", REALS, ids=cases.ident)
@pytest.mark.parametrize(("n", "batch"), [(65, 2), (80, 16), (100, 16), (128, 1), (128, 33)])
def test_a_cluster_of_blocks(n: int, batch: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few matrices: no wait, the same bits in a graph, NaN in one counted, small eigenvalues as good as one block's."""
    scale = torch.logspace(0, -2, n, dtype=torch.float64)
    M = (scale[:, None] * cases.random_covariance(n, batch) * scale).to(dtype).cuda()
    assert jacobi.division(n, dtype.itemsize, batch, nvrtc.for_clusters(0)).CLUSTER > 1
    w, V = solve(M)
    exact = torch.linalg.eigvalsh(M.cpu().double())
    assert faults(["graded"] * batch, M.cpu(), w.cpu(), V.cpu()) == []
    with monkeypatch.context() as patch:
        patch.setattr(nvrtc, "for_clusters", lambda _: 0)
        jacobi._kernel.cache_clear()
        of_one_block = solve(M)[0]
    jacobi._kernel.cache_clear()
    error, other = (float(((x.cpu().double() - exact) / exact).abs().max()) for x in (w, of_one_block))
    assert error <= 4 * other + n * cases.eps(dtype)
    counter = torch.zeros((), dtype=torch.int64, device="cuda")
    with no_host_wait():
        jacobi.eigh(M, counter)
    _, written, replay = captured(lambda: jacobi.eigh(M, counter))
    replay()
    for x, y in zip(written, (w, V), strict=True):
        assert torch.equal(x, y)
    M[batch // 2, n - 1, 3] = torch.nan
    broken = jacobi.eigh(M, counter)
    assert int(counter) == 1
    for i in range(batch):
        assert bool(broken[1][i].isnan().all()) if i == batch // 2 else torch.equal(broken[1][i], V[i])


COMPLEX_AND_LARGE = [(torch.complex64, 5), (torch.complex128, 33), (torch.float32, 200), (torch.float64, 130)]


@pytest.mark.parametrize("dtype", [*REALS, torch.complex64, torch.complex128], ids=cases.ident)
@pytest.mark.parametrize("n", [1, 2, 5, 16, 33, 130])
def test_families_by_the_batched_routine(n: int, dtype: torch.dtype) -> None:
    names, M = families(n, dtype, SCALES)
    w, V = (x.cpu() for x in sg.eigh(M.cuda(), solver=sg.Lapack()))
    assert syev.runs_on(M.cuda())
    assert faults(names, M, w, V) == []


def structured(n: int, decades: int) -> dict[str, Tensor]:
    """Symmetric matrices (50, n, n) whose entries go down to 10^-decades of the largest, or are zero, or all alike."""
    scale = torch.logspace(0, -decades, n, dtype=torch.float64)
    C = hermitian_part(cases.random_covariance(n, 50))
    graded = C * (scale[:, None] * scale)
    arrow = 10.0**-decades * C
    arrow[:, 0] = arrow[:, :, 0] = cases.random(50, n)
    kept = cases.random(50, n, n, seed=1) > 0.8
    band = (torch.arange(n)[:, None] - torch.arange(n)).abs() <= 1
    return {
        "graded": graded,
        "arrow": arrow,
        "sparse": graded * (kept | kept.mT),
        "band": graded * band,
        "ones": torch.ones_like(C),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.float64], ids=cases.ident)
@pytest.mark.parametrize("n", [3, 8, 16, 33, 64, 200])
def test_structured_matrices_by_the_batched_routine(n: int, dtype: torch.dtype, record_property: Note) -> None:
    """The routine alone leaves them NaN, or its vectors far from orthogonal; the record has its worst beside ours."""
    worst = {"alone": 0.0, "ours": 0.0}  # orthogonality, in n eps
    identity = torch.eye(n, dtype=dtype, device="cuda")
    for decades in (6, 15):
        for name, real in structured(n, decades).items():
            M = real.to(dtype)
            w, V = sg.eigh(M.cuda(), solver=sg.Lapack())
            assert faults([name] * len(M), M, w.cpu(), V.cpu()) == []
            for way, found in (("alone", syev.solve(M.cuda())[1]), ("ours", V)):
                error = float((found.mH @ found - identity).abs().amax().nan_to_num(torch.inf)) / (n * cases.eps(dtype))
                worst[way] = max(worst[way], error)
    for way, error in worst.items():
        record_property(way, error)


@pytest.mark.parametrize(("dtype", "n"), COMPLEX_AND_LARGE)
def test_a_thousand_batches_of_every_size(dtype: torch.dtype, n: int) -> None:
    for repeat in range(1000 if n < 100 else 20):
        batch = 1 + 37 * repeat % 211
        X = torch.randn(batch, n, n, dtype=dtype, device="cuda")
        M = X @ X.mH / n
        w, V = sg.eigh(M)
        identity = torch.eye(n, dtype=dtype, device="cuda")
        assert float((V.mH @ V - identity).abs().amax()) <= 10 * n * cases.eps(dtype), batch
        assert float((M @ V - V * w.unsqueeze(-2)).abs().amax()) <= 10 * n * cases.eps(dtype) * float(w.max()), batch


def test_batches_that_the_routine_refuses_are_split() -> None:
    M = cases.random_covariance(3, 100_003, dtype=torch.float32).cuda()
    w, V = (x.cpu() for x in sg.eigh(M, solver=sg.Lapack()))
    assert faults(["split"] * len(M), M.cpu(), w, V) == []


@pytest.mark.parametrize(("dtype", "n"), COMPLEX_AND_LARGE)
def test_the_batched_routine_does_not_wait_and_is_captured(dtype: torch.dtype, n: int) -> None:
    X = torch.randn(3, n, n, dtype=dtype, device="cuda")
    M = X @ X.mH
    expected = sg.eigh(M)
    torch.cuda.synchronize()
    with no_host_wait():
        sg.eigh(M)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = sg.eigh(M)
    graph.replay()
    for x, y in zip(captured, expected, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("n", [4, 20, 64, 70, 128])
@pytest.mark.parametrize("scalar", SCALARS, ids=cases.ident)
def test_spectral_functions(scalar: Scalar, n: int) -> None:
    w, V, G = cases.separated(n).repeat(3, 1).cuda(), cases.rotation(n, 3).cuda(), cases.random(3, n, n).cuda()
    if not spectral.runs_on(V):
        pytest.skip("three matrices do not fit into shared memory")
    y = scalar.f(scalar.clamp(w)[0])
    value = spectral.value(V, w, scalar.in_kernel(), None, None)[0]
    derivative = spectral.derivative(V, w, scalar.in_kernel(), None, G)
    assert cases.relative_error(value, (V * y.unsqueeze(-2)) @ V.mT) < 1e-12
    assert cases.relative_error(derivative, sandwich(V, scalar.loewner(w) * in_basis(V, G))) < 1e-12


def test_a_step_in_a_graph_is_the_eager_one() -> None:
    M = cases.random_covariance(16, 4, dtype=torch.float32).cuda()
    G = cases.random(4, 16, 16, dtype=torch.float32).cuda()

    def step() -> tuple[Tensor, Tensor]:
        leaf = M.detach().requires_grad_()  # of this stream
        y = sg.inv_sqrtm(leaf)
        return y.detach(), torch.autograd.grad(y, leaf, G)[0]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        expected = [x.clone() for x in step()]
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    for x, y in zip(captured, expected, strict=True):
        assert torch.equal(x, y)


def test_nan_stays_where_it_was_and_is_counted() -> None:
    M = cases.random_covariance(4, 40, dtype=torch.float32).cuda()
    M[5, 1, 2] = torch.nan
    sg.reset_counts()
    w, _ = sg.eigh(M)
    assert w.isnan().any(-1).nonzero().flatten().tolist() == [5]
    assert sg.counts() == {"nonfinite_input": 1}
    sg.reset_counts()


def test_gradients_from_several_threads() -> None:
    """Backward runs in autograd's own thread, whose first call of the driver this may be."""
    M = cases.random_covariance(6, 2).cuda().requires_grad_()
    (g,) = torch.autograd.grad(sg.logm(M).sum(), M)
    N = M.detach().cpu().requires_grad_()
    (h,) = torch.autograd.grad(sg.logm(N).sum(), N)
    torch.testing.assert_close(g.cpu(), h, rtol=1e-10, atol=1e-10)
