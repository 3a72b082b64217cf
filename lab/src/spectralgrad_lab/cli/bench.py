"""`spectralgrad bench`."""

import argparse
import sys
from pathlib import Path

import spectralgrad as sg

STOPPED = 130  # the exit code of a program that Ctrl-C ended
RESULTS = Path("results")
PAGE = Path("docs/speed.md")


def _parser() -> argparse.ArgumentParser:
    from spectralgrad_lab.bench.cases import SECTIONS

    bench = argparse.ArgumentParser(
        prog="spectralgrad bench",
        description="our speed and accuracy beside torch's, batch norm's and other packages', with a target for each",
        epilog="sections: " + "; ".join(f"{name}: {what}" for name, what in SECTIONS.items()),
    )
    bench.add_argument("--gpu", action="store_true", help="measure the CUDA device (default: the CPU)")
    bench.add_argument("--quick", action="store_true", help="a small part, in seconds")
    bench.add_argument("--only", nargs="+", default=[], metavar="NAME", help=f"sections to run: {', '.join(SECTIONS)}")
    bench.add_argument(
        "--write",
        nargs="?",
        type=Path,
        const=RESULTS,
        metavar="FOLDER",
        help="leave a JSON record and its table in results/",
    )
    bench.add_argument(
        "--page", nargs="+", type=Path, metavar="RECORD", help="measure nothing; fill the page and its figures from records"
    )
    bench.add_argument(
        "--into", type=Path, default=PAGE, metavar="PAGE", help=f"the page that --page fills (default: {PAGE})"
    )
    return bench


def bench(argv: list[str]) -> int:
    """Run `bench`, which needs torch alone; returns the exit code."""
    arguments = _parser().parse_args(argv)
    from spectralgrad_lab.bench.page import write_page
    from spectralgrad_lab.bench.progress import Progress
    from spectralgrad_lab.bench.run import Options, markdown, write
    from spectralgrad_lab.bench.run import bench as measure

    try:
        if arguments.page:
            for path in write_page(arguments.page, arguments.into):
                print(path)
            return 0
        options = Options(arguments.gpu, arguments.quick, arguments.only)
        if arguments.write:
            arguments.write.mkdir(parents=True, exist_ok=True)  # a folder that cannot be had is an error before, not after
        about, outcome = measure(options, Progress())
        print(markdown(about, outcome.rows), flush=True)
        if arguments.write and outcome.rows:
            print(f"\nwrote {' and '.join(write(arguments.write, options, about, outcome.rows))} to {arguments.write}")
    except sg.errors.OptionError as error:
        print(f"spectralgrad {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"spectralgrad bench --page: needs {error.name}. pip install 'spectralgrad[plot]' has it.", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"spectralgrad bench: {error.filename}: {error.strerror}.", file=sys.stderr)
        return 1
    if outcome.partial:
        print("spectralgrad bench: stopped; above is what was done.", file=sys.stderr)
    return STOPPED if outcome.partial else 0
