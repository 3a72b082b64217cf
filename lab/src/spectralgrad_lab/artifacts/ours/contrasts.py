from dataclasses import replace

from spectralgrad_lab.records.results import Scale

from ..protocols.protocol import BN, CLIP, EXACT, NIPS19, PAMI, SVD_PI, TAYLOR, Change, cells, cifar, says, seeds
from ..spec import Entry, Spec

EPOCHS = 24  # at short
EVERY: Change = {**EXACT, "where": "all"}
ROWS: dict[str, Change] = {  # the most wanted first
    "BN": BN,
    "SVD-Taylor, d = 64": {**TAYLOR, "d": 64},
    "Exact, d = 64": {**EXACT, "d": 64},
    "SVD-Clip, d = 64": {**CLIP, "d": 64},
    "Exact, every norm, d = 16": {**EVERY, "d": 16},
    "Exact, every norm, d = 64": {**EVERY, "d": 64},
    "SVD-PI, d = 64": {**SVD_PI, **NIPS19, "d": 64},
}
SMOKE = ("BN", "SVD-Taylor, d = 64", "Exact, d = 64")  # the blocks of the digits network have 8 and 16 channels


def entries(scale: Scale) -> tuple[Entry, ...]:
    base = cifar(scale, **PAMI)
    if scale == "short":
        base = replace(base, epochs=EPOCHS, evaluate=EPOCHS // 3)
    rows = {label: ROWS[label] for label in SMOKE} if scale == "smoke" else ROWS
    return cells(base, rows, {"Error (%)": {}}, seeds(scale, 2, short=6))


SPEC = Spec(
    id="ours-contrasts",
    paper="OURS",
    shows="whitening by its exact gradient, in one layer and in every one, beside the papers' methods and batch norm",
    kind="training",
    entries=entries,
    says=says(
        smoke="One layer alone.",
        short=f"Here {EPOCHS} epochs and 6 seeds.",
        paper="The papers' 350 epochs, 2 seeds.",
    ),
    claim="No paper has this. Our claim: the exact gradient is no worse than any approximation of it.",
)
