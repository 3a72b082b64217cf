from spectralgrad_lab.records.results import Printed

from ..protocols.hyperparameters import SETTINGS, settings
from ..protocols.protocol import says
from ..spec import Spec

SPEC = Spec(
    id="pami-table3",
    paper="PAMI",
    shows="(eps, K) = (1e-4, 19), (1e-2, 19), (1e-2, 9): success rate and error, d = 64",
    kind="training",
    printed=(
        Printed(
            tuple(SETTINGS),
            {
                "SVD-Taylor: success rate": ("50.0%", "87.5%", "100%"),
                "SVD-Taylor: min": ("21.04", "21.12", "20.91"),
                "SVD-Taylor: mean": ("21.31 ± 0.33", "21.45 ± 0.26", "21.14 ± 0.20"),
            },
            "PAMI Table 3: ResNet-18 on CIFAR-100, d = 64, 8 trials.",
        ),
    ),
    entries=lambda scale: settings(scale, 8),
    says=says(),
    claim="(eps, K) = (1e-2, 9) is more stable and more accurate than larger K or smaller eps.",
)
