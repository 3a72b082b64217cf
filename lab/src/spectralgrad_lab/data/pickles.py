"""Reading CIFAR's pickles without trusting them.

A pickle is a program: it may import and call what it likes. The official files need five names, all of them for numpy's
arrays of bytes. Those names are answered by inert classes here, so that nothing of a pickle's choice is ever called, and
numpy's own C code never sees its state. Every other name ends the reading.
"""

import io
import math
import pickle
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from .dataset import DataError

MOST = 2**30  # bytes: five times CIFAR-100's training file


class _ByteType:
    """Stands for numpy.dtype, of bytes only."""

    def __init__(self, name: object, align: object = False, copy: object = True) -> None:
        if name not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"an array of {name!r}; only bytes (u1) belong there")

    def __setstate__(self, state: object) -> None:
        pass  # byte order and the like, without meaning for bytes


class _Bytes:
    """Stands for an array of bytes; `tensor` is it."""

    def __init__(self, kind: object = None, shape: object = None, code: object = None) -> None:
        self.tensor: Tensor | None = None

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), tuple(shape), _ByteType(), is_fortran, bytes(raw)):
                pass
            case _:
                raise pickle.UnpicklingError("an array that is not one of bytes")
        if not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) != len(raw) or is_fortran:
            raise pickle.UnpicklingError(f"an array of shape {shape!r} with {len(raw)} bytes")
        self.tensor = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(shape) if raw else torch.empty(shape)


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """Stands for _codecs.encode, by which Python 3 writes bytes in old protocols."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("a text in another encoding than latin1")
    return text.encode("latin1")


class _Name:
    """Stands for a class that is named and never made."""


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Bytes,
    ("numpy._core.multiarray", "_reconstruct"): _Bytes,
    ("numpy", "ndarray"): _Name,
    ("numpy", "dtype"): _ByteType,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = ADMITTED.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")
        return found

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside the file")


def read_pickle(who: str, path: Path, advice: str) -> dict[str, Any]:
    """The dictionary in a CIFAR file, with text keys and uint8 tensors for arrays.

    Args:
        who: the data set.
        path: of the file.
        advice: what to do about a bad one.

    Raises:
        DataError: missing, truncated, too large, or not what a CIFAR file holds. Nothing in it was run.
    """
    try:
        if path.stat().st_size > MOST:
            raise DataError(f"`{who}`: {path} is larger than any file of the set. {advice}")
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"`{who}`: {path} is missing. {advice}") from error
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"`{who}`: {path} cannot be read: {error.strerror}. {advice}") from error
    try:
        found = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a hostile or broken pickle raises whatever it likes
        raise DataError(
            f"`{who}`: {path} must be an official CIFAR file, but is damaged or something else ({error}). {advice}"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(key, bytes | str) for key in found):
        raise DataError(f"`{who}`: {path} must hold a dictionary, got {type(found).__name__}. {advice}")
    return {
        key.decode("latin1") if isinstance(key, bytes) else key: value.tensor if isinstance(value, _Bytes) else value
        for key, value in found.items()
    }
