"""What the spectra, gradients and solvers inside a model do while it trains.

A layer that can be watched has `monitored`, and while that is True leaves the covariance of a training pass, before eps,
in `last_covariance`. `ConditionMonitor` turns this on for the steps that it records and off for the others. Gradient
norms come from two taps on the graph: a hook on the layer's output, and one on an alias of its input, so that what
other branches send back to that input is not counted. Neither changes a value.
"""

import csv
import io
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import DataParallel, Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from spectralgrad import counters
from spectralgrad.errors import LinAlgError, OptionError
from spectralgrad.linalg.projector import Cut
from spectralgrad.nn.base import BatchStatistics
from spectralgrad.nn.denoise import PCADenoise1d, PCADenoise2d
from spectralgrad.validation import is_transformed, is_whole

__all__ = ["ConditionMonitor"]

Record = dict[str, Any]

_OF_GROUP = ("condition", "largest", "smallest", "smallest_gap", "mean_ratio", "at_floor", "kept_rank")
_OF_LAYER = ("gradient_before", "gradient_after", "solver_failures", "nonfinite_inputs")
_COLUMNS = ("step", "layer", "group", *_OF_GROUP, *_OF_LAYER)
_FAILED_ATTEMPTS = ("solver_retry_float64", "solver_retry_jitter", "solver_failed")  # each counts one that failed before
_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}  # parts of a name that wrapping adds
_TAIL = 1 << 16  # bytes: more than any line of ours


