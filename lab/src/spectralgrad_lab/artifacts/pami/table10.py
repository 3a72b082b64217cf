from spectralgrad_lab.records.results import Printed

from .. import style
from ..protocols.style import says
from ..spec import Spec

SPEC = Spec(
    id="pami-table10",
    paper="PAMI",
    shows="style transfer: inference time",
    kind="style",
    form="time",
    printed=(
        Printed(
            ("GD-WCT", "Clip-WCT", "PI-WCT", "SVD-WCT"),
            {"Reference time (ms)": ("53", "122", "184", "122")},
            "PAMI Table 10: time for an image, on a Titan X.",
        ),
    ),
    make=style.table10,
    says=says(),
    claim="SVD-WCT is much faster than PI-WCT, as fast as Clip-WCT, and slower than GD-WCT.",
)
