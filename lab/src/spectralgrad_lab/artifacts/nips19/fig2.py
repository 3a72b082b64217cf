from spectralgrad_lab.records.results import Scale

from ..protocols.protocol import NIPS19, PI, SVD_PI, by_d, cells, cifar, says
from ..spec import Entry, Spec


def entries(scale: Scale) -> tuple[Entry, ...]:
    rows, sizes = {"PI": PI, "SVD-PI": SVD_PI}, by_d(8, 4)
    if scale == "smoke":
        return cells(cifar(scale, **NIPS19), rows, sizes, seeds=1)
    grids = (
        cells(cifar(scale, data, **NIPS19), rows, {f"{name}, {column}": change for column, change in sizes.items()}, seeds=1)
        for name, data in (("CIFAR-10", "cifar10"), ("CIFAR-100", "cifar100"))
    )
    return tuple(entry for grid in grids for entry in grid)


SPEC = Spec(
    id="nips19-fig2",
    paper="NIPS19",
    shows="training loss by epoch, PI against SVD-PI, d = 8 and 4, on both CIFAR sets",
    kind="training",
    form="loss",
    entries=entries,
    says=says(paper="SVD-PI and PI deflate as printed."),
    claim="The training loss of PI is very unstable, that of SVD-PI is smooth, on both data sets.",
)
