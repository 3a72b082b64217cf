"""ECCV22's treatments of the layer before the decomposition: the rows that its tables and figures share."""

from collections.abc import Sequence
from dataclasses import replace

from spectralgrad_lab.records.results import Scale

from ..spec import Entry
from .protocol import BN, TAYLOR, Change, cells, cifar, network, seeds

SVD = "SVD"
NEWTON = "Newton-Schulz iteration"
# «SVD» has a stable gradient in ECCV22 (its ref. 46): Taylor, whose eps = 1e-2 PAMI found stable at d = 64.
LAYER: Change = {**TAYLOR, "eps": 1e-2}
BY_PRODUCTS: Change = {"method": "newton", "iterations": None}
NAMES = {  # Table 4 writes some of them out
    "Spectral Norm (SN)": "SN",
    "Orthogonal Loss (OL)": "OL",
    "Orthogonal Weight (OW)": "OW",
    "Nearest Orthogonal Gradient (NOG)": "NOG",
    "Optimal Learning Rate (OLR)": "OLR",
}
ORDER = ("SN", "OL", "OW", "NOG", "OLR")

SKEW = "SVD + OW, skew convolution"
TABLE1 = (SVD, "SVD + SN", "SVD + OL", "SVD + OW", SKEW, NEWTON)
TABLE2 = (SVD, "SVD + NOG", "SVD + NOG + SN", "SVD + NOG + OL", "SVD + NOG + OW", NEWTON)
TABLE3 = (SVD, "SVD + OLR", "SVD + NOG + OLR", "SVD + OW + OLR", "SVD + NOG + OW + OLR", NEWTON)
TABLE4 = (SVD, *(f"SVD + {name}" for name in NAMES), "SVD + NOG + OW", "SVD + NOG + OW + OLR", NEWTON)
SMOKE = (SVD, "SVD + SN", "SVD + OW", "SVD + NOG", "SVD + OLR", "SVD + NOG + OW + OLR", NEWTON)

SMOKE_SAYS = "Groups of 8 channels."
EPOCHS = 16  # at short
PAPER_SAYS = (
    "«SVD» is Taylor(9): the paper uses a stable gradient. eps and the weight of OL are not in the text: 1e-2, 1. With OW, "
    "NOG and OLR act on what the optimizer holds, and OW starts at a random skew matrix: that of the kernel, reshaped."
)
SHORT_SAYS = f"ResNet-18 in the place of ResNet-50; {EPOCHS} epochs. {PAPER_SAYS}"
SKEW_SAYS = (
    "The row «skew convolution» is OW as in the paper's ref. 45: the exponential of a skew convolution, applied by its "
    "series, to the image filled up with channels of zeros to 64; an output sees the whole image, so r = 64."
)
RANGE = (
    "Drawn is the condition on the range, l_1 / l_r, of the covariance before eps is added, for every method alike: r = "
    "min(channels, inputs of the convolution, samples - 1) is the rank that it can have. 64 channels from 27 inputs have "
    "r = 27, and no full condition number."
)
RANGE_POOL = "Pooled maps have r = min(channels, positions - 1)."


def treatments(label: str) -> Change:
    """The change that a row's label stands for.

    >>> treatments("SVD + NOG + OW")
    {'treatments': ('OW', 'NOG')}
    >>> treatments("SVD + Orthogonal Loss (OL)")
    {'treatments': ('OL',)}
    """
    if label == NEWTON:
        return BY_PRODUCTS
    if label == SKEW:
        return {"treatments": ("OW",), "skew": "convolution"}
    named = {NAMES.get(part, part) for part in label.split(" + ")[1:]}
    return {"treatments": tuple(name for name in ORDER if name in named)}


def decorrelation(
    scale: Scale, labels: Sequence[str], trials: int, column: str = "Error (%)", data: str = "cifar100"
) -> tuple[Entry, ...]:
    """Decorrelated batch norm over all 64 channels: ResNet-50 at paper, ResNet-18 at short.

    Smoke takes groups of 8: the digits network's 64 channels come from 9 inputs.
    """
    base = cifar(scale, data, **LAYER, **network(scale, "resnet50" if scale == "paper" else "resnet18"))
    if scale == "smoke":
        base = replace(base, d=8)
    if scale == "short":
        base = replace(base, epochs=EPOCHS)
    rows = {label: BN if label == "BN" else treatments(label) for label in labels}
    return cells(base, rows, {column: {}}, seeds(scale, trials))
