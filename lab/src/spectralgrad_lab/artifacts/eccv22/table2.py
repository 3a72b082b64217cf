from spectralgrad_lab.records.results import Printed

from ..protocols.conditioning import NEWTON, PAPER_SAYS, SHORT_SAYS, SMOKE_SAYS, SVD, TABLE2, decorrelation
from ..protocols.protocol import says
from ..spec import Spec

PRINTED = Printed(
    ("mean ± std", "min"),
    {
        SVD: ("19.99 ± 0.16", "19.80"),
        "SVD + NOG": (None, "19.15"),
        "SVD + NOG + SN": (None, "19.20"),
        "SVD + NOG + OL": ("20.14 ± 0.39", "19.54"),
        "SVD + NOG + OW": ("19.22 ± 0.28", "18.90"),
        NEWTON: ("19.45 ± 0.33", "19.01"),
    },
    "ECCV22 Table 2: validation errors (%) of ResNet-50 on CIFAR-100, 10 runs.",
)

SPEC = Spec(
    id="eccv22-table2",
    paper="ECCV22",
    shows="decorrelated BN, ResNet-50: NOG and weight treatments",
    kind="training",
    printed=(PRINTED,),
    entries=lambda scale: decorrelation(scale, TABLE2, 10),
    says=says(smoke=SMOKE_SAYS, short=SHORT_SAYS, paper=PAPER_SAYS),
    claim="NOG improves the error by 0.6 %, NOG with OW by 0.3 % more; NOG with OL harms.",
)