class ConditionMonitor:
    """Records condition numbers, gaps, ranks, gradient norms and solver failures of a model's layers, step by step.

    With l_1 >= ... >= l_d >= 0 the eigenvalues of a layer's covariance before eps is added, decomposed in float64,

        condition = l_1 / l_d,   smallest_gap = min (l_i - l_(i+1)) / l_1,   mean_ratio = mean l_i / l_(i-1).

    Every recorded step gives one flat dict for each layer and group; docs/layers/diagnostics.md explains its entries.
    Training goes on bit for bit as without the monitor.

    Args:
        model: any model with layers of `spectralgrad.nn` that have a covariance; wrapped or compiled too.
        layers: names or modules to watch; None for all.
        every: record the first and then each so-manieth step; the others cost nothing.
        to: None keeps all records in `records`; a path appends to a CSV file; an object with
            ``add_scalar(tag, value, step)``, as TensorBoard's SummaryWriter, gets every number. With a path or a writer
            `records` holds the last recorded step only.
        samples: of layers with one covariance per image (`CovariancePool2d`), how many images; None for all.
        decompose_on: "cpu", after one transfer; or "device", where the covariance lies.
        start: the number of the first step, for a training that goes on.

    Raises:
        OptionError: no layer to watch, an unknown one, one that another monitor watches, an option out of its range, or
            a CSV file with other columns. Nothing is changed then.

    >>> import torch
    >>> from spectralgrad.nn import DecorrelatedBatchNorm1d
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), DecorrelatedBatchNorm1d(2))
    >>> _ = torch.nn.init.eye_(model[0].weight), torch.nn.init.zeros_(model[0].bias)
    >>> with ConditionMonitor(model) as monitor:
    ...     model(torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])).sum().backward()
    ...     _ = monitor.step()
    >>> monitor.records[0]["layer"], round(monitor.records[0]["condition"], 5)
    ('1', 9.0)
    """

    def __init__(
        self,
        model: Module,
        *,
        layers: Iterable[str | Module] | None = None,
        every: int = 1,
        to: Any = None,
        samples: int | None = 1,
        decompose_on: Literal["cpu", "device"] = "cpu",
        start: int = 0,
    ) -> None:
        for name, value in (("every", every), ("samples", samples)):
            if not (is_whole(value) or (name == "samples" and value is None)):
                raise OptionError(f"`ConditionMonitor`: {name} must be a whole number >= 1, got {value!r}.")
        if not (is_whole(start) or (start == 0 and isinstance(start, int))):
            raise OptionError(f"`ConditionMonitor`: start must be a whole number >= 0, got {start!r}.")
        if decompose_on not in ("cpu", "device"):
            raise OptionError(f'`ConditionMonitor`: decompose_on must be "cpu" or "device", got {decompose_on!r}.')
        chosen = _chosen(model, layers)
        self.every = every
        self.samples = samples
        self.decompose_on = decompose_on
        self.steps = start
        self.records: list[Record] = []
        self._writer = _writer(to)
        self._handles: list[Any] = []
        self._optimizer: Optimizer | None = None
        self._detached = False
        self._resets = counters.snapshot()[0]
        self._counted = Counter(counters.counts())
        self._taps = [_Tap(name, layer) for name, layer in chosen.items()]
        for tap in self._taps:
            self._handles.append(tap.layer.register_forward_pre_hook(tap.enter, with_kwargs=True))
            self._handles.append(tap.layer.register_forward_hook(tap.leave))
        self._arm()

    @property
    def recording(self) -> bool:
        """Whether the step that runs now will be recorded."""
        return not self._detached and self.steps % self.every == 0

    def step(self) -> list[Record]:
        """To be called once after each training step, after backward.

        Returns:
            The new records; none if this step is not recorded or no layer saw a training batch.
        """
        if self._detached:
            raise OptionError("`ConditionMonitor`: step() after detach(). Make a new monitor.")
        new = self._measure() if self.recording else []
        self.steps += 1
        self._arm()
        if new and self._writer is None:
            self.records += new
        elif new and self._writer is not None:
            self.records = new
            self._writer.write(new)
        return new

    def attach(self, optimizer: Optimizer) -> "ConditionMonitor":
        """Call `step` by itself after each step of ``optimizer``, until `detach`."""
        if not isinstance(optimizer, Optimizer):
            raise OptionError(
                f"`ConditionMonitor`: `optimizer` must be a torch.optim.Optimizer, got {type(optimizer).__name__}."
            )
        if self._detached or self._optimizer is not None:
            why = "it is detached" if self._detached else "it is attached to one already, and a step would count twice"
            raise OptionError(f"`ConditionMonitor`: cannot attach to an optimizer: {why}. Make a new monitor.")
        self._optimizer = optimizer
        self._handles.append(optimizer.register_step_post_hook(self._after_step))
        return self

    def detach(self) -> None:
        """Leave the model and the optimizer as they were, and close the file. A second call does nothing."""
        if self._detached:
            return
        self._detached = True
        for handle in self._handles:
            handle.remove()
        for tap in self._taps:
            tap.restore()
        if isinstance(self._writer, _Csv):
            self._writer.file.close()

    def table(self) -> str:
        """`records` as text in columns."""
        rows = [list(_COLUMNS), *([_short(record[name]) for name in _COLUMNS] for record in self.records)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)

    def __enter__(self) -> "ConditionMonitor":
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def __repr__(self) -> str:
        return f"ConditionMonitor({', '.join(tap.name for tap in self._taps)}; every={self.every}, steps={self.steps})"

    def _after_step(self, *_: Any) -> None:
        self.step()

    def _arm(self) -> None:
        for tap in self._taps:
            tap.arm(self.recording)

    @torch.no_grad()
    def _measure(self) -> list[Record]:
        fresh = [(tap, C) for tap in self._taps if (C := tap.fresh(self.samples)) is not None]
        if not fresh:
            return []
        sent = [_eigenvalues(C) if self.decompose_on == "device" else C for _, C in fresh]
        norms = [_total(sink) for tap, _ in fresh for sink in (tap.before, tap.after)]
        resets, total, on_device = counters.snapshot()
        arrived = iter(_to_host([*sent, *(x for x in norms if x is not None), *(x for _, x in on_device)]))
        spectra = [next(arrived) for _ in sent]
        lengths = [None if x is None else float(next(arrived)) for x in norms]
        for event, _ in on_device:
            total[event] += int(next(arrived))
        new = total if resets != self._resets else total - self._counted
        self._resets, self._counted = resets, total
        events = {
            "solver_failures": sum(new.get(event, 0) for event in _FAILED_ATTEMPTS),
            "nonfinite_inputs": new.get("nonfinite_input", 0),
        }
        records: list[Record] = []
        for i, (tap, C) in enumerate(fresh):
            eigenvalues = spectra[i] if self.decompose_on == "device" else _eigenvalues(spectra[i])
            of_layer = {"gradient_before": lengths[2 * i], "gradient_after": lengths[2 * i + 1], **events}
            for group, w in enumerate(eigenvalues):
                where = {"step": self.steps, "layer": tap.name, "group": group}
                records.append({**where, **_of_spectrum(tap.layer, w, C.dtype), **of_layer})
        return records


