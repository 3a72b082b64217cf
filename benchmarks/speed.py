"""The claim: the exact gradient costs no more than torch's. Forward + backward of `inv_sqrtm`, side by side in one process.

Every method does the same work on the same matrices (covariances of 4d samples) with the same random cotangent. After a
warm-up, rounds: in each, every method is timed once, in an order that turns round every time, so that a disturbance or
a change of clock hits all of them alike. A sample repeats short calls until it is long enough to be timed. Reported are
medians with quartiles; the ratio is the median of the ratios within a round. README.md says more.
"""

import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import inputs
import peers
import record
import torch
from torch import Tensor

SIZES, BATCHES = (4, 8, 16, 32, 64, 128), (1, 16, 256)
QUICK_SIZES, QUICK_BATCHES = (4, 32), (1, 16)
WARM_UP = 3
SAMPLE_SECONDS = 1e-3  # a sample repeats shorter calls until it lasts this long
ROUNDS, QUICK_ROUNDS = (11, 101), (5, 9)  # fewest and most
SHAPE_SECONDS, QUICK_SHAPE_SECONDS = 6.0, 0.5  # rounds stop after this, once there are enough
ZCA_EPS = 1e-5

Call = Callable[[], object]


@dataclass
class Row:
    """One shape: seconds (first quartile, median, third quartile) and ratios to torch's, by method."""

    task: str
    dtype: str
    d: int
    batch: int
    rounds: int
    seconds: dict[str, tuple[float, float, float]]
    ratios: dict[str, tuple[float, float, float]]
    limit: float | None

    def met(self) -> bool | None:
        """Whether our ratio keeps the requirement; None if there is none."""
        return None if self.limit is None else self.ratios[peers.EXACT][1] <= self.limit


def requirement(d: int, batch: int, seconds: float) -> float | None:
    """The largest ratio allowed to us where torch takes ``seconds``; between 1 and 2 ms none is set."""
    if batch == 256 and d >= 32 and torch.get_num_threads() > 1:
        return 0.7  # the batch is spread over threads, which torch does not do
    return 1.5 if seconds < 1e-3 else 1.15 if seconds > 2e-3 else None


def forward_backward(function: Callable[[Tensor], Tensor], x: Tensor, G: Tensor) -> Call:
    x = x.clone().requires_grad_()
    return lambda: torch.autograd.grad(function(x), x, G)


