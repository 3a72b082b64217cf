"""ResNet-18 and 50 with SVD-PI and SVD-Taylor by d, against batch norm: PAMI's Tables 5 and 6."""

from spectralgrad_lab.records.results import Scale
from spectralgrad_lab.records.trial import Trial

from ..spec import Entry
from .protocol import BN, DEFLATION_SAYS, NIPS19, PAMI, SVD_PI, TAYLOR, Change, both_deflations, by_d, cells, network, seeds

SIZES = (4, 8, 16, 32, 64)
COLUMNS = tuple(by_d(*SIZES))
BATCH_NORM = "Batch Norm"
# The row SVD-PI is NIPS19's, with its eps and its running subspace.
METHODS: dict[str, Change] = {**both_deflations("SVD-PI", SVD_PI, NIPS19), "SVD-Taylor": {**TAYLOR, **PAMI}}
SAYS = f"SVD-PI has eps = 1e-4 and a running subspace, of NIPS19; SVD-Taylor eps = 1e-2. {DEFLATION_SAYS}"


def both_networks(scale: Scale, base: Trial, trials18: int, trials50: int) -> tuple[Entry, ...]:
    """Smoke has one network; short has ResNet-50 with batch norm and SVD-Taylor at d = 64 alone."""
    sizes = {"smoke": (16,), "short": (16, 64), "paper": SIZES}[scale]
    found: tuple[Entry, ...] = ()
    for name, trials in {"ResNet18": trials18, "ResNet50": trials50}.items():
        if name == "ResNet50" and scale == "smoke":
            break
        own = {f"{name} {method}": {**network(scale, name.lower()), **change} for method, change in METHODS.items()}
        if name == "ResNet50" and scale == "short":
            own, sizes = {"ResNet50 SVD-Taylor": own["ResNet50 SVD-Taylor"]}, (64,)
        count = seeds(scale, trials, short=3 if name == "ResNet50" else 5)
        found += cells(base, own, by_d(*sizes), count)
        norm = {f"{name} BN": {**network(scale, name.lower()), **BN}}
        found += cells(base, norm, {BATCH_NORM: {}}, count)
    return found
