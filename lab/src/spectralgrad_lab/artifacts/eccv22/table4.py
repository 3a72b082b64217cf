from spectralgrad_lab.records.results import Printed, Scale

from ..protocols.conditioning import NEWTON, PAPER_SAYS, SHORT_SAYS, SMOKE, SMOKE_SAYS, TABLE4, decorrelation
from ..protocols.protocol import says
from ..spec import Entry, Spec

SETS = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}


def entries(scale: Scale) -> tuple[Entry, ...]:
    if scale != "paper":
        return decorrelation(scale, SMOKE if scale == "smoke" else TABLE4, 10, "CIFAR-10", "cifar10")
    return tuple(entry for name, data in SETS.items() for entry in decorrelation(scale, TABLE4, 10, name, data))


ROWS: tuple[tuple[str | None, ...], ...] = (
    ("4.35 ± 0.09", "4.17", "19.99 ± 0.16", "19.80"),
    ("4.31 ± 0.10", "4.15", "19.94 ± 0.33", "19.60"),
    ("4.28 ± 0.07", "4.23", "19.73 ± 0.28", "19.54"),
    (None, None, "20.06 ± 0.17", "19.94"),
    (None, None, None, None),
    (None, None, None, None),
    ("4.09 ± 0.07", "4.01", "19.22 ± 0.28", "18.90"),
    ("3.93 ± 0.09", "3.85", "19.05 ± 0.31", "18.77"),
    ("4.20 ± 0.11", "4.11", "19.45 ± 0.33", "19.01"),
)
PRINTED = Printed(
    tuple(f"{name}: {what}" for name in SETS for what in ("mean ± std", "min")),
    dict(zip(TABLE4, ROWS, strict=True)),
    "ECCV22 Table 4: validation errors (%) of ResNet-50, 10 runs.",
)

SPEC = Spec(
    id="eccv22-table4",
    paper="ECCV22",
    shows="decorrelated BN, ResNet-50: all treatments on both sets",
    kind="training",
    printed=(PRINTED,),
    entries=entries,
    says=says(
        smoke=f"{SMOKE_SAYS} Without OL and the pair NOG + OW; with {NEWTON}.",
        short=f"{SHORT_SAYS} CIFAR-10 alone.",
        paper=PAPER_SAYS,
    ),
    claim="NOG, OW and OLR together are best: 0.4 % below SVD on CIFAR-10, 0.9 % on CIFAR-100.",
)
