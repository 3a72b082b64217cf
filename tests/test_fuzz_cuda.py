"""The families of the fuzz on a GPU; `make fuzz DEVICE=cuda` runs more of them."""

import pytest

from fuzz import table
from fuzz.run import Plan, Run

pytestmark = pytest.mark.cuda
SEEDS = (1, 2, 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_promise_is_broken(seed: int) -> None:
    run = Run(Plan(seed=seed, matrices=20_000, device="cuda", workers=0))
    run.go()
    assert not run.tally.failed, table.report(run.tally, run.snippets)
