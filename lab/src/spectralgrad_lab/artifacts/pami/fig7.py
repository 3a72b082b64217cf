from spectralgrad_lab.records.results import Computed, Curve, Scale
from spectralgrad_lab.training import timing

from .. import computed
from ..protocols.protocol import PAMI, SVD_PI, TAYLOR, by_d, cifar, says_of_timing, trial
from ..spec import Spec

SIZES = {"smoke": (4, 16, 64), "short": (4, 8, 16, 32, 64), "paper": (4, 8, 16, 32, 64)}
METHODS = {"SVD-PI": {**SVD_PI, "iterations": 9}, "SVD-Taylor": TAYLOR}


def compute(scale: Scale) -> Computed:
    sizes, base = SIZES[scale], cifar(scale, batch=128)
    trials = {f"{name}, {d}": trial(base, PAMI, how, {"d": d}) for name, how in METHODS.items() for d in sizes}
    times, remarks = timing.measure(trials, scale)
    values = {(name, f"d = {d}"): times[f"{name}, {d}"].backward for name in METHODS for d in sizes}
    return Computed(
        tables=(computed.table(tuple(by_d(*sizes)), values, "Backward pass of a training step, ms"),),
        curves=tuple(
            Curve(name, tuple(map(float, sizes)), tuple(values[name, f"d = {d}"] for d in sizes)) for name in METHODS
        ),
        x_label="matrix dimension d",
        y_label="ms, backward pass",
        log="x",
        remarks=(*remarks, "Groups are processed together, where the paper's code goes through them one by one."),
    )


SPEC = Spec(
    id="pami-fig7",
    paper="PAMI",
    shows="backward time by d: PI against Taylor, both at 9",
    kind="timing",
    form="time",
    compute=compute,
    says=says_of_timing("The paper's figures are from a V100, averaged over 10 epochs."),
    claim="The Taylor expansion is always faster than power iterations, and both are faster for larger d: fewer groups.",
)
