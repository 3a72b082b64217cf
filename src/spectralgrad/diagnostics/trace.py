"""Every decomposition that runs in a block, torch's or ours, with its closest pair and the gradients on both sides of it.

torch's are seen by a mode for torch's functions, and get hooks on their outputs and on an alias of their input. Ours are
seen where they all pass, at the one kind of node (linalg/node.py), whose two methods are replaced while a trace is at work;
outside of traces nothing is. What ours ask of torch inside is not listed again.
"""

import heapq
import itertools
import math
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from spectralgrad.context import is_transformed, tracing
from spectralgrad.errors import OptionError
from spectralgrad.linalg import node
from spectralgrad.linalg.precision import in_widest
from spectralgrad.validation import is_whole

from .places import place
from .record import Record

__all__ = ["trace"]

_TORCHS: dict[Any, tuple[str, int]] = {  # the name, and which output is the spectrum
    torch.linalg.eigh: ("torch.linalg.eigh", 0),
    torch.linalg.eigvalsh: ("torch.linalg.eigvalsh", 0),
    torch.linalg.svd: ("torch.linalg.svd", 1),
    torch.linalg.svdvals: ("torch.linalg.svdvals", 0),
    torch.svd: ("torch.svd", 1),
    torch.Tensor.svd: ("torch.svd", 1),
}
_TIED = 16  # times eps and the largest: closer than that, rounding alone holds a pair apart
_COLUMNS = ("function", "place", "module", "shape", "gap", "tied_pairs", "condition", "gradient_in", "gradient_out")
_inside = threading.local()  # whether a node of ours is computing


class trace:
    """Lists each decomposition inside the block, in any model: where, how close its values come, what its gradient did.

    ``records`` has one dict each: function, file, line, module, shape, dtype; gap, the smallest |l_i - l_j| / max |l|, of
    matrix number ``matrix`` and pair ``pair``; amplification = 1/gap; tied_pairs; condition; error, of a decomposition that
    failed; the norms gradient_in and gradient_out, in the sense of the backward pass, once it ran. ``print`` gives a table
    under one sentence. Norms are read when they are there, so on a GPU the host waits: for looking, not for training.

    Args:
        most: how many records are kept, those of the smallest gaps.

    Raises:
        OptionError: most is not a whole number >= 1.

    >>> import torch, spectralgrad as sg
    >>> M = torch.eye(2, requires_grad=True)
    >>> with sg.diagnostics.trace() as t:
    ...     torch.linalg.eigh(M).eigenvectors.sum().backward()
    >>> t.records[0]["tied_pairs"], t.first["function"]
    (1, 'torch.linalg.eigh')
    """

    def __init__(self, most: int = 1000) -> None:
        if not is_whole(most):
            raise OptionError(f"`trace`: most must be a whole number >= 1, got {most!r}.")
        self.most = most
        self.calls = 0
        self.first: Record | None = None  # whose gradient was finite, or not there, on its way in and not on its way out
        self._broken_before: Record | None = None  # to which the gradient came broken, before any other broke it
        self._worst: list[tuple[float, int, Record]] = []  # a heap: the one to drop first is the one with the largest gap
        self._order = itertools.count()
        self._lock = threading.Lock()
        self._mode = _Mode(self)

    def __enter__(self) -> "trace":
        with _patching:
            _active.append(self)
            if len(_active) == 1:
                node._Node.forward = staticmethod(_forward)  # type: ignore[method-assign]
                node._Node.backward = staticmethod(_backward)  # type: ignore[method-assign]
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)
        with _patching:
            _active.remove(self)
            if not _active:
                node._Node.forward = staticmethod(_plain_forward)  # type: ignore[method-assign]
                node._Node.backward = staticmethod(_plain_backward)  # type: ignore[method-assign]

    @property
    def records(self) -> list[Record]:
        """In the order of the calls."""
        return [record for _, _, record in sorted(self._worst, key=lambda entry: entry[1])]

    def add(self, record: Record) -> None:
        with self._lock:
            self.calls += 1
            gap = record["gap"]
            entry = (1.0 if record["error"] else -gap, next(self._order), record)  # a heap gives up its smallest
            (heapq.heappush if len(self._worst) < self.most else heapq.heappushpop)(self._worst, entry)

    def gradient(self, record: Record, side: str, norm: float) -> None:
        """A gradient came in or went out; several of one decomposition are joined."""
        with self._lock:
            record[side] = norm if record[side] is None else math.hypot(record[side], norm)
            if side == "gradient_in" and not math.isfinite(norm) and self.first is None and self._broken_before is None:
                self._broken_before = record
            broke = side == "gradient_out" and not math.isfinite(norm)
            if broke and self.first is None and (record["gradient_in"] is None or math.isfinite(record["gradient_in"])):
                self.first = record

    @property
    def sentence(self) -> str:
        """What to look at first."""
        if not self.calls:
            return "No decomposition ran in this block."
        if self.first is not None:
            return f"The NaN began at {_where(self.first)}: {_closest(self.first)}; {_ADVICE}."
        failed = next((x for x in self.records if x["error"]), None)
        if failed is not None:
            return f"{failed['function']} failed at {_where(failed)}: {failed['error']}"
        if self._broken_before is not None:
            x = self._broken_before
            return f"The gradient was not finite before it came to {_where(x)}: look at what is computed from its result."
        closest = min(self.records, key=lambda x: x["gap"])
        return f"No gradient broke. The closest pair is at {_where(closest)}: {_closest(closest)}."

    def __str__(self) -> str:
        rows = [list(_COLUMNS)]
        for x in self.records:
            given = {**x, "place": f"{x['file'].rpartition('/')[2]}:{x['line']}", "shape": "x".join(map(str, x["shape"]))}
            rows.append([_short(given[name]) for name in _COLUMNS])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)
        kept = "" if self.calls == len(self._worst) else f"\n{len(self._worst)} of {self.calls} calls, the closest."
        return f"{self.sentence}\n{table}{kept}" if self.calls else self.sentence


