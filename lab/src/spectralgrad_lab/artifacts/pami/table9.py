from spectralgrad_lab.records.results import Printed

from .. import style
from ..protocols.style import says
from ..spec import Spec

SPEC = Spec(
    id="pami-table9",
    paper="PAMI",
    shows="style transfer: sharpness",
    kind="style",
    printed=(
        Printed(
            ("Cezanne", "Monet", "Ukiyoe", "Vangogh"),
            {
                "GD-WCT": ("9.78", "9.28", "12.07", "11.85"),
                "Clip-WCT": ("11.65", "12.55", "13.38", "14.48"),
                "PI-WCT": ("11.98", "14.77", "14.68", "16.56"),
                "SVD-WCT": ("11.91", "14.48", "15.12", "18.67"),
            },
            "PAMI Table 9: sharpness scores; larger is sharper.",
        ),
    ),
    make=style.table9,
    says=says(),
    claim="Methods with a standard SVD give sharper images than GD-WCT; SVD-WCT is similar to PI-WCT.",
)
