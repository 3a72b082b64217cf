"""What goes wrong, in one line and an exit code."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import typer

from spectralgrad.errors import OptionError, SpectralError
from spectralgrad_lab.data.device import torch_device
from spectralgrad_lab.deadline import OutOfTime
from spectralgrad_lab.sweep.local import require_jobs

from .bench import STOPPED

LATE = 3  # exit code when --seconds are over
ON = "the same command goes on from here"


@contextmanager
def answered(command: str) -> Iterator[None]:
    """Turn what goes wrong into one line and an exit code."""
    code, words = 0, ""
    try:
        yield
    except OptionError as error:
        code, words = 2, f"spectralgrad {error}"
    except SpectralError as error:
        code, words = 1, f"spectralgrad {error}"
    except ModuleNotFoundError as error:
        package = "'spectralgrad-lab[style]'" if command == "transfer" else "spectralgrad-lab"
        code, words = 2, f"spectralgrad {command}: needs {error.name}: pip install {package}"
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code, words = 1, f"spectralgrad {command}: {where}{error.strerror or error}. What was recorded before stands."
    except OutOfTime as late:
        code, words = LATE, f"spectralgrad {command}: out of time; {str(late) or ON}."
    except KeyboardInterrupt:
        rest = "what was written is whole" if command in ("transfer", "report") else ON  # these begin anew
        code, words = STOPPED, f"spectralgrad {command}: stopped; {rest}."
    if code:
        typer.echo(words, err=True)
        raise typer.Exit(code)


def answering(command: str, function: Callable[..., None]) -> Callable[..., None]:
    """A command of another file: its flags, and our answers to what goes wrong."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> None:
        with answered(command):
            function(*args, **options)

    return call


def require_options(
    who: str, device: str, seconds: float | None, data: Path | None, *, jobs: int = 1, ray: str | None = None
) -> None:
    """Raise `OptionError` for options that no training can use: before the first one, and even where none is left to run."""
    require_jobs(who, jobs, ray)
    if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
        raise OptionError(f"`{who}`: --seconds must be a number >= 0, got {seconds}.")
    if data is not None and not data.is_dir():
        raise OptionError(f"`{who}`: --data must be a folder that holds the data sets; {data} is none.")
    if ray is None or not device.startswith("cuda"):  # a cluster's GPUs are not seen from here
        torch_device(who, device)
