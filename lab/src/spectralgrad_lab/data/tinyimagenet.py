"""Tiny ImageNet in its official layout: 200 classes, 64 x 64 pixels, some of them grey."""

from pathlib import Path

import torch

from .dataset import DataError, Dataset, assemble, find_folder, subset
from .images import list_images, read_images
from .known import require_known

FOLDER = "tiny-imagenet-200"
SIZE = 64
_ADVICE = "Unpack tiny-imagenet-200.zip again."


def load_tinyimagenet(
    data: Path | None = None, train_samples: int | None = None, test_samples: int | None = None
) -> Dataset:
    """Tiny ImageNet; its labelled val images are the test set, as in PAMI's Table 6.

    Args:
        data: the directory that holds tiny-imagenet-200, or that itself.
        train_samples, test_samples: a fixed random part only, and only its files are read.

    Raises:
        DataError: something is missing or damaged, or a whole half is not the public one by its numbers of images, mean and
            deviation; the message says what to put where.
    """
    holds = "wnids.txt, train/<class>/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt"
    folder = find_folder("tinyimagenet", data, (FOLDER,), f"{holds}, as unpacked from tiny-imagenet-200.zip")
    classes = _lines(folder / "wnids.txt")
    number = {name: index for index, name in enumerate(classes)}
    train: list[tuple[Path, int]] = []
    for name, label in number.items():
        images = folder / "train" / name / "images"
        found = list_images(images) if images.is_dir() else []
        if not found:
            raise DataError(f"`tinyimagenet`: {images} must hold the images of a class that wnids.txt names. {_ADVICE}")
        train += [(path, label) for path in found]
    test = []
    for line in _lines(folder / "val" / "val_annotations.txt"):
        file, _, rest = line.partition("\t")
        name = rest.partition("\t")[0]
        if name not in number or Path(file).name != file:
            raise DataError(
                f"`tinyimagenet`: val/val_annotations.txt must give an image and a class of wnids.txt in each line, got "
                f"{line[:60]!r}. {_ADVICE}"
            )
        test.append((folder / "val" / "images" / file, number[name]))
    halves = []
    for part, files, samples in (("train", train, train_samples), ("test", test, test_samples)):
        index, labels = subset(torch.arange(len(files)), torch.tensor([label for _, label in files]), samples)
        half = read_images("tinyimagenet", [files[i][0] for i in index.tolist()], SIZE), labels
        if samples is None:
            require_known("tinyimagenet", part, *half, _ADVICE)
        halves.append(half)
    return assemble(halves[0], halves[1], len(classes))


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"`tinyimagenet`: {path} is missing or cannot be read. {_ADVICE}") from error
    found = [line for line in lines if line.strip()]
    if not found:
        raise DataError(f"`tinyimagenet`: {path} is empty. {_ADVICE}")
    return found
