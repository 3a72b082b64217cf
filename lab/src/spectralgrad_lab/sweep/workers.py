"""Trials on several processes of this machine. A worker takes one trial after the other; what it finds goes to the store."""

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial

from .local import Event, Listener, Train, cores, news, record_crash, uses_gpu

POLL = 0.5  # seconds between two looks at the records of running trials
ATTEMPTS = 2  # at a trial whose worker dies


class _Worker:
    """A process and our end of its pipe; it has at most one trial."""

    def __init__(self, number: int, share: int, folder: Path, data: Path | None, device: str, train: Train) -> None:
        context = multiprocessing.get_context("spawn")  # a forked child cannot use CUDA, nor torch's threads
        self.number = number
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, share, folder, data, device, train))
        self.trial: Trial | None = None
        with _gpu(device, number):
            self.process.start()
        theirs.close()  # or the end of the worker would not end the pipe

    def give(self, trial: Trial) -> None:
        self.trial = trial
        with suppress(OSError):  # it is dead already, which `wait` shows next
            self.pipe.send(trial.as_json())

    def stop(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def run_in_workers(
    trials: list[Trial], store: Store, *, jobs: int, data: Path | None, device: str, hear: Listener, train: Train
) -> None:
    """Run the trials, ``jobs`` at a time; see `sweep.run_trials`.

    A worker that dies (killed, out of memory) has its trial tried again, once; then the trial has failed. An exception that
    leaves the training is no result of a trial but a fault around it: it ends the sweep, and what was trained stays.
    """
    share, folder = max(1, cores() // jobs), store.folder.resolve()

    def start(number: int) -> _Worker:
        return _Worker(number, share, folder, data, device, train)

    waiting, attempts, heard = list(reversed(trials)), dict.fromkeys(trials, 0), dict[Trial, int]()
    workers = [start(number) for number in range(jobs)]
    try:
        while waiting or any(worker.trial for worker in workers):
            for worker in workers:
                if worker.trial is None and waiting:
                    attempts[waiting[-1]] += 1
                    worker.give(waiting.pop())
            busy = [worker for worker in workers if worker.trial]
            ready = wait([worker.pipe for worker in busy], POLL)
            for worker in busy:
                if worker.pipe not in ready or worker.trial is None:
                    continue
                trial, died = worker.trial, _read(worker.pipe)
                worker.trial = None
                outcome = store.outcome(trial)
                if died:
                    worker.stop()
                    workers[workers.index(worker)] = start(worker.number)
                    if outcome is None and attempts[trial] < ATTEMPTS:
                        waiting.append(trial)
                        continue
                    outcome = outcome or record_crash(trial, store, _cause(worker.process.exitcode))
                assert outcome is not None, "a training that returns has ended its record"
                hear(Event(trial, len(outcome.epochs), outcome))
            news([worker.trial for worker in workers if worker.trial], store, heard, hear)
    finally:
        for worker in workers:
            worker.stop()


def _read(pipe: Connection) -> bool:
    """Whether the worker died; raises what its training raised."""
    try:
        answer = pipe.recv()
    except (EOFError, OSError):
        return True
    if isinstance(answer, BaseException):
        raise answer
    return False


def _cause(exitcode: int | None) -> str:
    """How the process ended, in words.

    >>> _cause(-9)
    'its process was killed by SIGKILL, twice'
    """
    if exitcode is not None and exitcode < 0:
        return f"its process was killed by {signal.Signals(-exitcode).name}, twice"
    return f"its process ended with code {exitcode}, twice"


def _work(pipe: Connection, share: int, folder: Path, data: Path | None, device: str, train: Train) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of us: the parent answers it, and ends us
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(share)
    store = Store(folder)
    while True:
        try:
            trial = Trial.from_json(pipe.recv())
        except EOFError:
            return
        try:
            train(trial, store, data=data, device=device)
        except Exception as error:
            pipe.send(_sendable(error))
        else:
            pipe.send("done")


def _die_with_parent() -> None:
    """A sweep that is killed leaves no worker behind, which would hold the locks of its trial."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


@contextmanager
def _gpu(device: str, number: int) -> Iterator[None]:
    """What is started inside sees one GPU: workers take the visible ones in turn, and may share them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not uses_gpu(device):
        yield
        return
    names = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    os.environ["CUDA_VISIBLE_DEVICES"] = names[number % len(names)]
    try:
        yield
    finally:
        if visible is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible


def _sendable(error: Exception) -> Any:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
