from spectralgrad_lab.records.results import Computed, Curve, Scale
from spectralgrad_lab.training import timing

from .. import computed
from ..protocols.protocol import PAMI, SVD_PI, TAYLOR, by_d, cifar, says_of_timing, trial
from ..spec import Spec

SIZES = {"smoke": (4, 16, 64), "short": (4, 8, 16, 32, 64), "paper": (4, 8, 16, 32, 64)}
METHODS = {"SVD-PI": {**SVD_PI, "iterations": 9}, "SVD-Taylor": TAYLOR}

FORWARD = "Forward over backward; PAMI 5.1.2: about 2 at d = 4 and 8, about 10 at d = 16 and 32, of the layer alone"


def compute(scale: Scale) -> Computed:
    sizes, base = SIZES[scale], cifar(scale, batch=128)
    trials = {f"{name}, {d}": trial(base, PAMI, how, {"d": d}) for name, how in METHODS.items() for d in sizes}
    times, remarks = timing.measure(trials, scale)
    values = {(name, f"d = {d}"): times[f"{name}, {d}"].backward for name in METHODS for d in sizes}
    forward = {(name, f"d = {d}"): times[f"{name}, {d}"].forward for name in METHODS for d in sizes}
    ratios = {place: forward[place] / backward for place, backward in values.items()}
    columns = tuple(by_d(*sizes))
    return Computed(
        tables=(
            computed.table(columns, values, "Backward pass of a training step, ms"),
            computed.table(columns, forward, "Forward pass of the same step, ms"),
            computed.table(columns, ratios, FORWARD),
        ),
        curves=tuple(
            Curve(name, tuple(map(float, sizes)), tuple(values[name, f"d = {d}"] for d in sizes)) for name in METHODS
        ),
        x_label="matrix dimension d",
        y_label="ms, backward pass",
        log="x",
        remarks=(
            *remarks,
            "Groups are processed together, where the paper's code goes through them one by one.",
            "Both passes are those of the whole network; PAMI 5.1.2 speaks of the layer.",
        ),
    )


SPEC = Spec(
    id="pami-fig7",
    paper="PAMI",
    shows="backward time by d, and the forward pass beside it: PI against Taylor, both at 9",
    kind="timing",
    form="time",
    compute=compute,
    says=says_of_timing("The paper's figures are from a V100, averaged over 10 epochs."),
    claim="The Taylor expansion is always faster than power iterations, and both are faster for larger d: fewer groups. "
    "The forward pass takes 2 (d = 4, 8) to 10 times (d = 16, 32) as long as the backward pass.",
)
