"""Photographs and paintings, a folder for each domain: the domains between which style is transferred (PAMI section 5.3)."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from spectralgrad.errors import OptionError
from spectralgrad.validation import is_whole

from .dataset import VARIABLE, DataError
from .images import list_images, read_images
from .procedural import dabs, flat_areas, photographs, swirls

PAINTINGS = ("vangogh", "monet", "ukiyoe")
DOMAINS = ("photo", *PAINTINGS)
CEZANNE = "cezanne"
FOLDER = "artworks"
SIZE = 256
TEST_SHARE = 0.15
SPLIT_SEED = 0
PAINTERS = {"photo": photographs, "vangogh": swirls, "monet": dabs, "ukiyoe": flat_areas}


class Artworks(NamedTuple):
    """Pictures by domain for training and test: uint8 (N, 3, size, size)."""

    train: dict[str, Tensor]
    test: dict[str, Tensor]


def load_artworks(data: Path | None = None, size: int = SIZE, domains: Sequence[str] = DOMAINS) -> Artworks:
    """The pictures of <data>/artworks/<domain>/*.jpg, or of <data>/<domain>; 15 % of each domain are held out.

    The split is a fixed permutation of the sorted file names. The middle square of each picture is scaled to ``size``.

    Args:
        data: the directory; None is the environment variable SPECTRALGRAD_DATA.
        size: pixels a side.
        domains: which folders, of any name.

    Raises:
        OptionError: a domain that is no name of a folder, or a size that is no whole number >= 1.
        DataError: a folder is missing or holds too little, or a file is damaged; the message says what to put where.
    """
    _require("load_artworks", size, "size")
    if not domains or any(name in ("", ".", "..") or Path(name).name != name for name in domains):
        raise OptionError(
            f"`load_artworks`: domains must be names of folders, such as {', '.join(DOMAINS)}, got {tuple(domains)!r}."
        )
    root = _root(data, domains)
    train, test = {}, {}
    for name in domains:
        paths = list_images(root / name)
        if len(paths) < 2:
            raise DataError(
                f"`artworks`: {root / name} must hold at least two pictures (*.jpg), to train on one and to test on the "
                f"other; it has {len(paths)}. Put the pictures of that domain there."
            )
        train[name], test[name] = split(read_images("artworks", paths, size))
    return Artworks(train, test)


def known_domains(data: Path | None = None) -> tuple[str, ...]:
    """The domains of PAMI that a directory holds: DOMAINS, which must be there, and Cezanne's where it is."""
    try:
        _root(data, (*DOMAINS, CEZANNE))
    except DataError:
        return DOMAINS
    return (*DOMAINS, CEZANNE)


def embedded_artworks(size: int = 64, count: int = 24) -> Artworks:
    """Procedural pictures that need no file: landscapes as photographs, and three ways of painting them.

    They serve tests, documentation and runs of a minute. Photographs are smooth; "vangogh" has swirling strokes, "monet"
    dabs in pastel, "ukiyoe" flat areas with outlines; no landscape is in two domains. Equal arguments give equal pictures.

    Args:
        size: pixels a side.
        count: pictures in each domain, of which 15 %, at least one, are held out.

    Raises:
        OptionError: a size below 8, or a count below 2.

    >>> pictures = embedded_artworks(size=32, count=10)
    >>> pictures.train["monet"].shape, pictures.test["monet"].shape
    (torch.Size([8, 3, 32, 32]), torch.Size([2, 3, 32, 32]))
    """
    _require("embedded_artworks", size, "size", 8)
    _require("embedded_artworks", count, "count", 2)
    train, test = {}, {}
    for seed, (name, painter) in enumerate(PAINTERS.items()):
        generator = torch.Generator().manual_seed(seed)
        pictures = painter(count, size, generator)  # (count, 3, size, size), about [0, 1]
        train[name], test[name] = split(pictures.clamp(0, 1).mul(255).round().to(torch.uint8))
    return Artworks(train, test)


def split(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Pictures for training and test, by a permutation that depends on their number alone.

    >>> train, test = split(torch.arange(20))
    >>> len(train), len(test), sorted(torch.cat([train, test]).tolist()) == list(range(20))
    (17, 3, True)
    """
    order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(SPLIT_SEED))
    held_out = max(1, round(TEST_SHARE * len(pictures)))
    return pictures[order[held_out:]], pictures[order[:held_out]]


def _root(data: Path | None, domains: Sequence[str]) -> Path:
    """The folder that holds every one of the domains."""
    came = data or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    holds = f"{FOLDER}/{', '.join(domains)}/ with *.jpg in each"
    if came is None:
        raise DataError(f"`artworks`: needs a directory with {holds}. Pass --data DIR, or set {VARIABLE}=DIR.")
    for root in (came / FOLDER, came):
        if all((root / name).is_dir() for name in domains):
            return root
    raise DataError(
        f"`artworks`: {came} must hold {holds}; something is missing. Put it there, pass another --data DIR, "
        f"or set {VARIABLE}."
    )


def _require(who: str, number: int, name: str, least: int = 1) -> None:
    if not is_whole(number, least):
        raise OptionError(f"`{who}`: {name} must be a whole number >= {least}, got {number!r}.")
