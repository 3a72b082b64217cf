"""`spectralgrad transfer`: two pictures, or a folder of frames and a picture."""

import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from torch import Tensor

from spectralgrad.errors import OptionError
from spectralgrad_lab.transfer.clock import Clock
from spectralgrad_lab.transfer.frames import jobs_of, require_place, run_jobs
from spectralgrad_lab.transfer.matching import Coloring
from spectralgrad_lab.transfer.options import TILE, Level, TransferOptions
from spectralgrad_lab.transfer.pictures import read_picture, require_suffix
from spectralgrad_lab.transfer.sheet import thumbnail, write_sheet
from spectralgrad_lab.transfer.transfer import Stylist

__all__ = ["run_transfer"]

ROWS = 6  # of a contact sheet, at most


def run_transfer(
    content: Annotated[Path, typer.Argument(help="a picture, or a folder of frames")],
    style: Annotated[Path, typer.Argument(help="a picture")],
    out: Annotated[Path, typer.Option("--out", "-o", help="the result: a picture, or a folder for a folder")],
    level: Annotated[Level, typer.Option(help="features of a network, or colours alone")] = "deep",
    strength: Annotated[float | None, typer.Option(help="0, the content, to 1; otherwise 0.6, pixels: 1")] = None,
    size: Annotated[int | None, typer.Option(help="longer side of the result, in pixels; otherwise the content's")] = None,
    style_size: Annotated[int | None, typer.Option(help="longer side of the style: how large strokes are")] = None,
    groups: Annotated[int | None, typer.Option(help="groups of channels, each by itself; otherwise one")] = None,
    coloring: Annotated[Coloring, typer.Option(help="deep: moves the content least, or as in the paper")] = "nearest",
    depth: Annotated[int, typer.Option(help="deep: level to begin at, 4 (large shapes) to 1 (colour and grain)")] = 4,
    tile: Annotated[int, typer.Option(help="deep: side of the tiles, in pixels; smaller takes less memory")] = TILE,
    half: Annotated[bool, typer.Option("--half", help="deep: half precision, on a GPU")] = False,
    weights: Annotated[Path | None, typer.Option(help="deep: another file of VGG-19's weights")] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N")] = "auto",
    sheet: Annotated[Path | None, typer.Option(help="also write content, style and result side by side")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="frames: do again what is there")] = False,
    times: Annotated[bool, typer.Option("--times", help="say where the time went")] = False,
) -> None:
    """Give a picture the style of another; OUT is written whole or not at all."""
    options = TransferOptions(
        level=level, strength=strength, size=size, style_size=style_size, groups=groups, coloring=coloring,
        depth=depth, tile=tile, half=half, device=device, weights=weights,
    )  # fmt: skip
    if sheet is not None:
        require_suffix("transfer", sheet)
        require_place(sheet)
        for other in (content, style, out):
            if sheet.resolve() == other.resolve():
                raise OptionError(f"`transfer`: --sheet must be another file than {other}. Name another.")
    painting = read_picture(style)
    jobs = jobs_of(content, style, out, overwrite)
    clock, start, pictures = Clock(times), time.perf_counter(), 0
    rows: list[list[Tensor]] = []
    captions: list[list[str]] = []
    try:
        with _bar() as bar:
            task = bar.add_task("transfer", total=None)
            stylist = Stylist(painting, options, clock=clock)
            progress = partial(_show, bar, task)
            for job, before, result in run_jobs(jobs, stylist, progress):
                if sheet is not None and len(rows) < ROWS:
                    rows.append([thumbnail(picture) for picture in (before, painting, result)])
                    captions.append([f"content: {job.content.name}", f"style: {style.name}", _words(options)])
                pictures += 1
    finally:  # of what was done, even where a frame could not be read
        if sheet is not None and rows:
            write_sheet(sheet, rows, captions)
    typer.echo(f"{out}: {pictures} frames made; what was there is kept." if content.is_dir() else str(out))
    if times:
        _print_times(clock, time.perf_counter() - start)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _show(bar: Progress, task: TaskID, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)


def _words(options: TransferOptions) -> str:
    return f"result: {options.level}, strength {options.amount:g}"


def _print_times(clock: Clock, total: float) -> None:
    typer.echo(f"{'all':<14}{total:9.3f} s", err=True)
    for part, seconds in clock.seconds.items():
        typer.echo(f"{part:<14}{seconds:9.3f} s {clock.share(part):7.1%}", err=True)
