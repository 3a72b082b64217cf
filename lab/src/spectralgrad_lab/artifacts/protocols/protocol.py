"""The papers' protocols at three scales, their methods, and the grids of trials that the specs are made of."""

from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from spectralgrad_lab.models.resnet import DIGITS_STEM
from spectralgrad_lab.records.results import Scale
from spectralgrad_lab.records.trial import Trial

from ..spec import Entry, Figure

Change = Mapping[str, Any]  # fields of a trial

# Smoke: digits on the CPU, less than a second a trial.
DIGITS = Trial(width=8, epochs=2, batch=64, milestones=(), augment=False, train_samples=512, test_samples=256)
# On a GPU a step is one CUDA graph: batches of one size, and bfloat16 but for the stem and what is decomposed.
_GRAPH: dict[str, Any] = {"drop_last": True, "precision": "bf16-mixed"}
# Short: as few epochs as tell methods apart, so that there is time for seeds.
SHORT = Trial(
    data="cifar10", model="resnet18", epochs=8, milestones=(), schedule="onecycle", nesterov=True, evaluate=4, **_GRAPH
)
SHORT_EPOCHS = {"cifar10": 8, "cifar100": 24, "tinyimagenet": 8}
PAPER = Trial(data="cifar10", model="resnet18", epochs=350, milestones=(100, 200, 300), evaluate=10, **_GRAPH)

NIPS19: Change = {"eps": 1e-4, "running": "whitening"}  # Alg. 1 keeps a running whitening matrix
PAMI: Change = {"eps": 1e-2, "running": "covariance"}  # Alg. 2 keeps a running covariance

BN: Change = {"layer": "bn"}
SVD: Change = {"layer": "zca", "method": "svd"}
PI: Change = {"layer": "zca", "method": "pi", "iterations": 19}
CLIP: Change = {"layer": "zca", "method": "clip"}
SVD_PI: Change = {"layer": "zca", "method": "svd-pi", "iterations": 19, "deflation": "printed"}  # M - M v v^T
TAYLOR: Change = {"layer": "zca", "method": "taylor", "iterations": 9}
EXACT: Change = {"layer": "zca", "method": "exact"}

_DEFAULT = {field.name: field.default for field in fields(Trial)}
_OF_THE_LAYER = (
    "method",
    "d",
    "where",
    "eps",
    "iterations",
    "energy",
    "rank",
    "running",
    "treatments",
    "deflation",
    "through",
    "skew",
)
_PLAIN: dict[str, Any] = {name: _DEFAULT[name] for name in _OF_THE_LAYER}


def both_deflations(label: str, *changes: Change) -> dict[str, Change]:
    """A row of SVD-PI with the deflation that the paper prints, and one with ours, which loses no degree of the series.

    >>> {label: change["deflation"] for label, change in both_deflations("SVD-PI", SVD_PI).items()}
    {'SVD-PI': 'printed', 'SVD-PI, two-sided': 'two-sided'}
    """
    printed = {name: value for change in changes for name, value in change.items()}
    return {label: printed, f"{label}, two-sided": {**printed, "deflation": "two-sided"}}


def cifar(scale: Scale, paper: str = "cifar10", **changes: Any) -> Trial:
    """The base trial of CIFAR's protocol: digits at smoke, the paper's own set at short and at paper."""
    short = replace(SHORT, data=paper, epochs=SHORT_EPOCHS[paper])
    base = {"smoke": DIGITS, "short": short, "paper": replace(PAPER, data=paper)}[scale]
    return replace(base, **changes)


def network(scale: Scale, model: str) -> Change:
    """A change of the network, which smoke does not make: it has the digits network alone."""
    return {} if scale == "smoke" else {"model": model}


def seeds(scale: Scale, paper: int, smoke: int = 1, short: int = 5) -> int:
    return {"smoke": smoke, "short": short, "paper": paper}[scale]


