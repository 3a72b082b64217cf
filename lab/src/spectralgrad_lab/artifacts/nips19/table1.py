from spectralgrad_lab.records.results import Printed

from .. import computed
from ..spec import Spec

MISPRINTS = (
    "The header says ln 0.01; the values are those of ln 0.05, as the caption and eq. 14 say.",
    "Section 2.4 rounds ln 0.05 / ln ratio down; the smallest k that fulfils the condition is rounded up.",
)

NIPS19 = Printed(
    computed.RATIOS,
    {"k": (None, None, None, None, None, None, None, "14", "19", "29", "59", "299", "598", "2995")},
    "NIPS19 Table 1: the minimum value of k that guarantees (l_i/l_1)^k < 0.05. The text lost the first seven.",
    MISPRINTS,
)
DRAFT = Printed(
    ("0.2", "0.4", "0.6", "0.8", "0.85", "0.9", "0.95", "0.99", "0.995", "0.999"),
    {"k": ("2", "4", "6", "14", "19", "29", "59", "299", "598", "2995")},
    "DRAFT Table 1: the same for ten ratios.",
    MISPRINTS[:1],
)

SPEC = Spec(
    id="nips19-table1",
    paper="NIPS19",
    shows="smallest k with (l_i/l_1)^k <= 0.05 for 14 ratios (also DRAFT T1)",
    kind="computed",
    printed=(NIPS19, DRAFT),
    compute=lambda _: computed.iterations_needed((NIPS19, DRAFT)),
    claim="19 power iterations bring the remainder below 5 % up to a ratio of 0.85; 0.999 would need about 3000.",
)
