"""New processes, forked from a server that has imported torch and the laboratory and has computed nothing."""

import faulthandler
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from spectralgrad.linalg.solvers import team

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # theirs: on a busy machine threads that spin take ten times as long
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        *("sklearn.datasets", "spectralgrad.nn", "torch.distributed"),
        *("spectralgrad_lab.cli.app", "spectralgrad_lab.style_network.train", "spectralgrad_lab.training.train"),
    ]
)


def start(work: Callable[..., None], *args: Any, threads: int = 1, lifetime: float = 60.0) -> BaseProcess:
    """``work(*args)`` in a process of its own, which ends with the stacks of its threads if it takes longer."""
    process = SERVER.Process(target=_run, args=(work, args, threads, lifetime))
    process.start()
    return process


def _run(work: Callable[..., None], args: tuple[Any, ...], threads: int, lifetime: float) -> None:
    faulthandler.dump_traceback_later(lifetime, exit=True)
    # The server never had OpenMP's threads, so none were lost in the fork: this process may have its own.
    team._forked = False
    torch.set_num_threads(threads)
    work(*args)
