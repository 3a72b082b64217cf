"""`python -m spectralgrad`: the version, the devices, the kernels that run on them, and a self-check of a few seconds."""

import platform
import sys

import torch

import spectralgrad as sg
from spectralgrad import selfcheck
from spectralgrad.kernels.availability import status
from spectralgrad.kernels.cpu import load

USAGE = "usage: python -m spectralgrad [--version | --help]"


def main(arguments: list[str]) -> int:
    """Run the command.

    Returns:
        The exit code: 0 if every check passed, 1 if one failed or nothing can be written, 2 for wrong use.
    """
    try:
        code = _run(arguments)
        sys.stdout.flush()  # a full disk is told here, not by Python when it ends
    except OSError as error:
        print(f"python -m spectralgrad: {error.strerror or error}.", file=sys.stderr)
        code = 1
    return code


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(f"spectralgrad {sg.__version__}")
        return 0
    if arguments in (["--help"], ["-h"]):
        print(
            f"{USAGE}\n\nPrints the version, the devices and the kernels that run on them, and checks the library on each."
        )
        return 0
    if arguments:
        print(
            f"python -m spectralgrad: takes --version or nothing, got {' '.join(arguments)}. The command `spectralgrad` "
            "with its subcommands comes with the laboratory: pip install spectralgrad-lab, in a checkout ./lab.",
            file=sys.stderr,
        )
        return 2
    devices = [torch.device("cpu"), *(torch.device("cuda", i) for i in range(torch.cuda.device_count()))]
    describe(devices)
    return check(devices)


def describe(devices: list[torch.device]) -> None:
    """Print the versions, and for each device its name and its kernels."""
    print(f"spectralgrad {sg.__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    for device in devices:
        print(f"\n{device}: {device_name(device)}")
        for line in kernel_lines(device):
            print(f"  {line}")


def device_name(device: torch.device) -> str:
    """A device in words."""
    if device.type == "cpu":
        capability = torch.backends.cpu.get_cpu_capability()
        threads = torch.get_num_threads()
        return f"{platform.machine()}, {capability}, {threads} thread{'' if threads == 1 else 's'}"
    properties = torch.cuda.get_device_properties(device)
    return (
        f"{properties.name}, compute capability {properties.major}.{properties.minor}, {properties.total_memory >> 30} GiB"
    )


def kernel_lines(device: torch.device) -> list[str]:
    """Which kernels run on ``device``, and why the others do not; plain torch does their work then."""
    lines = [f"kernel {name:10s} {'runs, ' if runs else 'does not run: '}{reason}" for name, runs, reason in status(device)]
    return [native_line(), *lines] if device.type == "cpu" else lines


def native_line() -> str:
    """With which instructions the native kernels of the CPU run, or why they do not."""
    obstacle = load.obstacle()
    if obstacle:
        return f"native kernels do not run: {obstacle}"
    return f"native kernels run, with the instructions {load.level()} of {', '.join(load.levels())}"


def check(devices: list[torch.device]) -> int:
    """Print one line for each check; 0 if all passed, else 1."""
    print()
    results = []
    for result in selfcheck.results(devices):
        results.append(result)
        where = f"{result.device!s:8}{str(result.dtype).removeprefix('torch.'):9}"
        print(f"{'ok' if result.passed else 'FAILED':8}{where}{result.name}: {result.figure}", flush=True)
    failed = sum(not result.passed for result in results)
    print(f"\n{failed} of {len(results)} checks FAILED." if failed else f"\nAll {len(results)} checks passed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
