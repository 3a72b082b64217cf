"""A data set by its name."""

import difflib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from spectralgrad.errors import OptionError
from spectralgrad.validation import is_whole

from .cifar import load_cifar
from .dataset import Dataset
from .digits import load_digits
from .folder import open_folder
from .source import Source
from .tinyimagenet import load_tinyimagenet

LOADERS: dict[str, Callable[[Path | None, int | None, int | None], Dataset]] = {
    "digits": load_digits,
    "cifar10": partial(load_cifar, "cifar10"),
    "cifar100": partial(load_cifar, "cifar100"),
    "tinyimagenet": load_tinyimagenet,
}
NAMES = (*LOADERS, "folder")


def load(
    name: str, data: Path | None = None, *, train_samples: int | None = None, test_samples: int | None = None
) -> Dataset:
    """A data set as uint8 tensors.

    Args:
        name: digits (comes with scikit-learn), cifar10, cifar100 or tinyimagenet.
        data: the directory that holds it; None is the environment variable SPECTRALGRAD_DATA.
        train_samples, test_samples: how many images of each are used, always the same ones; None for all.

    Raises:
        OptionError: an unknown name, or a number of samples that is none.
        DataError: missing, truncated or corrupt, or not the known set; the message says what to put where.

    >>> load("digits").test_x.shape
    torch.Size([360, 1, 8, 8])
    """
    _require(name, tuple(LOADERS), train_samples, test_samples)
    return LOADERS[name](data, train_samples, test_samples)


def open_source(
    name: str,
    data: Path | None = None,
    *,
    train_samples: int | None = None,
    test_samples: int | None = None,
    broken: str = "refuse",
) -> Source:
    """A data set to train on: in memory, or, of a folder of images, decoded on the way.

    Args:
        name: one of those of `load`, or folder.
        data, train_samples, test_samples: as in `load`.
        broken: refuse or skip, what a broken file of a folder does; the other sets are refused with any.

    Raises:
        OptionError, DataError: as `load`; or broken for a set that is no folder.

    >>> x, y, samples = next(open_source("digits").train_batches(4, seed=0, epoch=0))
    >>> x.shape, samples
    (torch.Size([4, 1, 8, 8]), 4)
    """
    _require(name, NAMES, train_samples, test_samples)
    if name == "folder":
        return open_folder(data, train_samples, test_samples, broken=broken)
    if broken != "refuse":
        raise OptionError(f"`load`: broken belongs to data folder; {name} with a broken file is refused, got {broken!r}.")
    return load(name, data, train_samples=train_samples, test_samples=test_samples)


def _require(name: str, names: tuple[str, ...], train_samples: int | None, test_samples: int | None) -> None:
    if name not in names:
        near = difflib.get_close_matches(str(name), names, 1, 0.4)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise OptionError(f"`load`: data must be one of {', '.join(names)}, got {name!r}.{hint}")
    for what, samples in (("train_samples", train_samples), ("test_samples", test_samples)):
        if samples is not None and not is_whole(samples):
            raise OptionError(f"`load`: {what} must be a whole number >= 1, or None for all, got {samples!r}.")
