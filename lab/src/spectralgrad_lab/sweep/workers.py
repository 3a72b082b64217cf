"""Trials on several processes of this machine. A worker takes one trial after the other; what it finds goes to the store."""

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from typing import Any, NamedTuple

import torch

from spectralgrad_lab.deadline import Deadline, OutOfTime
from spectralgrad_lab.records.machine import cores
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial

from .local import Event, FirstEpoch, Listener, Train, begin, forward, news, record_crash, silence, uses_gpu

POLL = 0.5  # seconds between two looks at the records of running trials
ATTEMPTS = 2  # at a trial whose worker dies
DONE, STOPPED, DIED = "done", "stopped", "died"  # what becomes of a trial in a worker


class _Work(NamedTuple):
    """What every worker is told once."""

    threads: int
    folder: Path  # of the records
    data: Path | None
    device: str
    train: Train
    deadline: Deadline


class _Worker:
    """A process and our end of its pipe; it has at most one trial."""

    def __init__(self, number: int, work: "_Work") -> None:
        context = multiprocessing.get_context("spawn")  # a forked child cannot use CUDA, nor torch's threads
        self.number = number
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, work))
        self.trial: Trial | None = None
        with _gpu(work.device, number), _deaf_to_interrupts():
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
    trials: list[Trial],
    store: Store,
    *,
    jobs: int,
    data: Path | None,
    device: str,
    hear: Listener,
    train: Train,
    deadline: Deadline,
) -> None:
    """Run the trials, ``jobs`` at a time; see `sweep.run_trials`.

    A worker that dies (killed, out of memory) has its trial tried again, once; then the trial has failed. An exception that
    leaves the training is no result of a trial but a fault around it: it ends the sweep, and what was trained stays. When
    the deadline is over, or a worker found no time for another epoch or trial, no trial is begun, and the sweep ends once
    every worker has stopped after its epoch.
    """
    work = _Work(max(1, cores() // jobs), store.folder.resolve(), data, device, train, deadline)
    waiting, attempts, heard = list(reversed(trials)), dict.fromkeys(trials, 0), dict[Trial, int]()
    workers = [_Worker(number, work) for number in range(jobs)]
    is_cut = False  # the deadline left something undone
    try:
        while waiting or any(worker.trial for worker in workers):
            if waiting and deadline.is_over:
                waiting, is_cut = [], True
                continue
            for worker in workers:
                if worker.trial is None and waiting:
                    attempts[waiting[-1]] += 1
                    begin(waiting[-1], store, hear)
                    worker.give(waiting.pop())
            busy = [worker for worker in workers if worker.trial]
            ready = wait([worker.pipe for worker in busy], POLL)
            for worker in busy:
                if worker.pipe not in ready or worker.trial is None:
                    continue
                trial, answer = worker.trial, _read(worker.pipe)
                worker.trial = None
                outcome = store.outcome(trial)
                if answer == STOPPED:
                    waiting, is_cut = [], True
                    continue
                if answer == DIED:
                    worker.stop()
                    workers[workers.index(worker)] = _Worker(worker.number, work)
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
    if is_cut:
        raise OutOfTime


def _read(pipe: Connection) -> str:
    """What became of a worker's trial; raises what its training raised."""
    try:
        answer = pipe.recv()
    except (EOFError, OSError):
        return DIED
    if isinstance(answer, BaseException):
        raise answer
    return str(answer)


def _cause(exitcode: int | None) -> str:
    """How the process ended, in words.

    >>> _cause(-9)
    'its process was killed by SIGKILL, twice'
    """
    if exitcode is not None and exitcode < 0:
        return f"its process was killed by {signal.Signals(-exitcode).name}, twice"
    return f"its process ended with code {exitcode}, twice"


def _work(pipe: Connection, work: _Work) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of us: the parent answers it, and ends us
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(work.threads)
    store = Store(work.folder)
    to_begin = 0.0  # seconds until the first epoch of a trial ends, as this worker's last one took
    while True:
        try:
            trial = Trial.from_json(pipe.recv())
        except EOFError:
            return
        try:
            work.deadline.require_time(to_begin)
            first = FirstEpoch(silence)  # our epochs are heard by their records
            how: dict[str, Any] = {"data": work.data, "device": work.device, "deadline": work.deadline}
            work.train(trial, store, progress=forward(trial, first), **how)
            to_begin = first.seconds or to_begin
        except OutOfTime:
            pipe.send(STOPPED)
        except Exception as error:
            pipe.send(_sendable(error))
        else:
            pipe.send(DONE)


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


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """What is started inside never hears Ctrl-C, not even while it imports torch; ours comes after the block."""
    ensure_running()  # the process that multiprocessing starts beside the first one: it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _sendable(error: Exception) -> Any:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
