"""The demo: every method by group size on digits, in under three minutes on two cores. What fails, fails."""

from dataclasses import replace

from spectralgrad_lab.artifacts.spec import Entry, Spec
from spectralgrad_lab.records.results import Scale
from spectralgrad_lab.records.trial import Trial

# 64 channels after the first convolution, which sees 9 inputs: from d = 16 on the covariance has ties at eps.
BASE = Trial(width=64, epochs=4, lr=0.05, milestones=(3,), augment=False)
METHODS = {"SVD": "svd", "PI": "pi", "SVD-Clip": "clip", "SVD-PI": "svd-pi", "SVD-Taylor": "taylor", "Exact": "exact"}
SIZES = (4, 8, 16, 32, 64)
SEEDS = 2


def entries(scale: Scale) -> tuple[Entry, ...]:
    """The cells, the same at every scale; batch norm has no d, and the same trainings stand in all its columns."""
    plain = tuple(replace(BASE, seed=seed) for seed in range(SEEDS))
    made = [Entry("batch norm", f"d = {d}", plain) for d in SIZES]
    for name, method in METHODS.items():
        for d in SIZES:
            trials = (replace(BASE, layer="zca", method=method, d=d, seed=seed) for seed in range(SEEDS))
            made.append(Entry(name, f"d = {d}", tuple(trials)))
    return tuple(made)


SPEC = Spec(
    id="demo",
    paper="ours",
    shows="methods x d on digits: success rate and error",
    kind="training",
    entries=entries,
    says={"smoke": f"scikit-learn's digits, {BASE.epochs} epochs, {SEEDS} seeds: not the paper's protocol."},
)
