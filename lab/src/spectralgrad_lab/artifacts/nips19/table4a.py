from spectralgrad_lab.records.results import Printed

from ..protocols.denoising import COLUMN, SAYS, by_energy
from ..protocols.protocol import says
from ..spec import Spec

SPEC = Spec(
    id="nips19-table4a",
    paper="NIPS19",
    shows="PCA denoising: energy kept 85..100 %",
    kind="training",
    printed=(
        Printed(
            (COLUMN,),
            {
                "85": ("5.60 ± 0.74",),
                "90": ("5.05 ± 0.07",),
                "95": ("4.67 ± 0.06",),
                "99": ("4.63 ± 0.11",),
                "99.5": ("4.72 ± 0.10",),
                "100": ("4.81 ± 0.19",),
            },
            "NIPS19 Table 4(a): error by percentage of preserved information, CIFAR-10.",
            ("The text prints «4.72 ± 0.10» twice, the second time without a percentage.",),
        ),
    ),
    entries=by_energy,
    says=says(
        short="85, 95, 99 and 100 %.",
        paper=f"100 % is trained as batch norm, which it is: the input is standardised. {SAYS}",
    ),
    claim="Keeping less than 90 % of the variance hurts; 99 % is best.",
)
