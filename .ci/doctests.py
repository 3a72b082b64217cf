"""Run the doctests of an installed package, by Python alone: `python -I doctests.py spectralgrad`."""

import doctest
import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path


def main(name: str) -> int:
    package = importlib.import_module(name)
    if not Path(package.__file__).is_relative_to(sys.prefix):
        print(f"doctests: {name} comes from {package.__file__}, not from the environment {sys.prefix}")
        return 1
    failed = attempted = 0
    skipped = []
    for found in pkgutil.walk_packages(package.__path__, f"{name}."):
        leaf = found.name.rpartition(".")[2]
        if leaf.startswith("triton_") and not importlib.util.find_spec("triton"):
            skipped.append(leaf)  # its kernels cannot even be defined without Triton
        elif leaf != "__main__":
            result = doctest.testmod(importlib.import_module(found.name), optionflags=doctest.ELLIPSIS)  # as pytest does
            failed, attempted = failed + result.failed, attempted + result.attempted
    left = f", without {', '.join(skipped)}: no triton" if skipped else ""
    print(f"{attempted - failed} of {attempted} examples passed{left}")
    return 1 if failed or not attempted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
