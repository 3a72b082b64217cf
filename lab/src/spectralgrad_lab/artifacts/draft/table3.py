from spectralgrad_lab.records.results import Printed, Scale

from ..protocols.denoising import COLUMN, DENOISE, DRAFT_SAYS
from ..protocols.protocol import BN, NIPS19, SVD_PI, Change, cells, cifar, says, seeds
from ..spec import Entry, Spec

PCA: Change = {**DENOISE, "energy": 0.95}
ZCA: Change = {**SVD_PI, **NIPS19}
BLOCK = (
    "The draft does not say what «1 block» is. The rows of that name replace every norm of the first residual block, those "
    "with «stage» every norm of the first stage, which NIPS19 calls Block1; the norm after conv1 is batch norm in both."
)
GROUPS = "The draft does not give the size of the groups of ZCA: all 64 channels are whitened together."


def entries(scale: Scale) -> tuple[Entry, ...]:
    groups: Change = {"d": 8} if scale == "smoke" else {}  # the digits network's block has 8 channels
    rows: dict[str, Change] = {
        "BN": BN,
        "PCA(1 layer)": PCA,
        "ZCA(1 layer)": {**ZCA, **groups},
        "PCA(1 block)": {**PCA, "where": "block"},
        "ZCA(1 block)": {**ZCA, **groups, "where": "block"},
    }
    if scale != "smoke":  # whose network has one block in a stage
        rows |= {f"{name}(1 block), stage": {**rows[f"{name}(1 block)"], "where": "stage"} for name in ("PCA", "ZCA")}
    return cells(cifar(scale), rows, {COLUMN: {}}, seeds(scale, 4))


SPEC = Spec(
    id="draft-table3",
    paper="DRAFT",
    shows="PCA and ZCA in one layer against a whole block",
    kind="training",
    printed=(
        Printed(
            (COLUMN,),
            {
                "BN: min": ("4.66",),
                "BN: mean": ("4.81 ± 0.19",),
                "PCA(1 layer): min": ("4.58",),
                "PCA(1 layer): mean": ("4.67 ± 0.06",),
                "ZCA(1 layer): min": ("4.91",),
                "ZCA(1 layer): mean": ("5.02 ± 0.28",),
                "PCA(1 block): min": ("5.14",),
                "PCA(1 block): mean": ("5.30 ± 0.12",),
                "ZCA(1 block): min": (None,),
                "ZCA(1 block): mean": (None,),
            },
            "DRAFT Table 3: CIFAR-10 test errors (%), ResNet-18, mean of 4; printed with methods in columns.",
            ("The caption repeats Table 2's, «single PCA/ZCA normalization layer»; the table compares layer and block.",),
        ),
    ),
    entries=entries,
    says=says(
        smoke="Groups of 8 channels.",
        short=f"{GROUPS} {BLOCK} {DRAFT_SAYS}",
        paper=f"{GROUPS} {BLOCK} {DRAFT_SAYS}",
    ),
    claim="The draft draws no conclusion. Its numbers: PCA in one layer is better than in a block, and than ZCA in a layer.",
)
