from spectralgrad_lab.records.results import Printed

from ..protocols.denoising import COLUMN, SAYS, by_iterations
from ..protocols.protocol import says
from ..spec import Spec

SPEC = Spec(
    id="nips19-table4c",
    paper="NIPS19",
    shows="PCA denoising at 99.9 % energy: power iterations 1..29",
    kind="training",
    printed=(
        Printed(
            (COLUMN,),
            {
                "1": ("4.72 ± 0.10",),
                "2": ("4.63 ± 0.09",),
                "4": ("4.67 ± 0.09",),
                "9": ("4.61 ± 0.14",),
                "14": ("4.69 ± 0.11",),
                "19": ("4.63 ± 0.11",),
                "29": ("4.61 ± 0.03",),
            },
            "NIPS19 Table 4(c): error by number of power iterations, CIFAR-10.",
        ),
    ),
    entries=by_iterations,
    says=says(short="1, 2, 9 and 19 iterations.", paper=SAYS),
    claim="Two power iterations are enough for PCA denoising.",
)
