from spectralgrad_lab.records.results import Printed

from .. import style
from ..protocols.style import says
from ..spec import Spec

STYLES = ("Cezanne", "Monet", "Real Photo", "Ukiyoe", "Vangogh", "Mean")
COLUMNS = tuple(f"{style}: {what}" for style in STYLES for what in ("Acc.", "Δ Acc."))

SPEC = Spec(
    id="pami-table8",
    paper="PAMI",
    shows="style transfer: classifier accuracy",
    kind="style",
    printed=(
        Printed(
            COLUMNS,
            {
                "Original": ("91.38", "-", "97.52", "-", "92.14", "-", "98.10", "-", "100", "-", "95.48", "-"),
                "GD-WCT": (
                    "59.25",
                    "32.13",
                    "86.15",
                    "11.37",
                    "92.14",
                    "0",
                    "49.13",
                    "48.97",
                    "36.88",
                    "63.12",
                    "64.71",
                    "30.77",
                ),
                "Clip-WCT": (
                    "78.56",
                    "12.82",
                    "52.33",
                    "45.19",
                    "92.14",
                    "0",
                    "49.67",
                    "48.43",
                    "28.63",
                    "71.37",
                    "60.27",
                    "35.21",
                ),
                "PI-WCT": (
                    "87.08",
                    "4.30",
                    "78.16",
                    "19.36",
                    "92.14",
                    "0",
                    "70.44",
                    "27.66",
                    "69.64",
                    "30.36",
                    "79.49",
                    "15.99",
                ),
                "SVD-WCT": (
                    "85.89",
                    "5.49",
                    "96.27",
                    "1.25",
                    "92.14",
                    "0",
                    "68.04",
                    "30.06",
                    "74.17",
                    "25.83",
                    "83.30",
                    "12.18",
                ),
            },
            "PAMI Table 8: classification accuracy (%) of real and of stylised images.",
            ("The mean of Original's five accuracies is 95.83, printed as 95.48; the mean Δ follow the printed one.",),
        ),
    ),
    make=style.table8,
    says=says(),
    claim="SVD-WCT is recognised best in the mean, and always better than GD-WCT; PI-WCT is second, Clip-WCT worst.",
)
