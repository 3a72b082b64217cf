"""Folders of images in ImageNet's form: train/<class>/*.JPEG and val/<class>/*.JPEG."""

from pathlib import Path

from .dataset import DataError, Dataset, assemble, find_folder
from .images import list_images
from .tinyimagenet import read_labelled

FOLDERS = ("imagenet", "ILSVRC2012", "folder")
SIZE = 224


def load_folder(
    data: Path | None = None, train_samples: int | None = None, test_samples: int | None = None, size: int = SIZE
) -> Dataset:
    """Images sorted into train/<class> and val/<class>; the middle square of each, scaled to ``size``.

    All that is asked for is held in memory: full ImageNet takes 180 GiB at 224 pixels.

    Args:
        data: the directory with imagenet/, or with train/ and val/ themselves.
        train_samples, test_samples: a fixed random part only, and only its files are read.
        size: pixels.

    Raises:
        DataError: something is missing or damaged; the message says what to put where.
    """
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
    halves = []
    for part, samples in ((train, train_samples), (test, test_samples)):
        files = [
            (path, label)
            for label, name in enumerate(classes)
            if (part / name).is_dir()
            for path in list_images(part / name)
        ]
        if not files:
            raise DataError(f"`folder`: {part} must hold {holds.split(' and ')[0].partition('/')[2]}; no image was found.")
        halves.append(read_labelled("folder", files, size, samples))
    return assemble(halves[0], halves[1], len(classes))
