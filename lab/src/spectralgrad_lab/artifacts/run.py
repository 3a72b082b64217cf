"""From an artifact to its records: train what it needs, or compute it. What has a record is not run again."""

from collections.abc import Callable
from pathlib import Path

import torch

from spectralgrad_lab.deadline import NEVER, Deadline
from spectralgrad_lab.records.results import Scale
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.style_network.workplace import Workplace, silence
from spectralgrad_lab.sweep.local import Listener, Train, run_trials, uses_gpu

from .spec import Spec


def run_spec(
    spec: Spec,
    scale: Scale,
    store: Store,
    data: Path | None = None,
    jobs: int = 1,
    ray: str | None = None,
    device: str = "auto",
    progress: Listener | None = None,
    train: Train | None = None,
    say: Callable[[str], None] | None = None,
    deadline: Deadline = NEVER,
) -> None:
    """Train or compute what an artifact needs at a scale, where there is no record of it yet.

    Args:
        spec: of the registry.
        scale: smoke, short or paper.
        store: where the records are, and go.
        data: folder of the data sets.
        jobs: worker processes on this machine; 1 trains in this one.
        ray: address of a Ray cluster, or "local" to start one here; its nodes must see the folders under the same path.
        device: auto, cpu or cuda.
        progress: hears of every epoch and every end.
        train: in place of `run_trial`.
        say: told, in words, how far an artifact is that has no trials (style transfer).
        deadline: looked at before each training, after each of its epochs, and before something is computed.

    Raises:
        OptionError: the options clash.
        OutOfTime: the deadline is over and something is left to do; the same call goes on with it.
        SpectralError, OSError: the data or the store cannot be used. A trial that fails to train is a result, not an error.
    """
    if spec.entries is not None:
        run_trials(
            spec.trials(scale), store, data=data, jobs=jobs, ray=ray, device=device, progress=progress, train=train,
            deadline=deadline,
        )  # fmt: skip
    if not spec.is_computed or store.load_computed(spec.id, scale) is not None:
        return
    deadline.require_time()
    if spec.make is not None:
        place = Workplace(store.folder, data, device, say or silence, deadline=deadline)
        store.save_computed(spec.id, scale, spec.make(scale, place), gpu=uses_gpu(device) and torch.cuda.is_available())
    elif spec.compute is not None:
        store.save_computed(spec.id, scale, spec.compute(scale))
