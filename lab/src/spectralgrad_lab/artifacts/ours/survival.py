"""How long the bare gradient lasts, in steps, where two cores can decide it."""

from dataclasses import replace

from spectralgrad_lab.records.results import Printed, Scale
from spectralgrad_lab.records.trial import Trial

from ..nips19.table2 import ROWS
from ..pami.table4 import SIZES
from ..protocols.protocol import EXACT, PI, SVD, TAYLOR, Change, by_d, cells
from ..spec import Entry, Spec

NETWORK = Trial(  # 64 channels after the first convolution, as the papers have; then two narrow blocks
    model="digits", width=8, layer="zca", eps=1e-4, milestones=(), drop_last=True
)
# A batch is as small as lets a step take some milliseconds of one core: 7 on CIFAR-10, 3 on the digits.
CIFAR = replace(NETWORK, data="cifar10", batch=8, first_stride=4)  # 6250 steps an epoch
DIGITS = replace(NETWORK, batch=4)  # 359 steps an epoch
SETS = {"CIFAR-10": CIFAR, "digits": DIGITS}
EPOCHS = {  # of each set, and of PI, whose step takes 10 to 25 ms
    "smoke": {"digits": (1, 1)},
    "short": {"CIFAR-10": (2, 1), "digits": (279, 28)},  # 12,500 and 6250 steps; 100,161 and 10,052
    "paper": {"CIFAR-10": (22, 22), "digits": (382, 382)},  # 137,500 and 137,138: the papers' 350 epochs of 391
}
SEEDS = {"smoke": 1, "short": 5, "paper": 15}
CONTROLS: dict[str, Change] = {"SVD-Taylor": TAYLOR, "Exact": EXACT}  # d = 64, two seeds


def entries(scale: Scale) -> tuple[Entry, ...]:
    """Both sets, but for smoke, which needs no data. The analytic gradient first."""
    found: list[Entry] = []
    for name, (epochs, of_pi) in EPOCHS[scale].items():
        base = replace(SETS[name], epochs=epochs, evaluate=epochs)
        if scale == "smoke":
            base = replace(base, augment=False, train_samples=256, test_samples=256)
        by_pi = replace(base, epochs=of_pi, evaluate=of_pi)
        found += cells(base, {"SVD": SVD}, _columns(name, SIZES), SEEDS[scale])
        found += cells(by_pi, {"PI": PI}, _columns(name, SIZES[:3]), SEEDS[scale])
        found += cells(base, CONTROLS, _columns(name, SIZES[-1:]), min(2, SEEDS[scale]))
    return tuple(found)


def _columns(name: str, sizes: tuple[int, ...]) -> dict[str, Change]:
    return {f"{name}, {column}": change for column, change in by_d(*sizes).items()}


PRINTED = Printed(
    tuple(_columns("CIFAR-10", SIZES)),
    {f"{row}: success rate": ROWS[f"{row}: success rate"] for row in ("SVD", "PI")},
    "NIPS19 Table 2, PAMI Table 4: ResNet-18, 350 epochs of 391 steps, 15 trainings a cell.",
)
DIFFERS = (
    "The network has the papers' first convolution, 64 channels of 3 x 3 inputs, and two narrow blocks in the place of "
    "ResNet-18; batches of 8 (CIFAR-10) and 4 (digits), so that a step takes some milliseconds of one core; a learning rate "
    "of 0.1 that never falls; eps = 1e-4 for every row, NIPS19's; float32."
)
SHORT_SAYS = "12,500 steps on CIFAR-10, 100,161 on the digits, of PI 6250 and 10,052: about two hours of two cores."

SPEC = Spec(
    id="ours-survival",
    paper="OURS",
    shows="for how many steps a training stays finite, by d: survival, and failures in a thousand steps",
    kind="training",
    form="survival",
    printed=(PRINTED,),
    entries=entries,
    says={
        "smoke": "One epoch of 256 digits: that it runs.",
        "short": f"{DIFFERS} {SHORT_SAYS}",
        "paper": f"{DIFFERS} The papers' number of steps, 137,000, and of seeds.",
    },
    claim="With the analytic gradient 7 of 15 trainings of 137,000 steps last at d = 4, and none from d = 8 on; by power "
    "iterations all of them at d = 4, one at d = 8 and none above.",
)