class _Tap:
    """One layer under watch: its flag, and the norms (), on its device, of the gradients of this step.

    A copied or pickled model takes along a tap without a layer, which does nothing.
    """

    def __init__(self, name: str = "", layer: Any = None) -> None:
        self.name = name
        self.layer = layer
        self.recording = False
        self.before: list[Tensor] = []  # with respect to the output
        self.after: list[Tensor] = []  # with respect to the input
        if layer is not None:
            self.found = (layer.monitored, layer.last_covariance)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Tap":
        return _Tap()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Tap, ()

    def arm(self, recording: bool) -> None:
        """Get ready for the next step."""
        self.recording = recording
        self.before, self.after = [], []  # new ones: a backward pass that comes too late writes into the old
        self.layer.monitored = recording or self.found[0]
        if not self.found[0]:
            self.layer.last_covariance = None  # frees it
        self.seen = self.layer.last_covariance

    def fresh(self, samples: int | None) -> Tensor | None:
        """The covariances (groups or images, d, d) of this step, if there are any."""
        C = self.layer.last_covariance
        if not isinstance(C, Tensor) or C is self.seen or is_transformed(C) or C.numel() == 0:
            return None
        return C if isinstance(self.layer, BatchStatistics) else C[:samples]

    def restore(self) -> None:
        self.recording = False
        self.layer.monitored = self.found[0]
        if not self.found[0]:
            self.layer.last_covariance = self.found[1]

    def enter(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling() or not self._watches(module):
            return None
        alias = [self._alias(x) for x in (*args, *kwargs.values())]
        return tuple(alias[: len(args)]), dict(zip(kwargs, alias[len(args) :], strict=True))

    def leave(self, module: Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not self._watches(module):
            return
        for y in output if isinstance(output, tuple | list) else (output,):
            if _has_gradient(y):
                _listen(y, self.before)

    def _watches(self, module: Module) -> bool:
        return self.recording and module is self.layer and module.training and torch.is_grad_enabled()

    def _alias(self, x: Any) -> Any:
        if not _has_gradient(x):
            return x
        alias = x.view_as(x)
        _listen(alias, self.after)
        return alias


def _has_gradient(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad and not is_transformed(x)


def _listen(x: Tensor, sink: list[Tensor]) -> None:
    # The norm and not the gradient is kept: a gradient is as large as the activation. In float64, where no square overflows.
    x.register_hook(lambda g: sink.append(torch.linalg.vector_norm(g.detach(), dtype=torch.float64)))


def _total(norms: list[Tensor]) -> Tensor | None:
    """The norm of all gradients of a step together, several if the layer ran several times."""
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else None


def _to_host(tensors: list[Tensor]) -> list[Tensor]:
    """All of them in float64 on the CPU, by one transfer from each device."""
    result = list(tensors)
    for device in {x.device for x in tensors}:
        where = [i for i, x in enumerate(tensors) if x.device == device]
        packed = torch.cat([tensors[i].to(torch.float64).flatten() for i in where]).cpu()
        for i, part in zip(where, packed.split([tensors[i].numel() for i in where]), strict=True):
            result[i] = part.view(tensors[i].shape)
    return result


def _eigenvalues(C: Tensor) -> Tensor:
    """(*B, d), ascending, in float64; NaN where ``C`` (*B, d, d) is not finite or, never seen, LAPACK gives up."""
    C = C.to(torch.float64)
    broken = ~torch.isfinite(C).all(-1).all(-1)
    try:
        w: Tensor = torch.linalg.eigvalsh(C.masked_fill(broken[..., None, None], 0))
    except LinAlgError:  # to watch a training must not end it
        return C.new_full(C.shape[:-1], torch.nan)
    return w.masked_fill(broken.unsqueeze(-1), torch.nan)


def _of_spectrum(layer: Any, w: Tensor, dtype: torch.dtype) -> Record:
    """The entries of one group, from its eigenvalues (d,), ascending; ``dtype`` is that of the covariance."""
    d, largest, smallest = len(w), float(w[-1]), float(w[0])
    if not math.isfinite(largest):
        return dict.fromkeys(_OF_GROUP, math.nan) | {"at_floor": None, "kept_rank": None}
    # Without an eps of the layer, what the matrix functions count as 0.
    floor = float(getattr(layer, "eps", 0)) or d * torch.finfo(dtype).eps * max(largest, 0.0)
    singular = smallest <= d * torch.finfo(w.dtype).eps * largest  # a zero matrix too
    pairs = w[1:] > floor  # below it a ratio is rounding over rounding
    at_floor = int((w <= floor).sum())
    kept = d - at_floor
    if isinstance(layer, PCADenoise1d | PCADenoise2d):  # in the layer's dtype, with the layer's idea of a tie
        kept = d if layer.keeps_all else int(Cut(layer.rank, layer.energy).kept(w.to(dtype)).sum())
    return {
        "condition": math.inf if singular else largest / smallest,
        "largest": largest,
        "smallest": smallest,
        "smallest_gap": None if d == 1 else float(w.diff().min()) / largest if largest > 0 else 0.0,
        "mean_ratio": float((w[:-1].clamp(min=0) / w[1:])[pairs].mean()) if bool(pairs.any()) else None,
        "at_floor": at_floor,
        "kept_rank": kept,
    }


def _chosen(model: Module, layers: Iterable[str | Module] | None) -> dict[str, Module]:
    """The layers to watch by name, or the error that says why not."""
    if not isinstance(model, Module):
        raise OptionError(f"`ConditionMonitor`: `model` must be a torch.nn.Module, got {type(model).__name__}.")
    while isinstance(model, DistributedDataParallel | DataParallel) or "_orig_mod" in model._modules:
        model = getattr(model, "module" if "module" in model._modules else "_orig_mod")
    found: dict[str, Module] = {}
    for full, module in model.named_modules():
        # A compiled layer stands in the model twice: as a wrapper, which passes attributes through, and itself.
        if hasattr(module, "monitored") and hasattr(module, "last_covariance") and "_orig_mod" not in module._modules:
            parts = [part for part in full.split(".") if part not in _WRAPPERS]
            found[".".join(parts) or type(module).__name__] = module
    if not found:
        raise OptionError(
            f"`ConditionMonitor`: `model` must hold a layer with a covariance, such as DecorrelatedBatchNorm2d or "
            f"CovariancePool2d; {type(model).__name__} has none. Put one in, or see `convert_batchnorm`."
        )
    chosen = found
    if layers is not None:
        wanted = [layers] if isinstance(layers, str | Module) else list(layers)
        chosen = {name: module for name, module in found.items() if name in wanted or any(module is x for x in wanted)}
        known = [*found, *found.values()]
        unknown = [x if isinstance(x, str) else type(x).__name__ for x in wanted if not any(x is y or x == y for y in known)]
        if unknown or not chosen:
            raise OptionError(
                f"`ConditionMonitor`: layers must be among {', '.join(found)}, got {', '.join(unknown) or 'none'}."
            )
    for name, module in chosen.items():
        if any(getattr(hook, "__self__", None).__class__ is _Tap for hook in module._forward_hooks.values()):
            raise OptionError(f"`ConditionMonitor`: another monitor watches layer {name} already; detach() that one first.")
    return chosen


def _short(x: Any) -> str:
    return "-" if x is None else f"{x:.4g}" if isinstance(x, float) else str(x)


def _writer(to: Any) -> "_Csv | _Scalars | None":
    if to is None:
        return None
    if isinstance(to, str | os.PathLike):
        return _Csv(Path(to))
    if callable(getattr(to, "add_scalar", None)):
        return _Scalars(to)
    raise OptionError(
        f"`ConditionMonitor`: to must be None, the path of a CSV file, or an object with add_scalar(tag, value, step), "
        f"got {type(to).__name__}."
    )


class _Scalars:
    """Tags layer/name, or layer/group/name where there are several groups. What is not known is left out."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def write(self, records: list[Record]) -> None:
        groups = Counter(record["layer"] for record in records)
        for record in records:
            layer, group, step = record["layer"], record["group"], record["step"]
            place = layer if groups[layer] == 1 else f"{layer}/{group}"
            tags = {name: f"{place}/{name}" for name in _OF_GROUP}
            if group == 0:
                tags |= {name: f"{layer}/{name}" for name in _OF_LAYER}
            for name, tag in tags.items():
                if record[name] is not None:
                    self.writer.add_scalar(tag, record[name], step)


class _Csv:
    """Appends to a file, one flush for each recorded step, so that a kill loses at most the line being written."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            self._repair(path)
        self.file = path.open("a", newline="", encoding="utf-8")
        if self.file.tell() == 0:
            self._append([_COLUMNS])

    def write(self, records: list[Record]) -> None:
        self._append([[record[name] for name in _COLUMNS] for record in records])

    def _append(self, rows: Iterable[Iterable[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self.file.write(text.getvalue())
        self.file.flush()

    def _repair(self, path: Path) -> None:
        """Cut off a last line that was not finished, and say so; refuse a file that is not ours."""
        expected = ",".join(_COLUMNS)
        with path.open("r+b") as file:
            header = file.readline(_TAIL)
            if not header.endswith(b"\n") and expected.encode().startswith(header):  # killed in the first line
                file.truncate(0)
                return
            if header.decode("utf-8", "replace").strip() != expected:
                raise OptionError(
                    f"`ConditionMonitor`: {path} must have the columns {expected} to be appended to, but begins with "
                    f"{header[:200]!r}. It is unchanged; choose another file."
                )
            size = file.seek(0, os.SEEK_END)
            begin = file.seek(max(0, size - _TAIL))
            tail = file.read()
            whole = tail.rfind(b"\n") + 1
            if whole < len(tail):
                file.truncate(begin + whole)
                warnings.warn(
                    f"`ConditionMonitor`: the last line of {path} was not finished and is cut off: {tail[whole:]!r}.",
                    stacklevel=4,
                )
