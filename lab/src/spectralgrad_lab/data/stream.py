"""Picture files that worker processes decode batch by batch: memory holds the batches in flight, and no more.

A worker gets rows of numbers, (file, down, right, mirrored), and gives back a batch of uint8 images. All random numbers are
drawn by the one who asks, so that the number of workers changes nothing.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data import Dataset as MapStyle

from spectralgrad.errors import OptionError

from .dataset import DataError
from .decode import BrokenFile, as_tensor, decode

if TYPE_CHECKING:
    from PIL.Image import Image

WORKERS = "SPECTRALGRAD_WORKERS"
MOST_WORKERS = 16
AHEAD = 2  # batches that each worker has begun or finished before they are asked for
STAND_INS = 100  # broken files in a row, after which it is no set of pictures


class Files(NamedTuple):
    """Picture files under a folder, with their labels.

    names: relative, as bytes in one array: of a million python objects every worker would come to hold a copy.
    """

    root: Path
    names: "np.ndarray[tuple[int], np.dtype[np.bytes_]]"
    labels: Tensor

    def name(self, index: int) -> str:
        return os.fsdecode(bytes(self.names[index]))

    def path(self, index: int) -> Path:
        return self.root / self.name(index)


def listed(root: Path, names: Iterable[str], labels: Sequence[int]) -> Files:
    """The files of a list; absolute names are taken as they are."""
    return Files(root, np.array([os.fsencode(name) for name in names], np.bytes_), torch.tensor(labels, dtype=torch.int64))


class Read(NamedTuple):
    """A batch that a worker has decoded.

    x: images (B, 3, crop, crop), uint8. y: labels (B,). broken: names of the files that were skipped. error: why nothing can
    be read, if so.
    """

    x: Tensor
    y: Tensor
    broken: tuple[str, ...]
    error: str = ""


class Decoder(MapStyle[Read]):
    """Batches of pictures, resized to a square of ``size`` pixels and cut to one of ``crop``.

    Args:
        who: the data set.
        files: where the pictures are.
        size: both sides after resizing.
        crop: both sides of what is kept.
        skip: whether a broken file is passed over; else it ends the reading.
        stand_in: whether the next whole file of the list takes a broken one's place; else the batch is smaller.
    """

    def __init__(self, who: str, files: Files, size: int, crop: int, *, skip: bool = False, stand_in: bool = True) -> None:
        self.who, self.files, self.size, self.crop = who, files, size, crop
        self.skip, self.stand_in = skip, stand_in

    def __getitem__(self, rows: "np.ndarray[tuple[int, int], np.dtype[np.int64]]") -> Read:
        """The batch of rows (B, 4): file, down, right, mirrored."""
        labels: list[int] = []
        broken: list[str] = []
        x = torch.empty(len(rows), 3, self.crop, self.crop, dtype=torch.uint8)
        if get_worker_info() is not None:
            x.share_memory_()  # now: a copy when it leaves would leave the heap in pieces, of hundreds of MiB
        try:
            for index, *place in rows.tolist():
                found = self._whole(index, broken)
                if found is not None:
                    x[len(labels)] = as_tensor(self.square(found[0], *place))
                    labels.append(found[1])
        except DataError as error:  # raised in the asking process, without this one's traceback in its words
            return Read(x[:0], torch.empty(0), tuple(broken), str(error))
        return Read(x[: len(labels)], torch.tensor(labels, dtype=torch.int64), tuple(broken))

    def _whole(self, index: int, broken: list[str]) -> "tuple[Image, int] | None":
        """The picture of a file and its label, or those of the next whole one; None to leave it out. Notes broken ones."""
        for tried in range(STAND_INS):
            at = (index + tried) % len(self.files.names)
            try:
                return decode(self.who, self.files.path(at)), int(self.files.labels[at])
            except BrokenFile:
                if not self.skip:
                    raise
            broken.append(self.files.name(at))
            if not self.stand_in:
                return None
        raise DataError(
            f"`{self.who}`: {self.files.path(index)} and the {STAND_INS - 1} files after it are broken: more than can be "
            "skipped. Unpack the archive again."
        )

    def square(self, image: "Image", down: int, right: int, mirrored: int) -> "Image":
        """What is kept of a picture."""
        from PIL.Image import Resampling, Transpose

        if image.size != (self.size, self.size):
            image = image.resize((self.size, self.size), Resampling.BILINEAR)
        image = image.crop((right, down, right + self.crop, down + self.crop))
        return image.transpose(Transpose.FLIP_LEFT_RIGHT) if mirrored else image


def worker_count() -> int:
    """Processes that decode for this one: SPECTRALGRAD_WORKERS, or its share of the machine's cores, 16 at most.

    Raises:
        OptionError: the variable is no whole number >= 0.
    """
    came = os.environ.get(WORKERS)
    if came is not None:
        if not came.isdecimal():
            raise OptionError(f"`{WORKERS}`: must be a whole number >= 0, of processes that decode images, got {came!r}.")
        return int(came)
    if multiprocessing.current_process().daemon:  # which may have no children
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_WORKERS, max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def stream(decoder: Decoder, batches: Sequence[Tensor], *, pinned: bool = False) -> Iterator[Read]:
    """The batches of rows, decoded, in their order.

    Raises:
        DataError: a file that is broken and not skipped, missing or unreadable; or a worker that was killed.
    """
    workers = min(worker_count(), len(batches)) if len(batches) > 1 else 0
    loader: DataLoader[Read] = DataLoader(
        decoder,
        batch_size=None,  # a row of the sampler is a batch already
        sampler=[rows.numpy() for rows in batches],  # a tensor would travel through shared memory
        num_workers=workers,
        prefetch_factor=AHEAD if workers else None,
        collate_fn=_same,
        pin_memory=pinned,
        generator=torch.Generator(),  # else it draws from the one that the training draws from
    )
    found = _begun(loader)
    while True:
        try:
            read = next(found)
        except StopIteration:
            return
        except (RuntimeError, MemoryError) as error:
            words = next(iter(str(error).splitlines()), type(error).__name__)
            raise DataError(
                f"`{decoder.who}`: a process that decodes images has died ({words}): too little memory or room in /dev/shm, "
                f"maybe. Set {WORKERS}=1, or 0 for none, and run the same command: it goes on."
            ) from error
        if read.error:
            raise DataError(read.error)
        yield read


def _begun(loader: "DataLoader[Read]") -> Iterator[Read]:
    """The loader's iterator, whose workers' deaths are told when the next batch is asked for.

    torch would raise in a signal's handler, anywhere in the training step, which would then count as the one that failed.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGCHLD) if is_main else None
    found = iter(loader)
    if before is not None:
        signal.signal(signal.SIGCHLD, before)
    return found


def _same(read: Any) -> Any:
    return read
