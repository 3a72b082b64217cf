from spectralgrad_lab.records.results import Printed

from ..protocols.denoising import COLUMN, DRAFT_SAYS, METHODS_SAYS, by_method
from ..protocols.protocol import says
from ..spec import Spec

SPEC = Spec(
    id="draft-table2",
    paper="DRAFT",
    shows="BN, PCA(PI), PCA(SVD), PCA(SVD-PI) at 95 % energy",
    kind="training",
    printed=(
        Printed(
            (COLUMN,),
            {
                "BN: min": ("4.66",),
                "BN: mean": ("4.81 ± 0.19",),
                "PCA(PI): min": ("5.05",),
                "PCA(PI): mean": ("5.35 ± 0.25",),
                "PCA(SVD): min": ("NaN",),
                "PCA(SVD): mean": ("NaN",),
                "PCA(SVD-PI): min": ("4.58",),
                "PCA(SVD-PI): mean": ("4.67 ± 0.06",),
            },
            "DRAFT Table 2: CIFAR-10 test errors (%), ResNet-18, mean of 4; printed with methods in columns, and "
            "«PCA(SVD-PI)» as «PCA(SVD+PI)».",
        ),
    ),
    entries=lambda scale: by_method(scale, 0.95, 4),
    says=says(
        short=f"{DRAFT_SAYS} {METHODS_SAYS}",
        paper=f"{DRAFT_SAYS} {METHODS_SAYS}",
    ),
    claim="PCA denoising at 95 % energy by SVD-PI outperforms batch norm.",
)
