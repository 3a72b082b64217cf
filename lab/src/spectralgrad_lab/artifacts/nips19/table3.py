from spectralgrad_lab.records.results import Printed, Scale

from ..protocols.protocol import (
    BN,
    DEFLATION_SAYS,
    NIPS19,
    SVD_PI,
    both_deflations,
    by_d,
    cells,
    cifar,
    network,
    says,
    seeds,
)
from ..spec import Entry, Spec

SIZES = (64, 32, 16, 8, 4)


def entries(scale: Scale) -> tuple[Entry, ...]:
    base = cifar(scale, "cifar100", **NIPS19)
    sizes = {
        "ResNet18": {"smoke": (16, 4), "short": (64, 16), "paper": SIZES}[scale],
        "ResNet50": {"smoke": (), "short": (64,), "paper": SIZES}[scale],
    }
    found: tuple[Entry, ...] = ()
    for name, chosen in sizes.items():
        rows = both_deflations(name, SVD_PI, network(scale, name.lower())) if chosen else {}
        for label, change in rows.items():
            ours = label != name  # batch norm has no deflation, and short has no time for both with ResNet-50
            if not ours or name == "ResNet18" or scale == "paper":
                columns = by_d(*chosen) if ours else {"BN": BN, **by_d(*chosen)}
                found += cells(base, {label: change}, columns, seeds(scale, 5, short=3 if name == "ResNet50" else 5))
    return found


PRINTED = Printed(
    ("BN", *by_d(*SIZES)),
    {
        "ResNet18: min": ("21.68", "21.04", "21.36", "21.14", "21.15", "21.03"),
        "ResNet18: mean": ("21.85 ± 0.14", "21.39 ± 0.23", "21.58 ± 0.27", "21.45 ± 0.25", "21.56 ± 0.35", "21.51 ± 0.28"),
        "ResNet50: min": ("20.79", "19.28", "19.24", "19.78", None, "20.66"),
        "ResNet50: mean": ("21.62 ± 0.65", "19.94 ± 0.44", "19.54 ± 0.23", "19.92 ± 0.12", "20.59 ± 0.58", "20.98 ± 0.31"),
    },
    "NIPS19 Table 3: error rates (%) on CIFAR-100.",
)

SPEC = Spec(
    id="nips19-table3",
    paper="NIPS19",
    shows="ResNet-18 and 50, SVD-PI x d against batch norm",
    kind="training",
    printed=(PRINTED,),
    entries=entries,
    says=says(
        short=f"d = 64, 16 for ResNet-18, d = 64 and 3 seeds for ResNet-50. {DEFLATION_SAYS}",
        smoke="One network for both.",
        paper=DEFLATION_SAYS,
    ),
    claim="Whitening larger groups outperforms batch norm in mean error, with both networks.",
)
