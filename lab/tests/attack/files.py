"""Mutated pickles, pictures and weights: a named error or a value, in bounded time, and nothing run or changed."""

import builtins
import codecs
import io
import os
import pickle
import pickletools
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image

from spectralgrad.errors import SpectralError
from spectralgrad_lab.data import pickle_machine
from spectralgrad_lab.data.decode import decode
from spectralgrad_lab.data.pickles import read_pickle
from spectralgrad_lab.models.decoders import Decoder
from spectralgrad_lab.training import checkpoint
from spectralgrad_lab.transfer.pictures import read_picture
from spectralgrad_lab.transfer.pretrained import load_decoder

from .damage import damaged_bytes

SECONDS = 5.0  # that one file may take
OPCODES = [op.code.encode("latin1") for op in pickletools.opcodes]
SEEDS = [
    *(b"c_codecs\nencode\n", b"cnumpy\ndtype\n", b"cos\nsystem\n", b"cbuiltins\neval\n", b"i__main__\nx\n", b"(S'u1'\nt"),
    *(b"V__defaults__\n", b"S'x'\n", b"\x8c\x05latin", b"I1\n", b"}", b"]", b"(", b"N", b"R", b"b", b"s", b"u"),
    *(b"q\x00", b"h\x00", b"2", b"\x81", b"\x92"),
]
for name in ("raw-unicode-escape", "latin-1", "utf-8", "ascii"):
    codecs.lookup(name)  # loaded now: what runs during a campaign is the file's doing


def pickles(count: int, draw: Random) -> Iterator[str | None]:
    """Every instruction at every kind of place, and official files that are damaged."""
    official = [pickle.dumps(_content(4), protocol=protocol) for protocol in (0, 1, 2, 3, 4, 5)]

    def make() -> bytes:
        if draw.random() < 0.5:
            return damaged_bytes(draw.choice(official), draw)
        parts = [draw.choice(SEEDS) if draw.random() < 0.6 else _instruction(draw) for _ in range(draw.randint(1, 12))]
        return b"".join(parts) + (b"." if draw.random() < 0.8 else b"")

    before = _inner()
    yield from _campaign(count, make, lambda path: read_pickle("attack", path, "Advice."))
    if _inner() != before:
        yield "a name of the reader was changed"


def pictures(count: int, draw: Random) -> Iterator[str | None]:
    """Damaged files of every format."""
    whole = []
    for mode in ("RGB", "RGBA", "L", "1", "P"):
        picture = Image.effect_noise((24, 17), 60).convert(mode)
        for name in ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "TGA"):
            buffer = io.BytesIO()
            try:
                picture.save(buffer, name)
            except (OSError, ValueError):
                continue
            whole.append(buffer.getvalue())

    def read(path: Path) -> None:
        (read_picture if draw.random() < 0.5 else lambda p: decode("attack", p))(path)

    yield from _campaign(count, lambda: damaged_bytes(draw.choice(whole), draw), read)


def weights(count: int, draw: Random) -> Iterator[str | None]:
    """Damaged decoders and checkpoints."""
    buffers = []
    for value in (
        Decoder("relu1_1").half().state_dict(),
        {"format": 1, "key": "k", "epoch": 3, "model": {"w": torch.ones(3)}},
    ):
        buffer = io.BytesIO()
        torch.save(value, buffer)
        buffers.append(buffer.getvalue())

    def read(path: Path) -> None:
        if draw.random() < 0.5:
            load_decoder("relu1_1", path=path)
        else:
            checkpoint.load(path, "k")

    yield from _campaign(count, lambda: damaged_bytes(draw.choice(buffers), draw), read)


def _campaign(count: int, make: Callable[[], bytes], read: Callable[[Path], Any]) -> Iterator[str | None]:
    ran: list[str] = []
    watched = {(os, "system"), (builtins, "eval"), (builtins, "exec"), (subprocess, "Popen")}
    real = {place: getattr(*place) for place in watched}

    def trap(*args: Any, **_: Any) -> None:
        ran.append(repr(args)[:80])

    with TemporaryDirectory() as folder:
        path = Path(folder, "file")
        for _ in range(count):
            content = make()
            path.write_bytes(content)
            for place in watched:
                setattr(*place, trap)
            start = time.perf_counter()
            try:
                read(path)
            except SpectralError:
                pass
            except Exception as error:
                yield f"{type(error).__name__}: {str(error)[:200]} of {content[:200]!r}"
            finally:
                for place, function in real.items():
                    setattr(*place, function)
            if ran:
                yield f"it ran {ran.pop()} of {content[:200]!r}"
            if time.perf_counter() - start > SECONDS:
                yield f"it took {time.perf_counter() - start:.1f} s: {content[:200]!r}"
            yield None


def _content(n: int) -> dict[bytes, Any]:
    return {b"labels": list(range(n)), b"data": np.zeros((n, 3072), np.uint8), b"batch_label": b"x", "text": "ü"}


def _instruction(draw: Random) -> bytes:
    """Any of them, with an argument that may or may not fit."""
    code = draw.choice(OPCODES)
    size = draw.choice([0, 1, 4, 255])
    return code + draw.choice(
        [b"", b"0\n", b"x y\n", bytes([size]), struct.pack("<i", size), struct.pack("<q", size), draw.randbytes(8)]
    )


def _inner() -> dict[str, str]:
    """What a pickle might reach: the names of the machine, and what they stand for."""
    reached = (
        pickle_machine,
        pickle_machine.ByteArray,
        pickle_machine.ByteType,
        pickle_machine.Name,
        pickle_machine.run,
        np.dtype,
    )
    found = {
        f"{each!r}.{name}": repr(value) for each in reached for name, value in vars(each).items() if name != "__builtins__"
    }
    return found | {"defaults": repr([getattr(x, "__defaults__", None) for x in vars(pickle_machine).values()])}
