"""Files to files: one picture, or a folder of frames with one style."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from spectralgrad.errors import OptionError

from .deep import Progress
from .pictures import SUFFIXES, Picture, PictureError, read_picture, require_suffix, write_picture
from .transfer import Stylist

__all__ = ["Job", "jobs_of", "require_place", "run_jobs"]


class Job(NamedTuple):
    """A content and where its result goes."""

    content: Path
    out: Path


def jobs_of(content: Path, style: Path, out: Path, overwrite: bool = False) -> list[Job]:
    """What there is to do: one picture; or of a folder every frame, less those whose result is there already.

    Args:
        content: a file or a folder. style: a file. out: a file, or for a folder a folder, which is made.
        overwrite: do again what is there.

    Raises:
        OptionError: names that clash: a result in the place of what it is made from, a suffix that cannot be written.
        PictureError: a folder without pictures.
    """
    if not content.is_dir():
        require_suffix("transfer", out)
        _require_other(out, content, style)
        require_place(out)
        if not content.exists():
            raise PictureError(f"`transfer`: {content} does not exist. Look for a misspelt name.")
        return [Job(content, out)]
    if out.suffix.lower() in SUFFIXES or out.is_file():
        raise OptionError(f"`transfer`: of a folder of frames OUT must be a folder too, got {out}.")
    _require_other(out, content, style)
    frames = sorted(path for path in content.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith("."))
    if not frames:
        raise PictureError(f"`transfer`: {content} must hold pictures ({', '.join(SUFFIXES)}); there is none.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PictureError(f"`transfer`: {out} cannot be made: {error.strerror}.") from error
    jobs = [Job(frame, out / frame.name) for frame in frames]
    jobs = [job for job in jobs if overwrite or not job.out.exists()]
    for job in jobs:
        _require_other(job.out, job.content, style)
    return jobs


def run_jobs(
    jobs: Iterable[Job], stylist: Stylist, progress: Progress | None = None
) -> Iterator[tuple[Job, Picture, Picture]]:
    """Do one job after the other, each file whole before the next is begun; yields job, content and result.

    Raises:
        PictureError: frames that could not be read or written, after all others are done.
        OptionError: one job, whose result its suffix cannot hold.
    """
    jobs, faults = list(jobs), []
    for index, job in enumerate(jobs):
        try:
            content = read_picture(job.content)
            longer = stylist.options.size or max(content.colors.shape[-2:])
            require_suffix("transfer", job.out, content.alpha is not None, longer)
            result = stylist(content, _shifted(progress, index, len(jobs)))
            write_picture(job.out, result)
        except (PictureError, OptionError) as error:
            if len(jobs) == 1:
                raise
            faults.append(str(error))
            continue
        yield job, content, result
    if faults:
        raise PictureError(f"`transfer`: {len(faults)} of {len(jobs)} frames have no result. The first: {faults[0]}")


def _shifted(progress: Progress | None, index: int, number: int) -> Progress | None:
    """The steps of one job as steps of all."""
    if progress is None:
        return None
    return lambda done, total: progress(index * total + done, number * total)


def require_place(out: Path) -> None:
    """Say before the work, not after it, that its result cannot be written."""
    if out.is_dir():
        raise OptionError(f"`transfer`: a picture must be written to a file, but {out} is a folder. Name a file in it.")
    try:
        place = out.resolve()
        exists = place.exists()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a ring, before Python 3.13
        reason = getattr(error, "strerror", None) or "its links go in a ring"
        raise PictureError(f"`transfer`: {out} cannot be written: {reason}. Name another file.") from error
    if (exists and not place.is_file()) or (out.is_symlink() and not exists and place.is_symlink()):
        raise PictureError(f"`transfer`: {out} cannot be written: it is a pipe or a device, and no file. Name another file.")
    if not os.access(place.parent, os.W_OK | os.X_OK):
        raise PictureError(f"`transfer`: {out} cannot be written: there is no such folder, or no right to write to it.")


def _require_other(out: Path, *sources: Path) -> None:
    for source in sources:
        if out.exists() and source.exists() and out.samefile(source):
            raise OptionError(f"`transfer`: OUT must be another file than {source}, which would be lost. Name another.")
