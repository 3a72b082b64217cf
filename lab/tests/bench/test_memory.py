"""What is freed is kept, while the benchmark times calls on a CPU."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from spectralgrad_lab.bench.memory import keep_freed
if sys.argv[1] == "kept" and not keep_freed():
    sys.exit("not glibc")
faults = [0]
for _ in range(32):  # what is small finds its place first
    torch.empty(2**24).zero_()  # 64 MiB
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(min(after - before for before, after in zip(faults, faults[1:])))
"""


def faults(how: str) -> int:
    """Pages that the system brings, at best, for memory as large as what was freed just before."""
    ran = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=False)
    if "not glibc" in ran.stderr:
        pytest.skip("another malloc than glibc's")
    return int(ran.stdout)


def test_memory_that_was_freed_is_not_fetched_again() -> None:
    assert faults("kept") < faults("as it is") / 4
