"""CIFAR-10 and CIFAR-100 in their official python layout."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .dataset import DataError, Dataset, assemble, find_folder
from .pickles import read_pickle

PIXELS = 3 * 32 * 32


class _Layout(NamedTuple):
    folder: str
    train: tuple[str, ...]
    test: str
    labels: str  # the key
    classes: int
    archive: str


LAYOUTS = {
    "cifar10": _Layout(
        "cifar-10-batches-py",
        tuple(f"data_batch_{i}" for i in range(1, 6)),
        "test_batch",
        "labels",
        10,
        "cifar-10-python.tar.gz",
    ),
    "cifar100": _Layout("cifar-100-python", ("train",), "test", "fine_labels", 100, "cifar-100-python.tar.gz"),
}


def load_cifar(
    name: str, data: Path | None = None, train_samples: int | None = None, test_samples: int | None = None
) -> Dataset:
    """CIFAR-10 or CIFAR-100: 50,000 + 10,000 images (3, 32, 32), in the order of the files.

    Args:
        name: "cifar10" or "cifar100".
        data: the directory that holds cifar-10-batches-py or cifar-100-python, or one of these itself.
        train_samples, test_samples: a fixed random part only.

    Raises:
        DataError: a file is missing, truncated or not official; the message says what to put where.
    """
    layout = LAYOUTS[name]
    holds = f"{', '.join(layout.train)} and {layout.test}, as unpacked from {layout.archive}"
    folder = find_folder(name, data, (layout.folder,), holds)
    advice = f"Unpack {layout.archive} again: {layout.folder}/ holds {holds}."
    train = [_read(name, layout, folder / file, advice) for file in layout.train]
    test = _read(name, layout, folder / layout.test, advice)
    x, y = torch.cat([images for images, _ in train]), torch.cat([labels for _, labels in train])
    return assemble((x, y), test, layout.classes, train_samples=train_samples, test_samples=test_samples)


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
