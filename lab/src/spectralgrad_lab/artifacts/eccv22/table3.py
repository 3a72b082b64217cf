from spectralgrad_lab.records.results import Printed

from ..protocols.conditioning import NEWTON, PAPER_SAYS, SHORT_SAYS, SMOKE_SAYS, SVD, TABLE3, decorrelation
from ..protocols.protocol import says
from ..spec import Spec

PRINTED = Printed(
    ("mean ± std", "min"),
    {
        SVD: ("19.99 ± 0.16", "19.80"),
        "SVD + OLR": ("19.50 ± 0.39", "18.95"),
        "SVD + NOG + OLR": ("19.77 ± 0.27", "19.36"),
        "SVD + OW + OLR": ("20.61 ± 0.22", "20.43"),
        "SVD + NOG + OW + OLR": ("19.05 ± 0.31", "18.77"),
        NEWTON: ("19.45 ± 0.33", "19.01"),
    },
    "ECCV22 Table 3: validation errors (%) of ResNet-50 on CIFAR-100, 10 runs.",
)

SPEC = Spec(
    id="eccv22-table3",
    paper="ECCV22",
    shows="decorrelated BN, ResNet-50: OLR and hybrid treatments",
    kind="training",
    printed=(PRINTED,),
    entries=lambda scale: decorrelation(scale, TABLE3, 10),
    says=says(smoke=SMOKE_SAYS, short=SHORT_SAYS, paper=PAPER_SAYS),
    claim="OLR improves the error by 0.5 %; with one of NOG and OW it is a little worse, with both it is best.",
)
