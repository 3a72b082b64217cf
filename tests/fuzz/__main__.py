"""`python -m fuzz [seed=N] [matrices=N] [only=NAME] [device=cuda] [workers=N]`; `make fuzz` calls it.

Exit codes: 0 nothing found, 1 failures, 2 wrong use, 130 interrupted.
"""

import secrets
import sys
import time

import torch

from . import table
from .run import Plan, Run

_WHOLE = ("seed", "matrices", "workers")


def parsed(words: list[str]) -> Plan:
    """The plan for words such as ``seed=3``; an empty value counts as not given.

    >>> parsed(["seed=3", "only=svd", "matrices="]).only
    'svd'
    """
    given: dict[str, str | int] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in (*_WHOLE, "only", "device"):
            raise SystemExit(f"fuzz: unknown option {word!r}. {__doc__.splitlines()[0]}")
        if value:
            given[name] = value if name not in _WHOLE else int(float(value))
    given.setdefault("seed", secrets.randbelow(2**31))
    if given.get("device", "cpu") != "cpu":
        given["workers"] = 0  # one process has the GPU
    return Plan(**given)  # type: ignore[arg-type]


def main(words: list[str]) -> int:
    plan = parsed(words)
    print(
        f"SEED={plan.seed} MATRICES={plan.matrices} ONLY={plan.only} DEVICE={plan.device} torch {torch.__version__}",
        flush=True,
    )
    run = Run(plan)
    code = 0
    try:
        run.go()
    except KeyboardInterrupt:
        print("\ninterrupted: what was found so far", file=sys.stderr)
        code = 130
    print(table.report(run.tally, run.snippets))
    failed = sum(run.tally.failed.values())
    seconds = time.monotonic() - run.started
    print(f"\nSEED={plan.seed}: {run.tally.matrices:,} matrices, {failed:,} failures, {seconds:.0f} s")
    return code or (1 if failed else 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
