from dataclasses import replace

from spectralgrad_lab.records.results import Printed, Scale

from ..pami import table5
from ..protocols.protocol import says
from ..spec import Entry, Spec

ROWS = {"BN": "BN", "SVD-Taylor": "SVD (Taylor, d = 64)"}
COLUMN = "l_1 / l_27"


def entries(scale: Scale) -> tuple[Entry, ...]:
    found = [each for each in table5.entries(scale) if each.column in ("Batch Norm", SIZES[scale])]
    rows = {f"ResNet18 {row}": name for row, name in ROWS.items()}
    return tuple(
        replace(each, row=rows[each.row], column=COLUMN, figure="condition_range") for each in found if each.row in rows
    )


SIZES = {"smoke": "d = 16", "short": "d = 64", "paper": "d = 64"}
SPEC = Spec(
    id="ours-premise",
    paper="OURS",
    shows="the condition of the covariance after the first convolution, with batch norm and with a decomposition",
    kind="training",
    printed=(
        Printed(
            (COLUMN,), {"BN": ("1e3",), "SVD": ("1e12",)}, "ECCV22 section 1, on Fig. 1: CIFAR-100; of the whole matrix."
        ),
    ),
    entries=entries,
    says=says(
        short="The trainings of pami-table5. On the range: 64 channels of 27 inputs have 27 eigenvalues, and the condition "
        "of the whole matrix does not exist.",
        paper="The trainings of pami-table5.",
    ),
    claim="A decomposition makes the covariance very ill-conditioned, about 1e12, where batch norm has 1e3.",
)
