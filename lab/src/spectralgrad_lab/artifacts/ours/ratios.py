from dataclasses import replace

from spectralgrad_lab.records.results import Printed, Scale

from ..pami import table4
from ..protocols.protocol import says
from ..spec import Entry, Figure, Spec

ROWS = ("BN", "SVD-PI", "SVD-Taylor", "Exact")  # of the same trainings, with 64 channels after the first convolution
COLUMNS: dict[str, Figure] = {"pairs above the floor": "mean_ratio", "ties at the floor count as 1": "tied_ratio"}


def entries(scale: Scale) -> tuple[Entry, ...]:
    found = [each for each in table4.entries(scale) if each.row in ROWS and each.column == "d = 64"]
    return tuple(replace(each, column=name, figure=figure) for each in found for name, figure in COLUMNS.items())


SPEC = Spec(
    id="ours-ratios",
    paper="OURS",
    shows="mean l_i / l_(i-1) after the first convolution, what NIPS19 takes K = 19 from",
    kind="training",
    printed=(
        Printed(
            ("mean",), {"ResNet-18, CIFAR-10": ("0.84 to 0.86",)}, "NIPS19 section 2.4; it does not say how ties count."
        ),
    ),
    entries=entries,
    says=says(
        short="The trainings of pami-table4. Above the floor: the larger of the two is above eps (batch norm's own for BN), "
        "before eps is added. 64 channels of 27 inputs have 27 eigenvalues; the others are ties at eps once it is added.",
        paper="The trainings of pami-table4.",
    ),
    claim="The average l_i / l_(i-1) lies in [0.84, 0.86], so K = 19 power iterations are a good approximation.",
)
