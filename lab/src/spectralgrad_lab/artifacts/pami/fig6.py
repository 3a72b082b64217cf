from spectralgrad_lab.records.results import Scale

from ..protocols.protocol import PAMI, PI, SVD_PI, TAYLOR, by_d, cells, cifar, says
from ..spec import Entry, Spec


def entries(scale: Scale) -> tuple[Entry, ...]:
    rows = {"PI": PI, "SVD-PI": SVD_PI, "SVD-Taylor": TAYLOR}
    return cells(cifar(scale, **PAMI), rows, by_d(4, 8, 16) if scale != "smoke" else by_d(4, 16), seeds=1)


SPEC = Spec(
    id="pami-fig6",
    paper="PAMI",
    shows="training error by time: PI, SVD-PI, SVD-Taylor, d = 4, 8, 16",
    kind="training",
    form="time",
    entries=entries,
    says=says(smoke="d = 4, 16.", paper="The paper could not draw PI at d = 16: it always failed."),
    claim="SVD-Taylor converges faster than SVD-PI, and both are much smoother than PI.",
)
