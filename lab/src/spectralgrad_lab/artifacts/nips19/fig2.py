from spectralgrad_lab.records.results import Scale

from ..protocols.protocol import NIPS19, PI, SVD_PI, by_d, cells, cifar, says
from ..spec import Entry, Spec


def entries(scale: Scale) -> tuple[Entry, ...]:
    return cells(cifar(scale, **NIPS19), {"PI": PI, "SVD-PI": SVD_PI}, by_d(8, 4), seeds=1)


SPEC = Spec(
    id="nips19-fig2",
    paper="NIPS19",
    shows="training loss by epoch, PI against SVD-PI, d = 8 and 4",
    kind="training",
    form="loss",
    entries=entries,
    says=says(paper="SVD-PI and PI deflate as printed."),
    claim="The training loss of PI is very unstable, that of SVD-PI is smooth.",
)
