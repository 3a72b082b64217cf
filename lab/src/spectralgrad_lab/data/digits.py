"""Scikit-learn's digits: 1797 grey images of 8 x 8 pixels, 0 to 16, which come with the package."""

from pathlib import Path

import torch

from .dataset import DataError, Dataset, assemble

TRAIN = 1437  # four fifths; 360 are left for the test
SPLIT_SEED = 0


def load_digits(data: Path | None = None, train_samples: int | None = None, test_samples: int | None = None) -> Dataset:
    """Digits, split 1437 / 360 in an order that never changes. They need no directory.

    >>> load_digits(train_samples=100).train_x.shape
    torch.Size([100, 1, 8, 8])
    """
    try:
        from sklearn import datasets  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise DataError("`digits`: come with scikit-learn. Install it with pip install spectralgrad-lab.") from error
    images, labels = datasets.load_digits(return_X_y=True)
    x = torch.from_numpy(images).to(torch.uint8).view(-1, 1, 8, 8)
    y = torch.from_numpy(labels).long()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(SPLIT_SEED))
    train, test = order[:TRAIN], order[TRAIN:]
    # A mirrored digit is another sign, or none.
    return assemble(
        (x[train], y[train]), (x[test], y[test]), 10, train_samples=train_samples, test_samples=test_samples, flip=False
    )
