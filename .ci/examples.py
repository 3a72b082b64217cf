"""Run every example and leave its picture in docs/figures/examples. Run by `make examples`; `ONLY=kabsch` for one."""

import os
import runpy
import sys
import tempfile
import time
from pathlib import Path

os.environ["SOURCE_DATE_EPOCH"] = "0"  # no date in a picture: the same again is the same file
import matplotlib as mpl

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "figures" / "examples"


def main(only: str) -> int:
    mpl.rcParams["svg.hashsalt"] = "examples"
    chosen = [path for path in sorted((ROOT / "examples").glob("*.py")) if only in path.stem]
    if not chosen:
        print(f"examples: none is called {only}")
        return 2
    PICTURES.mkdir(exist_ok=True)
    for path in chosen:
        picture = PICTURES / f"{path.stem}.svg"
        begin = time.monotonic()
        print(f"== {path.stem}", flush=True)
        with tempfile.TemporaryDirectory() as away:
            os.chdir(away)  # what else an example writes
            sys.argv[1:] = []
            runpy.run_path(str(path))["main"](picture=str(picture))
            os.chdir(ROOT)
        print(f"{time.monotonic() - begin:.0f} s, {picture.relative_to(ROOT)}: {picture.stat().st_size / 1000:.0f} kB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if sys.argv[1:] else ""))
