"""Reading CIFAR's pickles without trusting them."""

from pathlib import Path
from typing import Any

from .dataset import DataError
from .pickle_machine import ByteArray, run

MOST = 2**30  # bytes: five times CIFAR-100's training file


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
        found = run(content)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise DataError(
            f"`{who}`: {path} must be an official CIFAR file, but is damaged or "
            f"something else ({str(error)[:120]}). {advice}"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(key, bytes | str) for key in found):
        raise DataError(f"`{who}`: {path} must hold a dictionary, got {type(found).__name__}. {advice}")
    return {
        key.decode("latin1") if isinstance(key, bytes) else key: value.tensor if isinstance(value, ByteArray) else value
        for key, value in found.items()
    }
