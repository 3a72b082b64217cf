from spectralgrad_lab.records.results import Printed, Scale

from ..protocols.conditioning import PAPER_SAYS, SMOKE, TABLE4, treatments
from ..protocols.pooling import ROOT_SAYS, resnet18
from ..protocols.pooling import SHORT_SAYS as POOL_SAYS
from ..protocols.protocol import cells, says
from ..spec import Entry, Figure, Spec

COLUMNS = ("Failure Times", "Top-1 Acc. (%)", "Top-5 Acc. (%)")
FIGURES: dict[str, Figure] = {
    "Failure Times": "solver_failures",
    "Top-1 Acc. (%)": "accuracy",
    "Top-5 Acc. (%)": "top5_accuracy",
}


def entries(scale: Scale) -> tuple[Entry, ...]:
    labels = SMOKE if scale == "smoke" else TABLE4
    rows = {label: treatments(label) for label in labels}
    return cells(resnet18(scale), rows, {column: {} for column in COLUMNS}, seeds=1, figures=FIGURES)


ROWS = (
    ("5", "73.13", "91.02"),
    ("2", "73.28 (↑ 0.2)", "91.11 (↑ 0.1)"),
    ("1", "71.75 (↓ 1.4)", "90.20 (↓ 0.8)"),
    ("2", "73.07 (↓ 0.1)", "90.93 (↓ 0.1)"),
    ("1", "73.51 (↑ 0.4)", "91.35 (↑ 0.3)"),
    ("0", "73.39 (↑ 0.3)", "91.26 (↑ 0.2)"),
    ("0", "73.71 (↑ 0.6)", "91.43 (↑ 0.4)"),
    ("0", "73.82 (↑ 0.7)", "91.57 (↑ 0.6)"),
    ("0", "73.36 (↑ 0.2)", "90.96 (↓ 0.1)"),
)
PRINTED = Printed(
    COLUMNS,
    dict(zip(TABLE4, ROWS, strict=True)),
    "ECCV22 Table 5: pooling with ResNet-18 on ImageNet; failures of the SVD solver in one training, accuracies.",
)

SPEC = Spec(
    id="eccv22-table5",
    paper="ECCV22",
    shows="GCP, ResNet-18: solver failures, top-1, top-5",
    kind="training",
    printed=(PRINTED,),
    entries=entries,
    says=says(
        smoke="Pooling of 16 channels.",
        short=f"{POOL_SAYS} {PAPER_SAYS} {ROOT_SAYS}",
        paper=f"{PAPER_SAYS} {ROOT_SAYS}",
    ),
    claim="NOG, OW and OLR together are best, 0.7 % above SVD, and the solver never fails.",
)
