"""What the core promises on CUDA: `python benchmarks/check_cuda.py` prints a line a check; exit code 1 on a miss.

CI has no GPU, so this is run by hand on a machine with one, and its output is kept under results/.
"""

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

import spectralgrad as sg

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sqrtm": sg.sqrtm,
    "inv_sqrtm": sg.inv_sqrtm,
    "powm": lambda M: sg.powm(M, 0.3),
    "logm": sg.logm,
    "expm": sg.expm,
    "spectral_map": lambda M: sg.spectral_map(M, torch.sin),
    "projector": lambda M: sg.projector(M, rank=2),
    "polar": sg.polar,
    "sqrtm Taylor": lambda M: sg.sqrtm(M, gradient=sg.Taylor(9)),
    "sqrtm PowerIteration": lambda M: sg.sqrtm(M, gradient=sg.PowerIteration(5)),
    "sqrtm NewtonSchulz": lambda M: sg.sqrtm(M, solver=sg.NewtonSchulz()),
    "inv_sqrtm NewtonSchulz": lambda M: sg.inv_sqrtm(M, solver=sg.NewtonSchulz()),
    "polar NewtonSchulz": lambda M: sg.polar(M, solver=sg.NewtonSchulz()),
    "eigh": lambda M: (lambda w, V: (V * w.unsqueeze(-2).sin()) @ V.mH)(*sg.eigh(M)),
    "eigh Jacobi": lambda M: (lambda w, V: (V * w.unsqueeze(-2).sin()) @ V.mH)(*sg.eigh(M, solver=sg.Jacobi())),
    "svd": lambda M: (lambda U, S, Vh: (U * S.sin().unsqueeze(-2)) @ Vh)(*sg.svd(M)),
    "covariance": lambda M: sg.covariance(M),
}
MATMUL_ONLY = ["sqrtm NewtonSchulz", "inv_sqrtm NewtonSchulz", "polar NewtonSchulz", "covariance"]
failures = 0


def report(name: str, ok: bool, detail: str) -> None:
    global failures
    failures += not ok
    print(f"{'ok  ' if ok else 'MISS'} {name}: {detail}", flush=True)


