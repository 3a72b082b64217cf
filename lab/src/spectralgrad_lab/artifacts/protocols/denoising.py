"""The settings of NIPS19's PCA denoising, which Table 4, Figure 3, Table 5 and DRAFT's tables share."""

from spectralgrad_lab.records.results import Scale

from ..spec import Entry
from .protocol import BN, Change, cells, cifar, seeds

# NIPS19's eps, and its K = 19 where nothing else is said. The layer's rank follows the batch unless `rank` fixes it.
DENOISE: Change = {"layer": "denoise", "method": "svd-pi", "iterations": 19, "eps": 1e-4}
ENERGIES = {"85": 0.85, "90": 0.9, "95": 0.95, "99": 0.99, "99.5": 0.995, "100": 1.0}  # percent
RANKS = (2, 4, 8, 16, 32)
ITERATIONS = (1, 2, 4, 9, 14, 19, 29)
COLUMN = "Error (%)"


def _sweep(scale: Scale, settings: dict[str, Change], smoke: tuple[str, ...], short: tuple[str, ...]) -> tuple[Entry, ...]:
    chosen = {"smoke": smoke, "short": short, "paper": tuple(settings)}[scale]
    rows = {label: settings[label] for label in chosen}
    return cells(cifar(scale), rows, {COLUMN: {}}, seeds(scale, 5))


def by_energy(scale: Scale) -> tuple[Entry, ...]:
    """Table 4a. All of the energy is batch norm, since the input is standardised: that row is Table 5's."""
    settings = {label: BN if part == 1 else {**DENOISE, "energy": part} for label, part in ENERGIES.items()}
    return _sweep(scale, settings, ("85", "99", "100"), ("85", "95", "99", "100"))


def by_rank(scale: Scale) -> tuple[Entry, ...]:
    """Table 4b."""
    settings: dict[str, Change] = {str(rank): {**DENOISE, "rank": rank} for rank in RANKS}
    return _sweep(scale, settings, ("2", "8"), ("2", "8", "16", "32"))


def by_iterations(scale: Scale) -> tuple[Entry, ...]:
    """Table 4c, at 99.9 % energy."""
    settings: dict[str, Change] = {str(k): {**DENOISE, "energy": 0.999, "iterations": k} for k in ITERATIONS}
    return _sweep(scale, settings, ("2", "19"), ("1", "2", "9", "19"))


def by_method(scale: Scale, energy: float, trials: int) -> tuple[Entry, ...]:
    """Table 5 and DRAFT's Table 2: batch norm, and the projection differentiated in three ways."""
    rows: dict[str, Change] = {
        "BN": BN,
        "PCA(PI)": {**DENOISE, "energy": energy, "method": "pi"},
        "PCA(SVD)": {**DENOISE, "energy": energy, "method": "svd", "iterations": None},
        "PCA(SVD-PI)": {**DENOISE, "energy": energy},
    }
    return cells(cifar(scale), rows, {COLUMN: {}}, seeds(scale, trials))
