"""Checkpoints that are whole or not there: the state of a training after an epoch, and of all generators."""

import io
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import Module

from spectralgrad.errors import SpectralError
from spectralgrad_lab.files import write_whole

FORMAT = 1
State = dict[str, Any]


class CheckpointError(SpectralError, RuntimeError):
    """A checkpoint cannot be written, or is not one."""


class DamagedCheckpoint(CheckpointError):
    """A file that is there and is no checkpoint of this trial: it is set aside, and the trial starts over."""


def save(path: Path, state: State) -> None:
    """Write a state, whole or not at all.

    Raises:
        CheckpointError: the disk is full or the like; the old checkpoint stands.
    """
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    try:
        write_whole(path, buffer.getbuffer())
    except OSError as error:
        raise CheckpointError(
            f"`train`: the checkpoint {path} cannot be written: {error.strerror or error}. The records stand, and the "
            "checkpoint before it. Make room, then run the same command: it goes on from there."
        ) from error


def load(path: Path, key: str) -> State | None:
    """The state that `save` wrote, on the CPU; None if there is none.

    Raises:
        DamagedCheckpoint: a damaged file, one of another version or of another trial.
        CheckpointError: it cannot be read.
    """
    if not path.exists():
        return None
    try:
        state: State = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"`train`: the checkpoint {path} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # of a damaged file torch raises whatever it comes to
        raise DamagedCheckpoint(f"`train`: the checkpoint {path} is damaged ({type(error).__name__})") from error
    if not isinstance(state, dict) or (state.get("format"), state.get("key")) != (FORMAT, key):
        raise DamagedCheckpoint(f"`train`: {path} is no checkpoint of trial {key} in format {FORMAT}")
    return state


def bases_of(model: Module) -> State:
    """The eigenvectors from which layers with warm_start go on, by the layers' names: no part of a state_dict."""
    found = {name: getattr(layer, "last_basis", None) for name, layer in model.named_modules()}
    return {name: basis for name, basis in found.items() if basis is not None}


def set_bases(model: Module, bases: State, device: torch.device) -> None:
    """Give the layers what `bases_of` found; the others start anew."""
    for name, layer in model.named_modules():
        if hasattr(layer, "last_basis"):
            layer.last_basis = bases[name].to(device) if name in bases else None


def random_state() -> State:
    """The state of python's, numpy's and torch's generators, in types that load with weights_only."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 - the global one is what others draw from
    return {
        "python": (version, torch.tensor(words), gauss),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position), int(has_gauss), float(cached)),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: State) -> None:
    """Put all generators where `random_state` found them."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == (torch.cuda.device_count() if torch.cuda.is_available() else 0):
        torch.cuda.set_rng_state_all(state["cuda"])


def seed_all(seed: int) -> None:
    """Start every generator."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Generators that start at ``seed`` inside the block; the caller's go on afterwards as if nothing had been drawn.

    >>> before = torch.get_rng_state()
    >>> with own_randomness(3):
    ...     _ = torch.rand(2)
    >>> bool((torch.get_rng_state() == before).all())
    True
    """
    before = random_state()
    seed_all(seed)
    try:
        yield
    finally:
        set_random_state(before)