def spd(batch: int, n: int, dtype: torch.dtype, device: str = "cuda") -> Tensor:
    X = torch.randn(batch, n, 4 * n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    return (X @ X.mT / (4 * n) + torch.diag(torch.linspace(0, 1, n, dtype=torch.float64))).to(dtype).to(device)


def gradient(f: Callable[[Tensor], Tensor], M: Tensor) -> tuple[Tensor, Tensor]:
    X = M.clone().requires_grad_()
    out = f(X)
    weight = torch.linspace(-1, 1, out[0].numel(), device=M.device).to(out).reshape(out.shape[1:])
    (g,) = torch.autograd.grad((out * weight).sum(), X)
    return out.detach(), g


def error(a: Tensor, b: Tensor) -> float:
    return float(torch.linalg.norm(a.double().cpu() - b.double().cpu()) / torch.linalg.norm(b.double().cpu()))


def check_values() -> None:
    for name, f in FUNCTIONS.items():
        expected, expected_gradient = gradient(f, spd(3, 8, torch.float64, "cpu"))
        for dtype, limit in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
            out, g = gradient(f, spd(3, 8, dtype))
            e, eg = error(out, expected), error(g, expected_gradient)
            report(f"{name} {dtype}", e <= limit and eg <= limit, f"value {e:.1e} gradient {eg:.1e}")


def check_ties() -> None:
    for name in ("sqrtm", "inv_sqrtm", "eigh", "projector", "polar", "svd"):
        _, g = gradient(FUNCTIONS[name], torch.eye(6, device="cuda").expand(4, 6, 6).contiguous())
        report(f"{name} at the identity", bool(g.isfinite().all()), "gradient finite")


def check_no_synchronisation() -> None:
    M = spd(4, 16, torch.float32)
    for name, f in FUNCTIONS.items():
        if name == "sqrtm PowerIteration":
            continue
        X = M.clone().requires_grad_()
        gradient(f, M)  # warm up
        out = f(X) if name not in MATMUL_ONLY else None
        torch.cuda.set_sync_debug_mode("error")
        try:
            if out is None:
                out = f(X)
            out.backward(torch.ones_like(out))
            detail = "forward and backward" if name in MATMUL_ONLY else "backward"
            report(f"no host wait: {name}", True, detail)
        except RuntimeError as e:
            report(f"no host wait: {name}", False, str(e).splitlines()[0][:120])
        finally:
            torch.cuda.set_sync_debug_mode("default")


def check_graph_capture() -> None:
    M = spd(4, 16, torch.float32).requires_grad_()
    stream = torch.cuda.Stream()
    f = FUNCTIONS["inv_sqrtm NewtonSchulz"]
    with torch.cuda.stream(stream):
        for _ in range(3):
            (expected,) = torch.autograd.grad(f(M).sum(), M)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (g,) = torch.autograd.grad(f(M).sum(), M)
    graph.replay()
    torch.cuda.synchronize()
    report("CUDA graph of inv_sqrtm NewtonSchulz, forward + backward", torch.equal(g, expected), f"{error(g, expected):.1e}")


def check_precision() -> None:
    X = torch.randn(64, 20000, device="cuda") + 3
    M = spd(2, 64, torch.float32)
    plain = [sg.covariance(X), *gradient(sg.inv_sqrtm, M)]
    reference = sg.covariance(X.double())
    torch.set_float32_matmul_precision("medium")
    reduced = error((X - X.mean(1, keepdim=True)) @ (X - X.mean(1, keepdim=True)).mT / 20000, reference)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        flagged = [sg.covariance(X), *gradient(sg.inv_sqrtm, M)]
    torch.set_float32_matmul_precision("highest")
    worst = max(error(a, b) for a, b in zip(flagged, plain, strict=True))
    report("TF32 + bf16 autocast change nothing", worst <= 5e-6, f"{worst:.1e}; a plain product is off by {reduced:.1e}")
    report("covariance in float32", error(plain[0], reference) <= 1e-6, f"{error(plain[0], reference):.1e}")


def check_bad_input() -> None:
    M = spd(3, 4, torch.float32)
    M[1, 0, 0] = torch.nan
    sg.reset_counts()
    out = sg.sqrtm(M)
    isolated = bool(out[1].isnan().all() and out[0].isfinite().all() and out[2].isfinite().all())
    report("NaN in, NaN out, that matrix alone", isolated, str(sg.counts()))
    try:
        with sg.checks(True):
            sg.sqrtm(M)
        report("checks(True) raises", False, "no error")
    except sg.errors.NonFiniteError as e:
        report("checks(True) raises", True, str(e)[:60])
    singular = sg.inv_sqrtm(torch.zeros(2, 3, 3, device="cuda"))
    report("singular inv_sqrtm is finite and counted", bool(singular.isfinite().all()), str(sg.counts()))


def check_compile() -> None:
    M = spd(2, 8, torch.float32)
    for name in ("sqrtm", "inv_sqrtm NewtonSchulz", "eigh", "svd", "polar", "projector", "covariance"):
        f = FUNCTIONS[name]
        torch.compiler.reset()
        out, g = gradient(torch.compile(f, fullgraph=True), M)
        expected, expected_gradient = gradient(f, M)
        e, eg = error(out, expected), error(g, expected_gradient)
        report(f"compile {name}", e <= 1e-5 and eg <= 1e-4, f"value {e:.1e} gradient {eg:.1e}")


def time_of(f: Callable[[], object], repeats: int) -> float:
    """Median milliseconds."""
    f()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        f()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return sorted(times)[repeats // 2]


def time_solvers() -> None:
    print("eigh forward, float32, ms: n, batch, torch.linalg.eigh, plain-torch Jacobi")
    for n in (16, 32, 64, 128):
        for batch in (1, 16, 256, 2048):
            if n == 128 and batch > 256:
                continue
            M = spd(1, n, torch.float32).expand(batch, n, n).contiguous()
            a = time_of(lambda M=M: torch.linalg.eigh(M), 3)
            b = time_of(lambda M=M: sg.Jacobi().solve(M), 3)
            print(f"  {n:4d} {batch:5d} {a:10.2f} {b:10.2f}", flush=True)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("check_cuda.py needs a CUDA device, and torch sees none here.")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, spectralgrad {sg.__version__}")
    for check in (
        check_values,
        check_ties,
        check_no_synchronisation,
        check_graph_capture,
        check_precision,
        check_bad_input,
        check_compile,
    ):
        check()
    time_solvers()
    print(f"{failures} missed")
    sys.exit(failures > 0)
