"""The command line."""

import argparse
import sys
from pathlib import Path

import spectralgrad as sg


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="spectralgrad", description=sg.__doc__)
    parser.add_argument("--version", action="version", version=f"spectralgrad {sg.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="a thirty-second tour: what breaks, what does not, with a plot")
    demo.add_argument("-o", "--out", type=Path, default=Path("demo"), help="folder for the report (default: demo)")
    arguments = parser.parse_args(argv)
    return _demo(arguments.out)


def _demo(folder: Path) -> int:
    try:
        from spectralgrad.report.tour import run_tour

        text, page = run_tour(folder)
    except ModuleNotFoundError as error:
        print(f"spectralgrad demo: needs {error.name}. Install it with pip install 'spectralgrad[plot]'.", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"spectralgrad demo: cannot write to {folder}: {error.strerror}. Choose another folder with -o.", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        print("spectralgrad demo: stopped; nothing was written.", file=sys.stderr)
        return 130
    print(text)
    print(f"\nThe report: {page}")
    return 0