_ADVICE = (
    "take sg.inv_sqrtm, sg.logm or another function of the matrix for V f(w) V^T, sg.eigh or sg.svd for single vectors, "
    "or sg.drop_in() where the code is not yours"
)


def _where(x: Record) -> str:
    place = f"line {x['line']} of {x['file']}"
    return f"{x['module']}, {place}" if x["module"] else place


def _closest(x: Record) -> str:
    if x["pair"] is None:
        return "there is one value alone"
    i, j = x["pair"]
    kind = "singular values" if "svd" in x["function"] else "eigenvalues"
    ties = "tie" if x["tied_pairs"] else f"are {x['gap']:.1e} of the largest apart"
    return f"{kind} {i} and {j} of matrix {x['matrix']} {ties}"


def _short(x: Any) -> str:
    return "-" if x is None else f"{x:.3g}" if isinstance(x, float) else str(x)


# One record.


def _record(function: str, M: Tensor, spectrum: Tensor | None, error: str | None) -> Record:
    found = place(3)
    record = dict.fromkeys(("pair", "matrix", "gradient_in", "gradient_out", "condition"))
    record |= {"function": function, **found._asdict(), "shape": tuple(M.shape), "dtype": str(M.dtype), "error": error}
    record |= {"gap": math.inf, "amplification": 0.0, "tied_pairs": 0}
    if spectrum is None or spectrum.numel() == 0 or is_transformed(spectrum) or not bool(torch.isfinite(spectrum).all()):
        return record
    with torch.no_grad():
        s = in_widest(spectrum.detach()).reshape(-1, spectrum.shape[-1])
        size = s.abs().amax(-1)
        smallest = s.abs().amin(-1)
        record["condition"] = float((size / smallest).nan_to_num(nan=math.inf).max())
        if s.shape[-1] == 1:
            return record
        gaps = s.diff(dim=-1).abs() / torch.where(size > 0, size, 1).unsqueeze(-1)
        flat = int(gaps.argmin())
        record["matrix"], pair = divmod(flat, gaps.shape[-1])
        gap = float(gaps.flatten()[flat])
        tied = _TIED * torch.finfo(spectrum.dtype).eps
        record |= {"pair": (pair, pair + 1), "gap": gap, "tied_pairs": int((gaps <= tied).sum())}
        record["amplification"] = math.inf if gap == 0 else 1 / gap
    return record


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(in_widest(x.detach())))


