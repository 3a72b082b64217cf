"""The command bench: our speed and accuracy beside torch's, batch norm's and other packages'."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from spectralgrad_lab.bench import on_request
from spectralgrad_lab.bench.cases import SECTIONS
from spectralgrad_lab.bench.command import STOPPED, fill_page
from spectralgrad_lab.bench.command import bench as measure
from spectralgrad_lab.bench.run import Options

__all__ = ["EPILOG", "STOPPED", "BenchCommand", "bench"]

RESULTS = Path("results")
PAGE = Path("docs/speed.md")
SEVERAL = ("--only", "--page")  # take one value or more
OPTIONAL = {"--write": str(RESULTS)}  # may stand without a value

Gpu = Annotated[bool, typer.Option("--gpu", help="measure the CUDA device (default: the CPU)")]
Quick = Annotated[bool, typer.Option("--quick", help="a small part, in seconds")]
Only = Annotated[list[str] | None, typer.Option("--only", metavar="NAME...", help="sections to run")]
Write = Annotated[
    Path | None, typer.Option("--write", metavar="[FOLDER]", help=f"leave a JSON record and its table in {RESULTS}/")
]
Page = Annotated[
    list[Path] | None,
    typer.Option("--page", metavar="RECORD...", help="measure nothing; fill the page and its figures from records"),
]
Into = Annotated[Path, typer.Option("--into", metavar="PAGE", help="the page that --page fills")]

EPILOG = "\n\n".join(
    [
        "Sections: " + "; ".join(f"{name}: {what}" for name, what in SECTIONS.items()) + ".",
        "On request, with --only: " + "; ".join(f"{name}: {what}" for name, what in on_request.SECTIONS.items()) + ".",
    ]
)


def spread(words: list[str]) -> list[str]:
    """The command line with a flag before each of its values, and every optional value in its place.

    >>> spread(["--only", "eigh", "graph", "--write", "--gpu"])
    ['--only', 'eigh', '--only', 'graph', '--write', 'results', '--gpu']
    >>> spread(["--write", "there", "--only"])
    ['--write', 'there', '--only']
    """
    found: list[str] = []
    flag, values = "", 0
    for word in [*words, "--"]:
        if not word.startswith("--"):
            found += [flag, word] if flag in SEVERAL and values else [word]
            values += 1
            continue
        if flag in OPTIONAL and not values:
            found.append(OPTIONAL[flag])
        flag, values = word, 0
        found.append(word)
    return found[:-1]


class BenchCommand(TyperCommand):
    """Flags with several values, `--only eigh graph`, and one whose value may be left out, `--write`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args))


def bench(
    gpu: Gpu = False, quick: Quick = False, only: Only = None, write: Write = None, page: Page = None, into: Into = PAGE
) -> None:
    """Our speed and accuracy beside torch's, batch norm's and other packages', with a target for each."""
    code = fill_page(page, into) if page else measure(Options(gpu, quick, only or []), write)
    if code:
        raise typer.Exit(code)