def by_d(*sizes: int) -> dict[str, Change]:
    """Columns by the size of the groups.

    >>> by_d(4, 8)
    {'d = 4': {'d': 4}, 'd = 8': {'d': 8}}
    """
    return {f"d = {d}": {"d": d} for d in sizes}


def trial(base: Trial, *changes: Change, seed: int = 0) -> Trial:
    """The base with all changes, later ones over earlier ones.

    Batch norm has none of the whitening layer's options: they are left at their defaults, so that one training serves
    every table that has it. For the same reason a group of all channels after the first convolution is always their number.

    >>> trial(SHORT, PAMI, BN, {"d": 16}) == trial(SHORT, BN)
    True
    >>> trial(SHORT, TAYLOR) == trial(SHORT, TAYLOR, {"d": 64})
    True
    """
    made: dict[str, Any] = {}
    for change in changes:
        made.update(change)
    result = replace(base, **made, seed=seed)
    if result.layer == "bn":
        return replace(result, **_PLAIN)
    if result.layer in ("zca", "pca") and result.where == "first" and result.d is None:
        return replace(result, d=DIGITS_STEM if result.model == "digits" else result.width)
    return result


def cells(
    base: Trial,
    rows: Mapping[str, Change],
    columns: Mapping[str, Change],
    seeds: int,
    figures: Mapping[str, Figure] = MappingProxyType({}),
) -> tuple[Entry, ...]:
    """An entry for each row and column, row by row; ``figures`` says which figure a column shows, if not the test error.

    >>> grid = cells(DIGITS, {"BN": BN, "Taylor": TAYLOR}, by_d(4, 8), seeds=2)
    >>> [(entry.row, entry.column, len(entry.trials)) for entry in grid]
    [('BN', 'd = 4', 2), ('BN', 'd = 8', 2), ('Taylor', 'd = 4', 2), ('Taylor', 'd = 8', 2)]
    """
    return tuple(
        Entry(
            row,
            column,
            tuple(trial(base, one, other, seed=seed) for seed in range(seeds)),
            figures.get(column, "test_error"),
        )
        for row, one in rows.items()
        for column, other in columns.items()
    )


SMOKE_SAYS = "scikit-learn's digits, a small network and 2 epochs on the CPU: that it runs, not the paper's figures."
SHORT_SAYS = (
    f"{SHORT.epochs} epochs on CIFAR-10, {SHORT_EPOCHS['cifar100']} on CIFAR-100, of a one-cycle schedule (peak {SHORT.lr}, "
    "Nesterov), 5 seeds where nothing else is said."
)
GRAPH_SAYS = "Images that do not fill a batch are left out; convolutions after the first are in bfloat16."
PAPER_SAYS = (
    "NIPS19 and the draft print no epochs and no learning rate: PAMI's. Crop and flip of CIFAR's images are in no text."
)

DEFLATION_SAYS = (
    "SVD-PI deflates as printed, M - M v v^T: the pairs reached through it have one degree less than the others. The row "
    "«two-sided» is ours, without that loss: 19 iterations are then Taylor(18)."
)


def says(short: str = "", paper: str = "", smoke: str = "") -> dict[str, str]:
    """What the scales do differently, the common part first."""
    texts = {
        "smoke": (SMOKE_SAYS, smoke),
        "short": (SHORT_SAYS, GRAPH_SAYS, short),
        "paper": (PAPER_SAYS, GRAPH_SAYS, paper),
    }
    return {scale: " ".join(text).strip() for scale, text in texts.items()}


def says_of_timing(more: str = "") -> dict[str, str]:
    """What the scales of a timing do."""
    texts = {
        "smoke": "The digits network on random images of the digits' size, on the CPU.",
        "short": "Random images of CIFAR's size, on the first GPU where there is one.",
        "paper": "As short, with more rounds.",
    }
    return {scale: f"{text} {more}".strip() for scale, text in texts.items()}
