from spectralgrad_lab.records.results import Printed, Scale

from ..protocols.pooling import SHORT_SAYS, UNIT_SAYS, alexnet
from ..protocols.protocol import SVD_PI, TAYLOR, Change, both_deflations, cells, says
from ..spec import Entry, Spec

COLUMNS = ("Top-1 Error", "Top-5 Error")
BREAKS = (
    "SVD-PI as printed drops every eigenvector with lambda <= eps: of 256 a map of 13 x 13 leaves 168, one of 7 x 7 48. The "
    "row «two-sided» is ours: another deflation, and no such break."
)


def entries(scale: Scale) -> tuple[Entry, ...]:
    rows: dict[str, Change] = {
        **both_deflations("SVD-PI", SVD_PI, {"layer": "gcp"}),
        "SVD-Taylor": {**TAYLOR, "layer": "gcp"},
    }
    return cells(alexnet(scale), rows, {column: {} for column in COLUMNS}, seeds=1, figures={COLUMNS[1]: "top5_error"})


PRINTED = Printed(
    COLUMNS,
    {
        "AlexNet": ("41.8", "19.2"),
        "Bilinear CNN": ("39.89", "18.32"),
        "Improved Bilinear CNN": ("40.75", "18.91"),
        "DeepO2P": ("42.16", "19.62"),
        "G2DeNet": ("38.71", "17.66"),
        "MPN-COV": ("38.51", "17.60"),
        "Fast MPN-COV (iSQRT-COV)": ("38.45", "17.52"),
        "SVD-PI": ("-", "-"),
        "SVD-Taylor": ("38.74", "17.12"),
    },
    "PAMI Table 7: error rates (%) of covariance pooling with AlexNet on ImageNet. The first seven rows are cited by the "
    "paper, not run by it; «-» failed to converge.",
)

SPEC = Spec(
    id="pami-table7",
    paper="PAMI",
    shows="second-order pooling, AlexNet, d = 256 (rows of other methods are cited, not run)",
    kind="training",
    printed=(PRINTED,),
    entries=entries,
    says=says(
        smoke="The digits network with covariance pooling of 16 channels.",
        short=f"{SHORT_SAYS} {UNIT_SAYS} {BREAKS}",
        paper="AlexNet's protocol is not in the text, which names its ref. 2: ECCV22's for pooling, 60 epochs, lr 0.1, x0.1 "
        f"after 30 and 45, weight decay 1e-4, batch 256; our AlexNet has batch norm. {UNIT_SAYS} {BREAKS}",
    ),
    claim="SVD-PI fails to converge at d = 256; SVD-Taylor is comparable with the best in top-1 and best in top-5.",
)
