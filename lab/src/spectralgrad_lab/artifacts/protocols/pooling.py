"""Networks that end in covariance pooling: ECCV22's ResNet-18 and PAMI's AlexNet, with stand-ins for ImageNet."""

from dataclasses import replace
from typing import Any

from spectralgrad_lab.records.results import Scale
from spectralgrad_lab.records.trial import Trial

from .protocol import DIGITS, PAPER, SHORT

CHANNELS = {"smoke": 16, "short": 64, "paper": 256}  # after the 1 x 1 convolution: the size of the covariance
SHORT_SAYS = "Tiny ImageNet in the place of ImageNet: 8 epochs, the first stage has stride 2; pooling of 64 channels."
_REDUCTION = "A 1 x 1 convolution, batch norm and ReLU, not in the text, bring the map to the channels that are pooled."
ROOT_SAYS = f"{_REDUCTION} The classifier sees the upper triangle of the root; eq. 44 hands on the whole matrix."
UNIT_SAYS = f"{_REDUCTION} The classifier sees the upper triangle of S / |S|_F (eq. 29); Alg. 3 hands on S X."
# eps is not in the texts for pooling: PAMI's, without which rounding alone would decide the smallest eigenvalues.
_LAYER: dict[str, Any] = {"layer": "gcp", "method": "taylor", "iterations": 9, "eps": 1e-2}


def resnet18(scale: Scale) -> Trial:
    """ECCV22 B.2: 60 epochs, learning rate x0.1 after 30 and 45, weight decay 1e-4, batch 256."""
    paper: dict[str, Any] = {"epochs": 60, "milestones": (30, 45), "weight_decay": 1e-4, "batch": 256}
    base = {
        "smoke": replace(DIGITS, model="digits-gcp"),
        "short": replace(SHORT, data="tinyimagenet", model="resnet18-gcp", weight_decay=1e-4, first_stride=2),
        "paper": replace(PAPER, data="folder", model="resnet18-gcp", **paper),
    }[scale]
    return replace(base, d=CHANNELS[scale], **_LAYER)


def alexnet(scale: Scale) -> Trial:
    """PAMI 5.2. Its protocol is not in the text: ECCV22's, which our AlexNet bears since it has batch norm."""
    base = resnet18(scale)
    return base if scale == "smoke" else replace(base, model="alexnet-gcp", first_stride=None)
