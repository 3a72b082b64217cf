from spectralgrad_lab.records.results import Printed

from .. import computed
from ..spec import Spec

PRINTED = Printed(
    ("angle to the x axis", "error"),
    {"original": ("90°", ""), "clipped at 100": ("45°", "45°"), "Taylor, K = 9": ("84.29°", "5.71°")},
    "PAMI 7.2.1, the example that Fig. 3 illustrates: eigenvalues 0.02, 0.01, 0.01. Empty: not printed.",
    ("Eq. 59c prints rho <= -5.71°; for a larger threshold the error is smaller: -5.71° <= rho.",),
)

SPEC = Spec(
    id="pami-fig3",
    paper="PAMI",
    shows="clipping against Taylor: direction of a column",
    kind="computed",
    form="direction",
    printed=(PRINTED,),
    compute=lambda _: computed.directions(PRINTED),
    claim="Clipping turns the column by 45 degrees, the Taylor expansion by 5.71.",
)
