from spectralgrad_lab.records.results import Printed, Scale

from ..protocols.both_networks import BATCH_NORM, COLUMNS, SAYS, both_networks
from ..protocols.protocol import cifar, says
from ..spec import Entry, Spec

MEAN = "The mean is over all 8 x 8 positions of the last map, where Table 2 prints 4 x 4, which is CIFAR's."


def entries(scale: Scale) -> tuple[Entry, ...]:
    schedule = {"epochs": 90, "milestones": (30, 60)} if scale == "paper" else {}  # x0.1 every 30
    return both_networks(scale, cifar(scale, "tinyimagenet", **schedule), 5, 1)


PRINTED = Printed(
    COLUMNS,
    {
        "ResNet18 SVD-PI: min": ("36.24", "36.78", "36.88", "36.78", "36.48"),
        "ResNet18 SVD-PI: mean": ("36.62 ± 0.46", "38.43 ± 1.66", "37.27 ± 0.36", "38.43 ± 1.65", "36.83 ± 0.22"),
        "ResNet18 SVD-Taylor: min": ("36.30", "36.42", "35.68", "36.96", "36.16"),
        "ResNet18 SVD-Taylor: mean": ("36.58 ± 0.30", "36.70 ± 0.29", "36.64 ± 0.66", "37.32 ± 0.28", "36.72 ± 0.41"),
        "ResNet50 SVD-PI": ("35.74", "35.60", "35.36", "35.34", "35.10"),
        "ResNet50 SVD-Taylor": ("35.18", "35.40", "35.16", "35.02", "34.74"),
    },
    "PAMI Table 6: error rates (%) on Tiny ImageNet's validation set; ResNet-50 was run once.",
)
NORM = Printed(
    (BATCH_NORM,),
    {"ResNet18 BN: min": ("36.92",), "ResNet18 BN: mean": ("37.15 ± 0.21",), "ResNet50 BN": ("35.98",)},
    "PAMI Table 6: its last column, of which a cell spans both methods of a network.",
)

SPEC = Spec(
    id="pami-table6",
    paper="PAMI",
    shows="ResNet-18/50 x d, batch norm, on Tiny ImageNet",
    kind="training",
    printed=(PRINTED, NORM),
    entries=entries,
    says=says(
        smoke="One network, d = 16.",
        short=f"d = 16, 64; of ResNet-50 SVD-Taylor at d = 64 and batch norm, 3 seeds. {MEAN} {SAYS}",
        paper="90 epochs, learning rate x0.1 after 30 and 60; the first stage has stride 1, as PAMI's Table 2 says. "
        f"{MEAN} {SAYS}",
    ),
    claim="SVD-Taylor systematically outperforms SVD-PI on Tiny ImageNet too.",
)
