"""The monitor: which steps are recorded, and what is measured in them, with one transfer from each device."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from spectralgrad import counters
from spectralgrad.errors import OptionError
from spectralgrad.linalg.precision import in_widest
from spectralgrad.validation import is_whole

from . import record
from .failures import Failures
from .layers import chosen_layers
from .record import Record
from .spectrum import eigenvalues_of, entries_of_spectrum
from .tap import Tap
from .writers import CsvFile, writer_for

__all__ = ["ConditionMonitor"]


class ConditionMonitor:
    """Records condition numbers, gaps, ranks, gradient norms and solver failures of a model's layers, step by step.

    With l_1 >= ... >= l_d >= 0 the eigenvalues of a layer's covariance before eps is added, decomposed in float64,

        condition = l_1 / l_d,                       condition_range = l_1 / l_r,
        smallest_gap = min (l_i - l_(i+1)) / l_1,    mean_ratio = mean l_i / l_(i-1),

    with r the rank that the covariance can have: min(d, samples - 1, inputs).

    Every recorded step gives one flat dict for each layer and group; docs/layers/diagnostics.md explains its entries.
    Training is bit for bit the same as without the monitor.

    Args:
        model: any model with layers of `spectralgrad.nn` that have a covariance; wrapped or compiled too.
        layers: names or modules to watch; None for all.
        every: record the first step and then every so many; the others cost nothing.
        to: None keeps all records in `records`; a path appends to a CSV file; an object with
            ``add_scalar(tag, value, step)``, as TensorBoard's SummaryWriter, gets every number. With a path or a writer
            `records` holds the last recorded step only.
        samples: of layers with one covariance per image (`CovariancePool2d`), how many images; None for all.
        decompose_on: "cpu", after one transfer; or "device", where the covariance lies.
        start: the number of the first step, for a training that goes on.
        inputs: by the name of a layer, of how many numbers the layer before it makes each sample: 27 for a 3 x 3
            convolution of 3 channels. More outputs than that are linearly dependent.

    Raises:
        OptionError: no layer to watch, an unknown one, one that another monitor watches, an option out of its range, or
            a CSV file with other columns. Nothing is changed then.

    >>> import torch, spectralgrad as sg
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), sg.nn.DecorrelatedBatchNorm1d(2))
    >>> _ = torch.nn.init.eye_(model[0].weight), torch.nn.init.zeros_(model[0].bias)
    >>> with sg.diagnostics.ConditionMonitor(model) as monitor:
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
        inputs: Mapping[str, int] | None = None,
    ) -> None:
        for name, value in (("every", every), ("samples", samples)):
            if not (is_whole(value) or (name == "samples" and value is None)):
                raise OptionError(f"`ConditionMonitor`: {name} must be a whole number >= 1, got {value!r}.")
        if not (is_whole(start) or (start == 0 and isinstance(start, int))):
            raise OptionError(f"`ConditionMonitor`: start must be a whole number >= 0, got {start!r}.")
        if decompose_on not in ("cpu", "device"):
            raise OptionError(f'`ConditionMonitor`: decompose_on must be "cpu" or "device", got {decompose_on!r}.')
        for name, value in (inputs or {}).items():
            if not is_whole(value):
                raise OptionError(f"`ConditionMonitor`: inputs must be whole numbers >= 1, got {value!r} for {name}.")
        chosen = chosen_layers(model, layers, inputs or ())
        self.every = every
        self.samples = samples
        self.decompose_on = decompose_on
        self.steps = start
        self.inputs = dict(inputs or {})
        self.records: list[Record] = []
        self._writer = writer_for(to)
        self._handles: list[Any] = []
        self._optimizer: Optimizer | None = None
        self._detached = False
        self._failures = Failures()
        self._taps = [Tap(name, layer) for name, layer in chosen.items()]
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
        if isinstance(self._writer, CsvFile):
            self._writer.file.close()

    def table(self) -> str:
        """`records` as text in columns."""
        return record.table(self.records)

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
        sent = [eigenvalues_of(C) if self.decompose_on == "device" else C for _, C in fresh]
        norms = [x for tap, _ in fresh for x in tap.gradient_norms()]
        counted = counters.snapshot()
        arrived = iter(_to_host([*sent, *(x for x in norms if x is not None), *(x for _, x in counted.on_devices)]))
        spectra = [next(arrived) for _ in sent]
        lengths = [None if x is None else float(next(arrived)) for x in norms]
        events = self._failures.since_last(counted, arrived)
        records: list[Record] = []
        for i, (tap, C) in enumerate(fresh):
            eigenvalues = spectra[i] if self.decompose_on == "device" else eigenvalues_of(spectra[i])
            of_layer = {"gradient_before": lengths[2 * i], "gradient_after": lengths[2 * i + 1], **events}
            for group, w in enumerate(eigenvalues):
                where = {"step": self.steps, "layer": tap.name, "group": group}
                records.append({**where, **entries_of_spectrum(tap.layer, w, C.dtype, self._most(tap)), **of_layer})
        return records

    def _most(self, tap: Tap) -> int | None:
        """The rank that a covariance of the layer can have; None where nothing is known."""
        limits = [self.inputs.get(tap.name), None if tap.samples is None else tap.samples - 1]
        return min((limit for limit in limits if limit is not None), default=None)


def _to_host(tensors: list[Tensor]) -> list[Tensor]:
    """All of them in float64 on the CPU, by one transfer from each device."""
    result = list(tensors)
    for device in {x.device for x in tensors}:
        where = [i for i, x in enumerate(tensors) if x.device == device]
        packed = torch.cat([in_widest(tensors[i]).flatten() for i in where]).cpu().double()
        for i, part in zip(where, packed.split([tensors[i].numel() for i in where]), strict=True):
            result[i] = part.view(tensors[i].shape)
    return result
