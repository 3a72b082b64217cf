from spectralgrad_lab.records.results import Printed, Scale

from ..nips19.table2 import MISPRINT
from ..nips19.table2 import ROWS as REPEATED
from ..protocols.protocol import (
    BN,
    CLIP,
    DEFLATION_SAYS,
    EXACT,
    NIPS19,
    PAMI,
    PI,
    SVD,
    SVD_PI,
    TAYLOR,
    Change,
    both_deflations,
    by_d,
    cells,
    cifar,
    says,
    seeds,
)
from ..spec import Entry, Spec

SIZES = (4, 8, 16, 32, 64)
SMOKE = (4, 16, 64)
# The paper repeats the rows SVD, PI and SVD-PI from NIPS19: its eps, and its running subspace.
METHODS: dict[str, Change] = {
    "SVD": {**SVD, **NIPS19},
    "PI": {**PI, **NIPS19},
    "SVD-Clip": CLIP,
    **both_deflations("SVD-PI", SVD_PI, NIPS19),
    "SVD-Taylor": TAYLOR,
}
NIPS19_ROWS = "SVD, PI and SVD-PI are NIPS19's: eps = 1e-4 and a running subspace; the others have eps = 1e-2."


def entries(scale: Scale) -> tuple[Entry, ...]:
    base = cifar(scale, **PAMI)
    if scale == "paper":
        return cells(base, METHODS, by_d(*SIZES), seeds(scale, 15))
    left_out = ("PI", "SVD-Clip") if scale == "smoke" else ()
    rows = {"BN": BN, **{name: change for name, change in METHODS.items() if name not in left_out}, "Exact": EXACT}
    return cells(base, rows, by_d(*(SMOKE if scale == "smoke" else SIZES)), seeds(scale, 15))


PRINTED = Printed(
    tuple(by_d(*SIZES)),
    {
        **{label: cells for label, cells in REPEATED.items() if not label.startswith("SVD-PI")},
        "SVD-Clip: success rate": ("100%", "100%", "100%", "100%", "100%"),
        "SVD-Clip: min": ("4.57", "4.66", "4.70", "4.76", "4.62"),
        "SVD-Clip: mean": ("4.84 ± 0.23", "4.77 ± 0.66", "4.89 ± 0.16", "4.87 ± 0.13", "4.83 ± 0.15"),
        **{label: cells for label, cells in REPEATED.items() if label.startswith("SVD-PI")},
        "SVD-Taylor: success rate": ("100%", "100%", "100%", "100%", "100%"),
        "SVD-Taylor: min": ("4.33", "4.34", "4.33", "4.40", "4.40"),
        "SVD-Taylor: mean": ("4.52 ± 0.09", "4.55 ± 0.12", "4.52 ± 0.14", "4.57 ± 0.16", "4.50 ± 0.08"),
    },
    "PAMI Table 4: errors (%) and success rates of ResNet-18 on CIFAR-10.",
    (MISPRINT,),
)

SPEC = Spec(
    id="pami-table4",
    paper="PAMI",
    shows="SVD, PI, SVD-Clip, SVD-PI, SVD-Taylor x d: success rate, min, mean ± std",
    kind="training",
    printed=(PRINTED,),
    entries=entries,
    says=says(
        smoke="Without PI and SVD-Clip; d = 4, 16, 64.",
        short=f"Exact is ours; BN has no d, the same trainings stand in every column. {NIPS19_ROWS} {DEFLATION_SAYS}",
        paper=f"{NIPS19_ROWS} {DEFLATION_SAYS}",
    ),
    claim="SVD and PI have very low success rates as soon as d > 4; SVD-Taylor never fails, and outperforms them all.",
)
