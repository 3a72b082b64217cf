"""Roots by matrix products on CUDA: `python benchmarks/check_cuda_roots.py` prints accuracy, promises and times.

Accuracy: relative errors of value and gradient in float32 against eigenvectors in float64 of the same matrices. Promises:
no host wait, capture in a CUDA graph. Times: medians of CUDA events, forward + backward. Losses are printed too.
"""

import math
import statistics
import sys
from collections.abc import Callable

import torch
from torch import Tensor

import spectralgrad as sg
from spectralgrad.linalg import iteration
from spectralgrad.nn.pooling import CovariancePool2d

NEWTON = sg.NewtonSchulz()
ROOTS: dict[str, Callable[..., Tensor]] = {"sqrtm": sg.sqrtm, "inv_sqrtm": sg.inv_sqrtm}
TARGETS_MS = {"inv_sqrtm": 20.0, "pool": 15.0}
failures = 0


def report(name: str, ok: bool, detail: str) -> None:
    global failures
    failures += not ok
    print(f"{'ok  ' if ok else 'MISS'} {name}: {detail}", flush=True)


def error(a: Tensor, b: Tensor) -> float:
    return float(torch.linalg.norm(a.double() - b.double()) / torch.linalg.norm(b.double()))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


def with_spectrum(w: Tensor, batch: int) -> Tensor:
    V = torch.linalg.qr(normal(batch, len(w), len(w)))[0]
    return (V * w.cuda()) @ V.mT


def covariances(batch: int, n: int) -> Tensor:
    X = normal(batch, n, 4 * n)
    return X @ X.mT / (4 * n)


def inputs(n: int) -> dict[str, Tensor]:
    deficient = torch.linspace(0, 2, n, dtype=torch.float64)
    deficient[: n // 2] = 0
    return {
        "covariance": covariances(2, n),
        "condition 1e5": with_spectrum(torch.logspace(-5, 0, n, dtype=torch.float64), 2),
        "rank n/2 + 1e-5": with_spectrum(deficient + 1e-5, 2),
    }


def value_and_gradient(root: Callable[..., Tensor], M: Tensor, **options: object) -> tuple[Tensor, Tensor]:
    M = M.detach().requires_grad_()
    Y = root(M, **options)
    weight = normal(*M.shape, seed=9).to(M.dtype)
    return Y.detach(), torch.autograd.grad((Y * weight).sum(), M)[0]


def accuracy() -> None:
    print("errors of value and gradient, NewtonSchulz() in float32; in brackets eigenvectors in float32, on the CPU")
    for n in (32, 64, 128, 196, 256):
        for kind, M in inputs(n).items():
            M = M.float()
            for name, root in ROOTS.items():
                want = [x.cuda() for x in _on_cpu(root, M.double())]
                got = value_and_gradient(root, M, solver=NEWTON)
                e = [error(a, b) for a, b in zip(got, want, strict=True)]
                try:
                    r = " ".join(f"{error(a.cuda(), b):.0e}" for a, b in zip(_on_cpu(root, M), want, strict=True))
                except sg.errors.DefinitenessError:
                    r = "singular to float32"
                report(f"{name} n = {n}, {kind}", max(e) <= 1e-5, f"{e[0]:.0e} {e[1]:.0e} ({r})")


def _on_cpu(root: Callable[..., Tensor], M: Tensor) -> tuple[Tensor, Tensor]:
    """By LAPACK, with the weight that the GPU drew: its generator is another."""
    X = M.cpu().requires_grad_()
    Y = root(X, solver=sg.Lapack())
    weight = normal(*M.shape, seed=9).to(M.dtype).cpu()
    return Y.detach(), torch.autograd.grad((Y * weight).sum(), X)[0]


def no_host_wait() -> None:
    M, x = covariances(4, 196).float(), normal(4, 64, 7, 7).float()
    pool = CovariancePool2d(64, reduced=None)
    calls = {name: (lambda M, root=root: root(M, solver=NEWTON), M) for name, root in ROOTS.items()}
    calls["polar"] = (lambda A: sg.polar(A, solver=NEWTON), M)
    calls["CovariancePool2d"] = (pool, x)
    for name, (f, given) in calls.items():
        X = given.clone().requires_grad_()
        f(X).sum().backward()  # warm up
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            f(X).sum().backward()
            report(f"no host wait: {name}", True, "forward and backward")
        except RuntimeError as e:
            report(f"no host wait: {name}", False, str(e).splitlines()[0][:120])
        finally:
            torch.cuda.set_sync_debug_mode("default")


def graph() -> None:
    M = covariances(4, 64).float().requires_grad_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            (want,) = torch.autograd.grad(sg.inv_sqrtm(M, solver=NEWTON).sum(), M)
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        (g,) = torch.autograd.grad(sg.inv_sqrtm(M, solver=NEWTON).sum(), M)
    captured.replay()
    torch.cuda.synchronize()
    report("CUDA graph of inv_sqrtm, forward + backward", torch.equal(g, want), f"{error(g, want):.1e}")


def unconverged() -> None:
    M = torch.stack([torch.eye(160, dtype=torch.float64), -torch.eye(160, dtype=torch.float64)]).cuda().float()
    before = sg.counts().get("root_unconverged", 0)
    value, gradient = value_and_gradient(sg.inv_sqrtm, M, solver=NEWTON)
    finite = bool(value.isfinite().all() and gradient.isfinite().all())
    counted = sg.counts().get("root_unconverged", 0) - before
    report("a negative matrix is finite and counted", finite and counted == 1, f"finite {finite}, counted {counted}")


def milliseconds(f: Callable[[], object], most: float = 1000.0) -> float:
    """The median of up to 9 runs, or of as many as fit into ``most`` ms; at least 1."""
    f()
    torch.cuda.synchronize()
    times: list[float] = []
    while len(times) < 9 and (not times or sum(times) < most):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        f()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def step(f: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], object]:
    X = x.detach().requires_grad_()
    with torch.no_grad():
        weight = torch.randn_like(f(X))
    return lambda: torch.autograd.grad(f(X), X, weight)


