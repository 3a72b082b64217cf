"""The command line."""

import argparse
import sys
from pathlib import Path

import spectralgrad as sg

STOPPED = 130  # the exit code of a program that Ctrl-C ended
RESULTS = Path("results")
PAGE = Path("docs/speed.md")


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="spectralgrad", description=sg.__doc__)
    parser.add_argument("--version", action="version", version=f"spectralgrad {sg.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="a thirty-second tour: what breaks, what does not, with a plot")
    demo.add_argument("-o", "--out", type=Path, default=Path("demo"), help="folder for the report (default: demo)")
    _add_bench(commands)
    arguments = parser.parse_args(argv)
    return _bench(arguments) if arguments.command == "bench" else _demo(arguments.out)


def _add_bench(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    from spectralgrad.experiments.bench.cases import SECTIONS

    bench = commands.add_parser(
        "bench",
        help="our speed and accuracy beside torch's, batch norm's and other packages', with a target for each",
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


def _bench(arguments: argparse.Namespace) -> int:
    from spectralgrad.experiments.bench.page import write_page
    from spectralgrad.experiments.bench.progress import Progress
    from spectralgrad.experiments.bench.run import Options, bench, markdown, write

    try:
        if arguments.page:
            for path in write_page(arguments.page, arguments.into):
                print(path)
            return 0
        options = Options(arguments.gpu, arguments.quick, arguments.only)
        if arguments.write:
            arguments.write.mkdir(parents=True, exist_ok=True)  # a folder that cannot be had is an error before, not after
        about, outcome = bench(options, Progress())
        print(markdown(about, outcome.rows), flush=True)
        if arguments.write and outcome.rows:
            print(f"\nwrote {' and '.join(write(arguments.write, options, about, outcome.rows))} to {arguments.write}")
    except sg.errors.OptionError as error:
        print(f"spectralgrad {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        return _missing("bench --page", error)
    except OSError as error:
        print(f"spectralgrad bench: {error.filename}: {error.strerror}.", file=sys.stderr)
        return 1
    if outcome.partial:
        print("spectralgrad bench: stopped; above is what was done.", file=sys.stderr)
    return STOPPED if outcome.partial else 0


def _missing(command: str, error: ModuleNotFoundError) -> int:
    print(f"spectralgrad {command}: needs {error.name}. Install it with pip install 'spectralgrad[plot]'.", file=sys.stderr)
    return 1


def _demo(folder: Path) -> int:
    try:
        from spectralgrad.report.tour import run_tour

        text, page = run_tour(folder)
    except ModuleNotFoundError as error:
        return _missing("demo", error)
    except OSError as error:
        print(
            f"spectralgrad demo: cannot write to {folder}: {error.strerror}. Choose another folder with -o.", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        print("spectralgrad demo: stopped; nothing was written.", file=sys.stderr)
        return STOPPED
    print(text)
    print(f"\nThe report: {page}")
    return 0
