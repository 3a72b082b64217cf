"""The demo: every method by group size on digits, in about three minutes on two cores. What fails, fails."""

from dataclasses import replace

from spectralgrad_lab.artifacts.spec import Entry, Spec
from spectralgrad_lab.records.results import Scale
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial

# 64 channels after the first convolution, which sees 9 inputs: from d = 16 on the covariance has ties at eps.
BASE = Trial(width=64, epochs=4, lr=0.05, milestones=(3,), augment=False)
METHODS = {"SVD": "svd", "PI": "pi", "SVD-Clip": "clip", "SVD-PI": "svd-pi", "SVD-Taylor": "taylor", "Exact": "exact"}
SIZES = (4, 8, 16, 32, 64)
SEEDS = 2
NORM = "batch norm"


def entries(scale: Scale) -> tuple[Entry, ...]:
    """The cells, the same at every scale; batch norm has no d, and the same trainings stand in all its columns."""
    plain = tuple(replace(BASE, seed=seed) for seed in range(SEEDS))
    made = [Entry(NORM, f"d = {d}", plain) for d in SIZES]
    for name, method in METHODS.items():
        for d in SIZES:
            trials = (replace(BASE, layer="zca", method=method, d=d, seed=seed) for seed in range(SEEDS))
            made.append(Entry(name, f"d = {d}", tuple(trials)))
    return tuple(made)


SPEC = Spec(
    id="demo",
    paper="Ours",
    shows="methods x d on digits: success rate and error",
    kind="training",
    entries=entries,
    judged=True,
    says={"smoke": f"scikit-learn's digits, {BASE.epochs} epochs, {SEEDS} seeds: not the paper's protocol."},
)


def conclusion(store: Store) -> str:
    """What the demo found, in words: of each method how many trainings stayed finite, and how many learned."""
    from spectralgrad_lab.report.cells import measure

    cells = [measure(entry, store) for entry in entries("smoke")]
    lost, strayed, well = [], [], []
    for row in dict.fromkeys(cell.row for cell in cells):
        own = [cell for cell in cells if cell.row == row and (row != NORM or cell.column == cells[0].column)]
        run, finite, learned = (sum(x) for x in zip(*((c.run, c.finite, c.successes) for c in own), strict=True))
        where = ", ".join(cell.column for cell in own if cell.successes < cell.run)
        if finite < run:
            lost.append(f"{row} was not finite in {run - finite} of {run} trainings ({where})")
        if learned < finite:
            strayed.append(f"{row} stayed finite yet did not learn in {finite - learned} of {run} ({where})")
        if learned == run:
            well.append(row)
    parts = [*lost, *strayed, f"all trainings of {', '.join(well)} stayed finite and converged" if well else ""]
    why = store.load_computed("demo-why", "smoke")
    return f"Conclusion. {'; '.join(filter(None, parts))}. {' '.join(why.remarks) if why else ''}".strip()
