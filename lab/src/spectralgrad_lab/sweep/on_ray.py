"""Trials on a Ray cluster. A lost node's trials are tried again; what they found before goes on from their checkpoints."""

import socket
import time
from pathlib import Path
from typing import Any

from spectralgrad.errors import OptionError
from spectralgrad_lab.deadline import NEVER, Deadline, OutOfTime
from spectralgrad_lab.records.lock import BusyError
from spectralgrad_lab.records.store import Store, StoreError
from spectralgrad_lab.records.trial import Trial

from .local import Event, Listener, Train, news, record_crash

POLL = 0.5  # seconds between two looks at the records of running trials
RETRIES = 3  # of a trial whose worker or node is lost
PATIENCE = 60.0  # seconds that a trial waits for the lock of the one that was lost
KNOCK = 5.0  # seconds to reach a cluster
GPU_SHARE = {"digits": 1 / 8, "resnet18": 1 / 4}  # of a GPU, by model: small trials share one; others have it alone


def run_on_ray(
    trials: list[Trial],
    store: Store,
    *,
    address: str,
    data: Path | None,
    device: str,
    hear: Listener,
    train: Train,
    deadline: Deadline = NEVER,
) -> None:
    """Run the trials as tasks of a Ray cluster; see `sweep.run_trials`.

    Args:
        address: of the cluster, or "local": one is started on this machine and ended with the sweep. The nodes have
            spectralgrad installed and see the folders of the records and of the data under the same path.

    Raises:
        OptionError: Ray is not installed, or nothing answers at the address.
        StoreError: a node wrote its record elsewhere.
        OutOfTime: the deadline is over, and every task has stopped after its epoch.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise OptionError("`run`: --ray needs Ray. Install it with pip install 'spectralgrad-lab[ray]'.") from None
    mine = not ray.is_initialized()
    if mine:
        _connect(ray, address)
    try:
        _sweep(ray, trials, store, data, device, hear, train, deadline)
    finally:
        if mine:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    try:
        if address == "local":
            ray.init(address="local", include_dashboard=False, log_to_driver=False)
            return
        if address != "auto":
            host, _, port = address.removeprefix("ray://").rpartition(":")
            with socket.create_connection((host, int(port)), KNOCK):  # Ray itself knocks for minutes
                pass
        ray.init(address=address, log_to_driver=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise OptionError(
            f"`run`: no Ray cluster at {address!r} ({str(error).splitlines()[0]}). "
            "Give HOST:PORT of one that ray start --head began, auto, or local to start one here."
        ) from error


def _sweep(
    ray: Any,
    trials: list[Trial],
    store: Store,
    data: Path | None,
    device: str,
    hear: Listener,
    train: Train,
    deadline: Deadline,
) -> None:
    task = ray.remote(_task)
    gpus = device != "cpu" and ray.cluster_resources().get("GPU", 0) > 0
    running, heard = dict[Any, Trial](), dict[Trial, int]()
    for trial in trials:
        share = GPU_SHARE.get(trial.model, 1.0) if gpus else 0
        options = task.options(num_cpus=1, num_gpus=share, max_retries=RETRIES, retry_exceptions=False)
        running[options.remote(trial.as_json(), str(store.folder.resolve()), data, device, train, deadline)] = trial
    is_cut = False  # the deadline left something undone
    try:
        while running:
            done, _ = ray.wait(list(running), timeout=POLL)
            for reference in done:
                is_cut |= not _end(ray, reference, running.pop(reference), store, hear)
            news(list(running.values()), store, heard, hear)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
    if is_cut:
        raise OutOfTime


def _end(ray: Any, reference: Any, trial: Trial, store: Store, hear: Listener) -> bool:
    """Take up what a task has left; whether its trial has ended, and was not stopped."""
    try:
        if not ray.get(reference):
            return False
    except ray.exceptions.RayTaskError as error:  # raised inside the training: a fault around the trials, not a result
        raise error.cause from None
    except ray.exceptions.RayError as error:
        if store.outcome(trial) is None:
            record_crash(trial, store, f"lost {RETRIES + 1} times by Ray ({type(error).__name__})")
    outcome = store.outcome(trial)
    if outcome is None:
        raise StoreError(
            f"`run`: a node of the cluster ended trial {trial.key}, but its record is not in {store.folder}. "
            "Choose a folder with --records that all nodes share."
        )
    hear(Event(trial, len(outcome.epochs), outcome))
    return True


def _task(trial: str, folder: str, data: Path | None, device: str, train: Train, deadline: Deadline) -> bool:
    """On a node: whether the trial has ended, and was not stopped by the deadline.

    A node that was given up for lost may still be at it: then wait for its end.
    """
    store, until = Store(Path(folder)), time.monotonic() + PATIENCE
    while True:
        if store.outcome(Trial.from_json(trial)) is not None:
            return True
        try:
            deadline.require_time()
            train(Trial.from_json(trial), store, data=data, device=device, deadline=deadline)
            return True
        except OutOfTime:
            return False
        except BusyError:
            if time.monotonic() > until:
                raise
            time.sleep(1.0)
