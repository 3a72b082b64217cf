"""`make attack [SEED=7] [COUNT=1e5] [ONLY=records]`: the campaigns, one by one; exit code 1 if one found something."""

import resource
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from random import Random

from . import files, kills, ranks, records, stores, threads

SHOWN = 5  # faults of a campaign
NEWS = 10.0  # seconds between two lines of progress
Campaign = Callable[[int, Random], Iterator[str | None]]  # yields a fault, or None for a step that held
CAMPAIGNS: dict[str, tuple[Campaign, int]] = {  # name -> campaign, how many by default
    "records": (records.records, 100_000),
    "pickles": (files.pickles, 100_000),
    "pictures": (files.pictures, 10_000),
    "weights": (files.weights, 10_000),
    "interrupts": (threads.interrupts, 1_000),
    "batches": (threads.batches, 100_000),
    "starts": (threads.starts, 3),
    "ranks": (ranks.ranks, len(ranks.FAULTS)),
    "kills": (kills.kills, 200),
    "stores": (stores.stores, 100),
}


def main(arguments: list[str]) -> int:
    given = dict(argument.split("=", 1) for argument in arguments)
    seed = int(given.get("seed") or secrets.randbelow(2**31))
    failed = 0
    print(f"seed {seed}", flush=True)
    for name, (campaign, usual) in CAMPAIGNS.items():
        if given.get("only") and given["only"] not in name:
            continue
        count = min(int(float(given.get("count") or usual)), usual)
        failed += _follow(name, count, campaign(count, Random(f"{name} {seed}")))
    return int(failed > 0)


def _follow(name: str, count: int, steps: Iterator[str | None]) -> int:
    """Run a campaign, tell how far it is and what it finds, and return how many faults that were."""
    begin = told = time.perf_counter()
    faults = 0
    for number, fault in enumerate(steps, 1):
        if fault is not None:
            faults += 1
            if faults <= SHOWN:
                print(f"  {name}: {fault}", flush=True)
        if time.perf_counter() > told + NEWS:
            told = time.perf_counter()
            print(f"  {name}: {number} steps in {told - begin:.0f} s, {faults} faults", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{name}: {count} in {time.perf_counter() - begin:.0f} s, {faults} faults, peak {peak:.1f} GiB", flush=True)
    return faults


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
