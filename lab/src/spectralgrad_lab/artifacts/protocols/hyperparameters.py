"""The three settings of (eps, K) that PAMI's Table 3 and Figure 5 share."""

from spectralgrad_lab.records.results import Scale

from ..spec import Entry
from .protocol import TAYLOR, Change, cells, cifar, seeds

SETTINGS: dict[str, Change] = {
    "(1e-4, 19)": {"eps": 1e-4, "iterations": 19},
    "(1e-2, 19)": {"eps": 1e-2, "iterations": 19},
    "(1e-2, 9)": {"eps": 1e-2, "iterations": 9},
}


def settings(scale: Scale, trials: int) -> tuple[Entry, ...]:
    base = cifar(scale, "cifar100", **{**TAYLOR, "d": 64})
    return cells(base, {"SVD-Taylor": {}}, SETTINGS, seeds(scale, trials, short=10))
