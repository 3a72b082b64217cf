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
from .folder import load_folder
from .tinyimagenet import load_tinyimagenet

LOADERS: dict[str, Callable[[Path | None, int | None, int | None], Dataset]] = {
    "digits": load_digits,
    "cifar10": partial(load_cifar, "cifar10"),
    "cifar100": partial(load_cifar, "cifar100"),
    "tinyimagenet": load_tinyimagenet,
    "folder": load_folder,
}
NAMES = tuple(LOADERS)


def load(
    name: str, data: Path | None = None, *, train_samples: int | None = None, test_samples: int | None = None
) -> Dataset:
    """A data set as uint8 tensors.

    Args:
        name: digits (comes with scikit-learn), cifar10, cifar100, tinyimagenet or folder.
        data: the directory that holds it; None is the environment variable SPECTRALGRAD_DATA.
        train_samples, test_samples: how many images of each are used, always the same ones; None for all.

    Raises:
        OptionError: an unknown name, or a number of samples that is none.
        DataError: missing, truncated or corrupt; the message says what to put where.

    >>> load("digits").test_x.shape
    torch.Size([360, 1, 8, 8])
    """
    if name not in LOADERS:
        near = difflib.get_close_matches(str(name), NAMES, 1, 0.4)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise OptionError(f"`load`: data must be one of {', '.join(NAMES)}, got {name!r}.{hint}")
    for what, samples in (("train_samples", train_samples), ("test_samples", test_samples)):
        if samples is not None and not is_whole(samples):
            raise OptionError(f"`load`: {what} must be a whole number >= 1, or None for all, got {samples!r}.")
    return LOADERS[name](data, train_samples, test_samples)