def products() -> None:
    print("one batched product, ms")
    for n, batch in ((256, 256), (196, 128)):
        for dtype in (torch.float32, torch.float64):
            A = normal(batch, n, n).to(dtype)
            print(f"     n = {n}, B = {batch}, {dtype}: {milliseconds(lambda A=A: torch.bmm(A, A)):.3f}")


def times() -> None:
    print("inv_sqrtm, NewtonSchulz(), float32 given, forward + backward, ms: products in float64 | in float32")
    fast = iteration.FAST_FLOAT64
    here = torch.cuda.get_device_capability()
    for n in (64, 128, 192, 256, 512):
        cells = []
        for batch in (16, 64, 256):
            M = covariances(batch, n).float()
            row = []
            for table in ((here,), ()):
                iteration.FAST_FLOAT64 = table
                try:
                    row.append(milliseconds(step(lambda M: sg.inv_sqrtm(M, solver=NEWTON), M), 200))
                except torch.cuda.OutOfMemoryError:
                    row.append(math.nan)
                finally:
                    iteration.FAST_FLOAT64 = fast
            cells.append(f"B = {batch}: {row[0]:7.2f} | {row[1]:7.2f}")
            if (n, batch) == (256, 256):
                ms = min(row) if math.isnan(row[0]) else row[0]
                report("inv_sqrtm of 256 x (256, 256)", ms <= TARGETS_MS["inv_sqrtm"], f"{ms:.1f} ms")
        print(f"     n = {n:3d}  " + "   ".join(cells), flush=True)


def eigenvectors() -> None:
    M = covariances(16, 256).float()

    def root(M: Tensor) -> Tensor:
        w, V = torch.linalg.eigh(M)
        return (V * w.rsqrt().unsqueeze(-2)) @ V.mT

    slow, quick = (milliseconds(step(f, M), 300) for f in (root, lambda M: sg.inv_sqrtm(M, solver=NEWTON)))
    print(f"     torch.linalg.eigh, 16 x (256, 256), forward + backward: {slow:.1f} ms; NewtonSchulz() {quick:.2f} ms")


def pooling() -> None:
    print("CovariancePool2d(256, reduced=None), (128, 256, h, h) float32, forward + backward")
    for h in (14, 7):
        x = normal(128, 256, h, h).relu().float()
        pool = CovariancePool2d(256, reduced=None)
        with torch.no_grad():
            weight = torch.randn_like(pool(x))
        ms = milliseconds(step(pool, x))
        few, w = x[:2].clone().requires_grad_(), weight[:2]
        (g,) = torch.autograd.grad(pool(few), few, w)
        wide = x[:2].double().cpu().requires_grad_()
        (want,) = torch.autograd.grad(pool(wide), wide, w.double().cpu())  # by eigenvectors, on the CPU
        e = error(g.cpu(), want)
        report(f"pooling h = {h}", ms <= TARGETS_MS["pool"] and e <= 1e-3, f"{ms:.2f} ms, error of the gradient {e:.1e}")


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("check_cuda_roots.py measures on a GPU, and torch finds none.")
    major, minor = torch.cuda.get_device_capability()
    print(f"{torch.cuda.get_device_name()} ({major}.{minor}), torch {torch.__version__}, spectralgrad {sg.__version__}")
    for check in (products, times, eigenvectors, pooling, no_host_wait, graph, unconverged, accuracy):
        try:
            check()
        except Exception as e:  # the next check is worth its time all the same
            report(check.__name__, False, f"{type(e).__name__}: {str(e).splitlines()[0][:200] if str(e) else ''}")
    print(f"{failures} missed")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
