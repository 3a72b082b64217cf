from spectralgrad_lab.records.results import Printed

from ..protocols.conditioning import NEWTON, PAPER_SAYS, SHORT_SAYS, SKEW_SAYS, SMOKE_SAYS, SVD, TABLE1, decorrelation
from ..protocols.protocol import says
from ..spec import Spec

PRINTED = Printed(
    ("mean ± std", "min"),
    {
        SVD: ("19.99 ± 0.16", None),
        "SVD + SN": ("19.94 ± 0.33", "19.60"),
        "SVD + OL": ("19.73 ± 0.28", None),
        "SVD + OW": ("20.06 ± 0.17", "19.94"),
        NEWTON: ("19.45 ± 0.33", "19.01"),
    },
    "ECCV22 Table 1: validation errors (%) of ResNet-50 on CIFAR-100, 10 runs. The text lost the labels of the first and "
    "third rows; Table 4 has them with the same means.",
)

SPEC = Spec(
    id="eccv22-table1",
    paper="ECCV22",
    shows="decorrelated BN, ResNet-50: weight treatments",
    kind="training",
    printed=(PRINTED,),
    entries=lambda scale: decorrelation(scale, TABLE1, 10),
    says=says(smoke=SMOKE_SAYS, short=f"{SHORT_SAYS} {SKEW_SAYS}", paper=f"{PAPER_SAYS} {SKEW_SAYS}"),
    claim="Better conditioning by the weight alone does not bring a better error: SN and OL help a little, OW hurts.",
)
