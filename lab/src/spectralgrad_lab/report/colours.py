"""One colour for one method, in every figure: the palette of Okabe and Ito, which colour-blind readers tell apart.

Its yellow is left out: it is too pale on white. Markers differ too, so that grey prints can be read.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from spectralgrad_lab.records.trial import Trial

GREY, VERMILION, ORANGE, PURPLE = "#6b6b6b", "#d55e00", "#e69f00", "#cc79a7"
SKY, BLUE, GREEN, BLACK, BROWN = "#56b4e9", "#0072b2", "#009e73", "#000000", "#7a4b2a"
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK, BROWN, GREY)
MARKERS = "osD^vP*Xp"
DASHES = ("-", "--", ":", "-.")

METHODS = {
    "bn": GREY,
    "svd": VERMILION,
    "pi": ORANGE,
    "clip": PURPLE,
    "svd-pi": SKY,
    "taylor": BLUE,
    "exact": GREEN,
    "newton": BLACK,
    "lorentzian": BROWN,
}
# ECCV22 compares treatments of one method: they have colours of their own.
TREATMENTS = {"SN": ORANGE, "OL": PURPLE, "OW": SKY, "NOG": GREEN, "OLR": BROWN, "NOG+OLR": VERMILION, "OW+NOG+OLR": BLACK}
# How the papers and we name the methods in words; the first that fits counts.
WORDS = (
    (r"batch ?norm|\bbn\b", "bn"),
    (r"clip", "clip"),
    (r"taylor", "taylor"),
    (r"svd.pi\b", "svd-pi"),
    (r"\bpi\b|power iteration", "pi"),
    (r"newton", "newton"),
    (r"lorentz", "lorentzian"),
    (r"exact", "exact"),
    (r"\bsvd\b|analytic|original", "svd"),
)


class Stroke(NamedTuple):
    """How a line is drawn."""

    colour: str
    marker: str
    dash: str = "-"


def method_of(label: str, trial: Trial | None = None) -> str:
    """The method behind a line: of its trial, else as far as its label says; "" if it does not.

    >>> method_of("Ours", Trial(layer="zca", method="svd-pi")), method_of("SVD-Taylor"), method_of("2^-10")
    ('svd-pi', 'taylor', '')
    """
    if trial is not None:
        return "+".join(trial.treatments) or ("bn" if trial.layer == "bn" else trial.method)
    return next((method for pattern, method in WORDS if re.search(pattern, label.lower())), "")


def looks(methods: Sequence[str]) -> list[Stroke]:
    """A look for each line of a figure: its method's, if that is known and not taken by a line before it.

    >>> [look.colour == METHODS["taylor"] for look in looks(["taylor", "taylor", ""])]
    [True, False, False]
    """
    known = {**METHODS, **TREATMENTS}
    first = {method: i for i, method in reversed(list(enumerate(methods))) if method in known}
    taken = [known[method] for method in first]
    free = [colour for colour in PALETTE if colour not in taken] or list(PALETTE)
    found: list[Stroke] = []
    others = 0
    for i, method in enumerate(methods):
        if first.get(method) == i:
            found.append(Stroke(known[method], MARKERS[list(known).index(method) % len(MARKERS)]))
        else:  # the colours go round, each time with another dash
            dash = DASHES[others // len(free) % len(DASHES)]
            found.append(Stroke(free[others % len(free)], MARKERS[i % len(MARKERS)], dash))
            others += 1
    return found
