from spectralgrad_lab.records.results import Printed, Scale

from ..protocols.both_networks import BATCH_NORM, COLUMNS, SAYS, both_networks
from ..protocols.protocol import cifar, says
from ..spec import Entry, Spec


def entries(scale: Scale) -> tuple[Entry, ...]:
    return both_networks(scale, cifar(scale, "cifar100"), 5, 5)


PRINTED = Printed(
    COLUMNS,
    {
        "ResNet18 SVD-PI: min": ("21.03", "21.15", "21.14", "21.36", "21.04"),
        "ResNet18 SVD-PI: mean": ("21.51 ± 0.28", "21.56 ± 0.35", "21.45 ± 0.25", "21.58 ± 0.27", "21.39 ± 0.23"),
        "ResNet18 SVD-Taylor: min": ("20.99", "20.88", "20.86", "20.71", "20.91"),
        "ResNet18 SVD-Taylor: mean": ("21.24 ± 0.17", "21.32 ± 0.31", "21.30 ± 0.33", "20.99 ± 0.27", "21.14 ± 0.20"),
        "ResNet50 SVD-PI: min": ("20.66", "20.15", "19.78", "19.24", "19.28"),
        "ResNet50 SVD-PI: mean": ("20.98 ± 0.31", "20.59 ± 0.58", "19.92 ± 0.12", "19.54 ± 0.23", "19.94 ± 0.44"),
        "ResNet50 SVD-Taylor: min": ("19.55", "19.21", "19.36", "19.15", "19.26"),
        "ResNet50 SVD-Taylor: mean": ("20.34 ± 0.53", "19.57 ± 0.24", "19.60 ± 0.19", "19.47 ± 0.24", "19.81 ± 0.24"),
    },
    "PAMI Table 5: error rates (%) on CIFAR-100.",
)
NORM = Printed(
    (BATCH_NORM,),
    {
        "ResNet18 BN: min": ("21.68",),
        "ResNet18 BN: mean": ("21.85 ± 0.14",),
        "ResNet50 BN: min": ("20.79",),
        "ResNet50 BN: mean": ("21.62 ± 0.65",),
    },
    "PAMI Table 5: its last column, of which a cell spans both methods of a network.",
)

SPEC = Spec(
    id="pami-table5",
    paper="PAMI",
    shows="ResNet-18/50: SVD-PI, SVD-Taylor x d, batch norm",
    kind="training",
    printed=(PRINTED, NORM),
    entries=entries,
    says=says(
        smoke="One network, d = 16.",
        short=f"d = 16, 64; of ResNet-50 SVD-Taylor at d = 64 and batch norm, 3 seeds. {SAYS}",
        paper=SAYS,
    ),
    claim="SVD-Taylor is better than SVD-PI and than batch norm with both networks, best at d = 32.",
)
