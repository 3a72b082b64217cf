from dataclasses import replace

from spectralgrad_lab.records.results import Printed, Scale

from ..pami import table4
from ..protocols.protocol import says
from ..spec import Entry, Spec

ROWS = {"SVD-PI": "eps = 1e-4 (SVD-PI)", "SVD-Taylor": "eps = 1e-2 (SVD-Taylor)"}


def entries(scale: Scale) -> tuple[Entry, ...]:
    found = [each for each in table4.entries(scale) if each.row in ROWS and each.column == "d = 64"]
    return tuple(replace(each, row=ROWS[each.row], column="of 64", figure="at_floor") for each in found)


SPEC = Spec(
    id="ours-floor",
    paper="OURS",
    shows="eigenvalues that are at most eps, in the first epoch, at d = 64",
    kind="training",
    printed=(Printed(("of 64",), {"CIFAR-100, first epoch": ("20",)}, "PAMI 5.1.1, on Fig. 5: on average, eps not said."),),
    entries=entries,
    says=says(
        short="The trainings of pami-table4, on CIFAR-10. 37 of 64 must be there: the first convolution has 27 inputs.",
        paper="The trainings of pami-table4, on CIFAR-10.",
    ),
    claim="Many eigenvalues go to eps: 20 on average in the first epoch, at d = 64.",
)
