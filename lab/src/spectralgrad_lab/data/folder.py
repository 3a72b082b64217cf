"""Folders of images in ImageNet's form, train/<class>/*.JPEG and val/<class>/*.JPEG, decoded while a network trains."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from spectralgrad.errors import OptionError

from .batches import _STRIDE
from .dataset import LEVELS, DataError, find_folder, subset
from .images import list_images
from .stream import Decoder, Files, Read, listed, stream, worker_count

FOLDERS = ("imagenet", "ILSVRC2012", "folder")
RESIZED = 256  # pixels of both sides, before the crop (ECCV22 B.2)
SIZE = 224
CPU = torch.device("cpu")
BROKEN = ("refuse", "skip")
# Of ImageNet's training images, as everybody has them; other folders are standardised by the same.
MEAN, STD = (
    (LEVELS - 1) * torch.tensor(by_channel, dtype=torch.float64)
    for by_channel in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
)


@dataclass(frozen=True, eq=False)
class Streamed:
    """Images that worker processes decode batch by batch: a `Source`.

    For training each is resized to 256 x 256, cut to a random 224 x 224 and mirrored with probability 1/2; for test, and
    without augmentation, the middle is cut out. Memory holds the batches in flight: two for each worker, and one here.

    Args:
        train, test: the files.
        classes: how many.
        skip: whether broken files are skipped. In training the next whole file of the list takes the place of a broken
            one, so that batches keep their size; in a test it is left out.
        device: where the batches are wanted.
        met: the broken files so far, in order.
        mean, std: by channel, in the units of the images.
    """

    train: Files
    test: Files
    classes: int
    skip: bool = False
    device: torch.device = CPU
    met: dict[str, None] = field(default_factory=dict)
    mean: Tensor = MEAN
    std: Tensor = STD

    channels = 3
    size = SIZE

    @property
    def train_count(self) -> int:
        return len(self.train.labels)

    @property
    def test_count(self) -> int:
        return len(self.test.labels)

    @property
    def broken(self) -> tuple[str, ...]:
        return tuple(self.met)

    def on(self, device: torch.device) -> "Streamed":
        return replace(self, device=device, met={}, mean=self.mean.to(device), std=self.std.to(device))

    def train_batches(
        self,
        batch: int,
        *,
        seed: int,
        epoch: int,
        augment: bool = True,
        rank: int = 0,
        world: int = 1,
        drop_last: bool = False,
    ) -> Iterator[tuple[Tensor, Tensor, int]]:
        """One epoch; see `Source`."""
        rows = _drawn(self.train_count, seed, epoch)
        if not augment:
            rows = _centred(rows[:, 0])
        stop = self.train_count // batch * batch if drop_last else self.train_count
        whole = rows[:stop].split(batch)
        shares = [part[len(part) * rank // world : len(part) * (rank + 1) // world] for part in whole]
        for read, part in zip(self._read(self.train, shares, stand_in=True), whole, strict=True):
            yield *self._placed(read), len(part)

    def test_batches(self, batch: int, *, rank: int = 0, world: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """The test images of this rank; see `Source`."""
        mine = torch.arange(self.test_count * rank // world, self.test_count * (rank + 1) // world)
        seen = 0
        for read in self._read(self.test, _centred(mine).split(batch), stand_in=False):
            seen += len(read.y)
            yield self._placed(read)
        if seen == 0 < len(mine):
            raise DataError(
                f"`folder`: {self.test.root} must hold whole pictures; all {len(mine)} that were read are broken."
            )

    def _read(self, files: Files, batches: list[Tensor] | tuple[Tensor, ...], *, stand_in: bool) -> Iterator[Read]:
        decoder = Decoder("folder", files, RESIZED, SIZE, skip=self.skip, stand_in=stand_in)
        for read in stream(decoder, batches, pinned=self.device.type == "cuda"):
            for name in (f"{files.root.name}/{name}" for name in read.broken):
                if name not in self.met:
                    warnings.warn(f"`folder`: {name} is broken, and skipped.", stacklevel=2)
                    self.met[name] = None
            yield read

    def _placed(self, read: Read) -> tuple[Tensor, Tensor]:
        return read.x.to(self.device, non_blocking=True), read.y.to(self.device, non_blocking=True)


def _drawn(count: int, seed: int, epoch: int) -> Tensor:
    """Rows (N, 4) of an epoch: file, down, right, mirrored."""
    source = torch.Generator().manual_seed((seed * _STRIDE + epoch) % 2**63)
    order = torch.randperm(count, generator=source)
    place = torch.randint(RESIZED - SIZE + 1, (count, 2), generator=source)
    mirrored = torch.randint(2, (count, 1), generator=source)
    return torch.cat([order[:, None], place, mirrored], 1)


def _centred(index: Tensor) -> Tensor:
    """Rows (N, 4) that cut out the middle."""
    middle = torch.full_like(index, (RESIZED - SIZE) // 2)
    return torch.stack([index, middle, middle, torch.zeros_like(index)], 1)


def open_folder(
    data: Path | None = None, train_samples: int | None = None, test_samples: int | None = None, *, broken: str = "refuse"
) -> Streamed:
    """Images sorted into train/<class> and val/<class>: listed now, read while they are used.

    Args:
        data: the directory with imagenet/, or with train/ and val/ themselves.
        train_samples, test_samples: a fixed random part only, and only its files are read.
        broken: what a file that is no whole picture does: refuse (an error that names it) or skip (it is named, and passed
            over). A file that is missing or cannot be read is refused in both.

    Raises:
        OptionError: another word for broken, or SPECTRALGRAD_WORKERS is no number.
        DataError: something is missing; the message says what to put where.
    """
    if broken not in BROKEN:
        raise OptionError(f"`folder`: broken must be one of {', '.join(BROKEN)}, got {broken!r}.")
    worker_count()  # raises now: in an epoch it would end the training as one that failed
    holds = "train/<class>/*.JPEG and val/<class>/*.JPEG"
    root = data if data is not None and (data / "train").is_dir() else find_folder("folder", data, FOLDERS, holds)
    train, test = root / "train", root / "val"
    for part in (train, test):
        if not part.is_dir():
            raise DataError(f"`folder`: {part} is missing: {root} must hold {holds}.")
    classes = sorted(path.name for path in train.iterdir() if path.is_dir())
    if not classes:
        raise DataError(f"`folder`: {train} must hold one folder of images for each class; it has none.")
    unknown = sorted({path.name for path in test.iterdir() if path.is_dir()} - set(classes))
    if unknown:
        raise DataError(f"`folder`: {test} has classes that {train} has not: {', '.join(unknown[:5])}.")
    return Streamed(
        _listed(train, classes, train_samples), _listed(test, classes, test_samples), len(classes), skip=broken == "skip"
    )


def _listed(part: Path, classes: list[str], samples: int | None) -> Files:
    """The images of train or val, class by class in the order of their names, or a fixed random part of them."""
    names, labels = [], []
    for label, name in enumerate(classes):
        found = sorted(path.name for path in list_images(part / name)) if (part / name).is_dir() else []
        names += [f"{name}/{file}" for file in found]
        labels += [label] * len(found)
    if not names:
        raise DataError(f"`folder`: {part} must hold <class>/*.JPEG; no image was found.")
    files = listed(part, names, labels)
    chosen, of_chosen = subset(torch.arange(len(labels)), files.labels, samples)
    return files._replace(names=files.names[chosen.numpy()], labels=of_chosen)
