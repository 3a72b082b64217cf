from spectralgrad_lab.records.results import Printed

from .. import computed
from ..spec import Spec

COLUMNS = ("1", "2", "3")
EXACT = Printed(
    COLUMNS,
    {"1": ("0", "100", "100"), "2": ("-100", "0", "∞"), "3": ("-100", "∞", "0")},
    "PAMI eq. 60: K for the eigenvalues 0.02, 0.01, 0.01.",
    ("K is antisymmetric, at a tie too: K32 is -∞, printed as ∞.",),
)
TAYLOR = Printed(
    COLUMNS,
    {"1": ("0", "99.90", "99.90"), "2": ("-99.90", "0", "1000"), "3": ("-99.90", "1000", "0")},
    "PAMI eq. 61: its Taylor expansion of degree 9.",
    ("K is antisymmetric, at a tie too: K32 is -1000, printed as 1000.",),
)
ANGLES = Printed(
    ("angle to the true 3rd column",),
    {"Taylor, K = 9": ("5.71°",), "clipped at 100": ("45°",)},
    "PAMI 7.2.1.",
    ("The clipped 3rd column is [100, 100, 0], printed as [0, 100, 100].",),
)

SPEC = Spec(
    id="pami-eq60",
    paper="PAMI",
    shows="the 3x3 worked example: K, its Taylor expansion, and the angles of a column",
    kind="computed",
    printed=(EXACT, TAYLOR, ANGLES),
    compute=lambda _: computed.worked_example((EXACT, TAYLOR, ANGLES)),
    claim="Though K23 differs by an infinite amount, Taylor turns the column by only 5.71 degrees; clipping by 45.",
)