def sample(call: Call, repeats: int) -> float:
    """Seconds for one call, averaged over ``repeats``."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def measure(calls: dict[str, Call], quick: bool) -> dict[str, list[float]]:
    """Seconds of every round, by name; all methods in each round, in alternating order."""
    repeats = {}
    for name, call in calls.items():
        for _ in range(WARM_UP):
            call()
        repeats[name] = max(1, round(SAMPLE_SECONDS / sample(call, 1)))
    fewest, most = QUICK_ROUNDS if quick else ROUNDS
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    end = time.perf_counter() + (QUICK_SHAPE_SECONDS if quick else SHAPE_SECONDS)
    gc.collect()
    gc.disable()
    try:
        for done in range(most):
            if done >= fewest and time.perf_counter() > end:
                break
            for name in order:
                seconds[name].append(sample(calls[name], repeats[name]))
            order.reverse()
    finally:
        gc.enable()
    return seconds


def summarise(task: str, dtype: torch.dtype, d: int, batch: int, seconds: dict[str, list[float]], required: bool) -> Row:
    base = seconds[peers.TORCH]
    ratios = {name: [a / b for a, b in zip(values, base, strict=True)] for name, values in seconds.items()}
    limit = requirement(d, batch, statistics.median(base)) if required else None
    return Row(
        task,
        str(dtype).removeprefix("torch."),
        d,
        batch,
        len(base),
        {name: _quartiles(values) for name, values in seconds.items()},
        {name: _quartiles(values) for name, values in ratios.items()},
        limit,
    )


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, median, third


def time_matrices(dtype: torch.dtype, d: int, batch: int, quick: bool) -> Row:
    """M -> M^(-1/2), forward and backward."""
    M, G = inputs.matrices("covariance", d, batch, dtype), inputs.cotangents(d, batch, dtype)
    calls = {
        method.name: forward_backward(method.inv_sqrtm, M, G) for method in peers.METHODS if method.inv_sqrtm is not None
    }
    return summarise("inv_sqrtm", dtype, d, batch, measure(calls, quick), required=True)


def time_zca(dtype: torch.dtype, d: int, quick: bool) -> Row:
    """X -> (X X^T / n + eps I)^(-1/2), forward and backward: where kornia can take part. No requirement is set."""
    X, G = inputs.samples(d, 4 * d, dtype), inputs.cotangents(d, 1, dtype)[0]
    functions = {method.name: peers.zca_of_samples(method, ZCA_EPS) for method in peers.METHODS}
    functions[peers.KORNIA] = peers.kornia_zca_of_samples(ZCA_EPS)
    calls = {name: forward_backward(f, X, G) for name, f in functions.items() if f is not None}
    return summarise("ZCA matrix of samples", dtype, d, 1, measure(calls, quick), required=False)


def _spread(values: tuple[float, float, float], unit: float = 1.0) -> str:
    first, median, third = (f"{value * unit:.3g}" for value in values)
    return f"{median} ({first} to {third})"


def report(rows: list[Row]) -> str:
    """The rows as Markdown: us against torch with the requirement, then every method's ratio."""
    others = [method.name for method in peers.METHODS if method.name not in (peers.EXACT, peers.TORCH)] + [peers.KORNIA]
    parts = [
        "Times in ms: median (quartiles). Ratio: time / time of torch.linalg.eigh + autograd, above 1 is slower. "
        "`!`: misses the requirement. `-`: not installed, or has no such function; required `-`: none is set."
    ]
    for task, dtype in dict.fromkeys((row.task, row.dtype) for row in rows):
        some = [row for row in rows if (row.task, row.dtype) == (task, dtype)]
        shown = others if task != "inv_sqrtm" else others[:-1]
        lines = [
            [
                str(row.d),
                str(row.batch),
                str(row.rounds),
                _spread(row.seconds[peers.TORCH], 1e3),
                _spread(row.seconds[peers.EXACT], 1e3),
                _spread(row.ratios[peers.EXACT]) + (" !" if row.met() is False else ""),
                "-" if row.limit is None else f"{row.limit:g}",
                *(f"{row.ratios[name][1]:.3g}" if name in row.ratios else "-" for name in shown),
            ]
            for row in some
        ]
        header = ["d", "B", "rounds", f"{peers.TORCH} [ms]", f"{peers.EXACT} [ms]", "ratio", "required"]
        parts += [f"## {task}, {dtype}", record.table(header + [f"{name}, ratio" for name in shown], lines)]
    required = [row for row in rows if row.limit is not None]
    parts.append(f"{sum(row.met() is True for row in required)} of {len(required)} requirements met.")
    return "\n\n".join(parts)


def main() -> int:
    parser = record.arguments("Time of forward + backward, ours and others', side by side.")
    parser.add_argument("--float64", action="store_true", help="float64 too, after float32")
    options = parser.parse_args()
    about = record.circumstances()
    sizes, batches = (QUICK_SIZES, QUICK_BATCHES) if options.quick else (SIZES, BATCHES)
    rows = []
    for dtype in (torch.float32, torch.float64) if options.float64 else (torch.float32,):
        rows += [time_matrices(dtype, d, batch, options.quick) for d in sizes for batch in batches]
        rows += [time_zca(dtype, d, options.quick) for d in sizes]
    markdown = f"# Time of forward + backward\n\n{record.describe(about)}\n\n{report(rows)}"
    print(markdown)
    if options.write:
        print("\nwrote", *record.write(options.write, "speed", about, [asdict(row) for row in rows], markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
