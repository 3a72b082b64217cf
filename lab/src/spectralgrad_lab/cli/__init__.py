"""The command line."""

import sys


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, 1 for a failure, 2 for wrong use, 3 out of --seconds, 130 after Ctrl-C."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        from .app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(f"spectralgrad: the command line needs {error.name}: pip install spectralgrad-lab", file=sys.stderr)
        return 2
    try:
        app(args=arguments, prog_name="spectralgrad", obj=tuple(arguments))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0
