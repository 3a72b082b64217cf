from spectralgrad_lab.records.results import Computed, Printed, Scale
from spectralgrad_lab.training import timing

from .. import computed
from ..protocols.denoising import DENOISE
from ..protocols.protocol import BN, cifar, says_of_timing, trial
from ..spec import Spec

PCA, NORM, COLUMN = "PCA, 2 power iterations", "BN", "ms per step"


def compute(scale: Scale) -> Computed:
    base = cifar(scale, batch=128)
    denoising = trial(base, DENOISE, {"energy": 0.999, "iterations": 2})  # 99.9 %, as in Table 4c
    times, remarks = timing.measure({PCA: denoising, NORM: trial(base, BN)}, scale)
    values = {(label, COLUMN): found.step for label, found in times.items()}
    ratio = times[PCA].step / times[NORM].step
    return Computed(
        tables=(computed.table((COLUMN,), values, "A training step, side by side"),),
        remarks=(*remarks, f"PCA takes {ratio:.3g} times as long as BN here, 1.27 times in the paper."),
    )


SPEC = Spec(
    id="nips19-time",
    paper="NIPS19",
    shows="step time of PCA with 2 power iterations against BN (section 3.2)",
    kind="timing",
    form="time",
    printed=(
        Printed(
            (COLUMN,),
            {PCA: ("104.8",), NORM: ("82.7",)},
            "NIPS19 section 3.2: one minibatch of 128, ResNet-18, one Titan XP.",
        ),
    ),
    compute=compute,
    says=says_of_timing(),
    claim="Two power iterations cost a small time penalty: 104.8 against 82.7 ms.",
)
