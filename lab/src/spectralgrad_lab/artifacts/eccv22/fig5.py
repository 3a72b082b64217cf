from spectralgrad_lab.records.results import Scale

from ..protocols.conditioning import NEWTON, PAPER_SAYS, RANGE, RANGE_POOL, SVD, treatments
from ..protocols.pooling import ROOT_SAYS, resnet18
from ..protocols.pooling import SHORT_SAYS as POOL_SAYS
from ..protocols.protocol import cells, says
from ..spec import Entry, Spec

LABELS = (SVD, "SVD + OW", "SVD + NOG", "SVD + OLR", "SVD + NOG + OW", "SVD + NOG + OW + OLR", NEWTON)


def entries(scale: Scale) -> tuple[Entry, ...]:
    labels = LABELS if scale != "smoke" else (SVD, "SVD + NOG + OW + OLR", NEWTON)
    return cells(resnet18(scale), {label: treatments(label) for label in labels}, {"GCP": {}}, seeds=1)


SPEC = Spec(
    id="eccv22-fig5",
    paper="ECCV22",
    shows="condition number over training: covariance pooling",
    kind="training",
    form="condition",
    entries=entries,
    says=says(
        smoke=f"Three methods; pooling of 16 channels. {RANGE} {RANGE_POOL}",
        short=f"{POOL_SAYS} {PAPER_SAYS} {ROOT_SAYS} {RANGE} {RANGE_POOL}",
        paper=f"{PAPER_SAYS} {ROOT_SAYS} {RANGE} {RANGE_POOL}",
    ),
    claim="OLR and OW reduce the condition number by about 1e15, NOG by 2e15, all together by 5e15.",
)
