from spectralgrad_lab.records.results import Scale

from ..protocols.conditioning import (
    NEWTON,
    PAPER_SAYS,
    RANGE,
    RANGE_POOL,
    SHORT_SAYS,
    SMOKE_SAYS,
    SVD,
    decorrelation,
    treatments,
)
from ..protocols.pooling import ROOT_SAYS, resnet18
from ..protocols.pooling import SHORT_SAYS as POOL_SAYS
from ..protocols.protocol import cells, says
from ..spec import Entry, Spec


def entries(scale: Scale) -> tuple[Entry, ...]:
    pooled = {label: treatments(label) for label in (SVD, NEWTON)}
    return (
        *decorrelation(scale, (SVD, NEWTON, "BN"), 1, "Decorrelated BN"),
        *cells(resnet18(scale), pooled, {"GCP": {}}, seeds=1),
    )


SPEC = Spec(
    id="eccv22-fig1",
    paper="ECCV22",
    shows="condition number of the covariance over training: SVD, Newton-Schulz, BN",
    kind="training",
    form="condition",
    entries=entries,
    says=says(
        smoke=f"{SMOKE_SAYS} BN is watched over all 64 channels, of 9 inputs. {RANGE} {RANGE_POOL}",
        short=f"{SHORT_SAYS} Pooling: {POOL_SAYS} {ROOT_SAYS} {RANGE} {RANGE_POOL}",
        paper=f"{PAPER_SAYS} {ROOT_SAYS} {RANGE} {RANGE_POOL}",
    ),
    claim="Condition numbers: SVD about 1e12 in decorrelated BN and 1e16 in pooling; Newton-Schulz 1e5 and 1e15; BN 1e3.",
)