# torch's decompositions.


class _Mode(TorchFunctionMode):
    def __init__(self, owner: trace) -> None:
        super().__init__()
        self.owner = owner

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = _TORCHS.get(func)
        A = args[0] if args else kwargs.get("A", kwargs.get("input"))
        if known is None or getattr(_inside, "node", False) or tracing() or not isinstance(A, Tensor):
            return func(*args, **kwargs)
        return self._listed(func, known, A, args, kwargs)

    def _listed(self, func: Any, known: tuple[str, int], A: Tensor, args: Any, kwargs: Any) -> Any:
        name, which = known
        listens = A.requires_grad and torch.is_grad_enabled() and not is_transformed(A)
        alias = A.view_as(A) if listens else A
        try:
            out = (
                func(alias, *args[1:], **kwargs) if args else func(**{k: alias if v is A else v for k, v in kwargs.items()})
            )
        except RuntimeError as error:
            self.owner.add(_record(name, A, None, str(error).partition("\n")[0]))
            raise
        outputs = (out,) if isinstance(out, Tensor) else tuple(out)
        record = _record(name, A, outputs[which] if which < len(outputs) else None, None)
        self.owner.add(record)
        if listens:
            _listen(self.owner, record, alias, "gradient_out")
            for y in outputs:
                if y.requires_grad:
                    _listen(self.owner, record, y, "gradient_in")
        return out


def _listen(owner: trace, record: Record, x: Tensor, side: str) -> None:
    def hear(g: Any) -> None:
        if g is not None and not is_transformed(g):  # None: torch found nothing to send
            owner.gradient(record, side, _norm(g))

    x.register_hook(hear)


# Ours: at the node.

_patching = threading.Lock()
_active: list[trace] = []
_plain_forward: Callable[..., Any] = node._Node.forward
_plain_backward: Callable[..., Any] = node._Node.backward


def _forward(step: Any, *x: Any) -> Any:
    outer = getattr(_inside, "node", False)
    _inside.node = True
    try:
        y = _plain_forward(step, *x)
    finally:
        _inside.node = outer
    M = x[0] if x else None
    outputs = y if isinstance(y, tuple) else ()
    if outer or not isinstance(M, Tensor) or M.ndim < 2 or not hasattr(_inner(step), "who"):
        return y
    size = (*M.shape[:-2], min(M.shape[-2:]))
    spectrum = next((each for each in outputs if tuple(each.shape) == size and not each.is_complex()), None)
    if spectrum is not None:
        record = _record(_inner(step).who, M, spectrum, None)
        object.__setattr__(step, "_traced", record)  # steps are frozen; each is made for one call
        for each in _active:
            each.add(record)
    return y


def _backward(ctx: Any, *grads: Any) -> Any:
    out = _plain_backward(ctx, *grads)
    record = getattr(ctx.step, "_traced", None)
    if record is not None:
        for side, each in (("gradient_in", grads), ("gradient_out", out)):
            present = [g for g in each if isinstance(g, Tensor) and not is_transformed(g)]
            if present:
                norm = math.hypot(*map(_norm, present))
                for owner in _active:
                    owner.gradient(record, side, norm)
    return out


def _inner(step: Any) -> Any:
    """What a step is about: a frame is what `mapped` factorises with."""
    return getattr(step, "frame", step)
