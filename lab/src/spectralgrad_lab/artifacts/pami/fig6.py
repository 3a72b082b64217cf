from spectralgrad_lab.records.results import Scale

from ..protocols.protocol import NIPS19, PAMI, PI, SVD_PI, TAYLOR, by_d, cells, cifar, says
from ..spec import Entry, Spec

NIPS19_ROWS = "PI and SVD-PI are NIPS19's: eps = 1e-4, a running subspace, deflation as printed; SVD-Taylor has eps = 1e-2."


def entries(scale: Scale) -> tuple[Entry, ...]:
    rows = {"PI": {**PI, **NIPS19}, "SVD-PI": {**SVD_PI, **NIPS19}, "SVD-Taylor": TAYLOR}
    return cells(cifar(scale, **PAMI), rows, by_d(4, 8, 16) if scale != "smoke" else by_d(4, 16), seeds=1)


SPEC = Spec(
    id="pami-fig6",
    paper="PAMI",
    shows="training error by time: PI, SVD-PI, SVD-Taylor, d = 4, 8, 16",
    kind="training",
    form="time",
    entries=entries,
    says=says(
        smoke="d = 4, 16.",
        short=NIPS19_ROWS,
        paper=f"The paper could not draw PI at d = 16: it always failed. {NIPS19_ROWS}",
    ),
    claim="SVD-Taylor converges faster than SVD-PI, and both are much smoother than PI.",
)
