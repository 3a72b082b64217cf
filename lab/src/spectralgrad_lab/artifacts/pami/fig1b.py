from spectralgrad_lab.records.results import Printed, Scale

from ..protocols.protocol import NIPS19, SVD, by_d, cells, cifar, says, seeds
from ..spec import Entry, Spec

SIZES = (4, 8, 16, 32, 64)


def entries(scale: Scale) -> tuple[Entry, ...]:
    return cells(cifar(scale, **NIPS19), {"SVD": SVD}, by_d(*SIZES), seeds(scale, 18, smoke=2))


SPEC = Spec(
    id="pami-fig1b",
    paper="PAMI",
    shows="rate of failed trainings by d",
    kind="training",
    form="success",
    printed=(
        Printed(
            tuple(by_d(*SIZES)),
            {"SVD: failed": ("> 50%", "100%", "100%", "100%", "100%")},
            "PAMI section 1 on Fig. 1(b): at dimension 4 the training fails more than 50 % of the time, above it always.",
        ),
    ),
    entries=entries,
    says=says(paper="eps = 1e-4, of NIPS19, whose trainings the figure counts; the text gives none."),
    claim="With the analytic gradient ZCA fails more than half of the time at d = 4 and always from d = 8 on.",
)
