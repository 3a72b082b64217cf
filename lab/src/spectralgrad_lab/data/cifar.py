"""CIFAR-10 and CIFAR-100: the official python layout, lossless sheets, or folders of PNGs."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .dataset import DataError, Dataset, assemble, find_folder
from .images import list_images, read_images
from .known import require_known
from .pickles import read_pickle
from .sheets import read_sheets

SIZE = 32
PIXELS = 3 * SIZE * SIZE


class _Layout(NamedTuple):
    folder: str
    train: tuple[str, ...]
    test: str
    labels: str  # the key
    classes: int
    archive: str
    others: tuple[str, ...]  # folders of sheets, or of train/<class>/*.png and test/<class>/*.png
    parts: int  # files of sheets


LAYOUTS = {
    "cifar10": _Layout(
        "cifar-10-batches-py",
        tuple(f"data_batch_{i}" for i in range(1, 6)),
        "test_batch",
        "labels",
        10,
        "cifar-10-python.tar.gz",
        ("cifar10",),
        2,
    ),
    "cifar100": _Layout(
        "cifar-100-python",
        ("train",),
        "test",
        "fine_labels",
        100,
        "cifar-100-python.tar.gz",
        ("cifar100", "CIFAR-100-dataset"),
        3,
    ),
}


def load_cifar(
    name: str, data: Path | None = None, train_samples: int | None = None, test_samples: int | None = None
) -> Dataset:
    """CIFAR-10 or CIFAR-100: 50,000 + 10,000 images (3, 32, 32), in the order of the files.

    Args:
        name: "cifar10" or "cifar100".
        data: the directory that holds cifar-10-batches-py or cifar-100-python, or one of these itself; or cifar10 or
            cifar100, with part1.npz, part2.npz, ... or with train/<class>/*.png and test/<class>/*.png.
        train_samples, test_samples: a fixed random part only.

    Raises:
        DataError: a file is missing, truncated or not official, or a whole half is not the public one by its numbers of
            images, mean and deviation; the message says what to put where.
    """
    layout = LAYOUTS[name]
    files = f"{', '.join(layout.train)} and {layout.test}, as unpacked from {layout.archive}"
    holds = f"{files}; or {layout.others[0]}/ with part1.npz to part{layout.parts}.npz, or with train/ and test/ of PNGs"
    folder = find_folder(name, data, (layout.folder, *layout.others), holds)
    if (folder / "part1.npz").exists():
        train, test = read_sheets(name, folder, layout.parts, layout.classes)
        advice = f"Pack {folder} again."
    elif (folder / "train").is_dir():
        advice = f"Copy {folder} again."
        train, test = _read_pngs(name, folder, layout.classes, advice)
    else:
        advice = f"Unpack {layout.archive} again: {layout.folder}/ holds {files}."
        halves = [_read(name, layout, folder / file, advice) for file in (*layout.train, layout.test)]
        train = torch.cat([x for x, _ in halves[:-1]]), torch.cat([y for _, y in halves[:-1]])
        test = halves[-1]
    for part, half, samples in (("train", train, train_samples), ("test", test, test_samples)):
        if samples is None:
            require_known(name, part, *half, advice)
    return assemble(train, test, layout.classes, train_samples=train_samples, test_samples=test_samples)


def _read_pngs(name: str, folder: Path, classes: int, advice: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Both halves of train/<class>/*.png and test/<class>/*.png; classes are numbered by name, as in the official files."""
    names = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    if len(names) != classes:
        raise DataError(f"`{name}`: {folder / 'train'} must hold {classes} folders, one a class, got {len(names)}. {advice}")
    halves = []
    for part in ("train", "test"):
        missing = [each for each in names if not (folder / part / each).is_dir()]
        if missing:
            raise DataError(f"`{name}`: {folder / part / missing[0]} is missing. {advice}")
        files = [(path, label) for label, each in enumerate(names) for path in list_images(folder / part / each)]
        halves.append((read_images(name, [path for path, _ in files], SIZE), torch.tensor([label for _, label in files])))
    return halves[0], halves[1]


def _read(name: str, layout: _Layout, path: Path, advice: str) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) and labels (N,) of one file."""
    content = read_pickle(name, path, advice)
    rows: Any = content.get("data")
    labels: Any = content.get(layout.labels)
    if not isinstance(rows, Tensor) or rows.ndim != 2 or rows.shape[1] != PIXELS or len(rows) == 0:
        came = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise DataError(f"`{name}`: {path} must hold data of N x {PIXELS} bytes, got {came}. {advice}")
    if not isinstance(labels, list) or len(labels) != len(rows):
        came = f"{len(labels)}" if isinstance(labels, list) else "none"
        raise DataError(f"`{name}`: {path} must hold {len(rows)} {layout.labels}, one for each image, got {came}. {advice}")
    if not all(type(label) is int and 0 <= label < layout.classes for label in labels):
        raise DataError(f"`{name}`: {path} must hold labels from 0 to {layout.classes - 1}. {advice}")
    return rows.view(-1, 3, 32, 32), torch.tensor(labels)
