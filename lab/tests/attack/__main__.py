"""`make attack [SEED=7] [COUNT=1e5] [ONLY=records]`: the campaigns, one by one; exit code 1 if one found something."""

import resource
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random

from . import files, ranks, records, threads

SHOWN = 5  # faults of a campaign
CAMPAIGNS: dict[str, tuple[Callable[[int, Random], Iterator[str]], int]] = {  # name -> campaign, how many by default
    "records": (records.records, 100_000),
    "pickles": (files.pickles, 100_000),
    "pictures": (files.pictures, 10_000),
    "weights": (files.weights, 10_000),
    "interrupts": (threads.interrupts, 1_000),
    "batches": (threads.batches, 100_000),
    "starts": (threads.starts, 3),
    "ranks": (ranks.ranks, len(ranks.FAULTS)),
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
        start, faults = time.perf_counter(), campaign(count, Random(f"{name} {seed}"))
        found = list(islice(faults, SHOWN))
        more = sum(1 for _ in faults)
        failed += len(found) + more
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        took = time.perf_counter() - start
        print(f"{name}: {count} in {took:.0f} s, {len(found) + more} faults, peak {peak:.1f} GiB", flush=True)
        for fault in found:
            print(f"  {fault}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
