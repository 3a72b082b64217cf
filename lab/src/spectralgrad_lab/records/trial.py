"""One training, completely described."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .described import Described, later
from .recording import Files, Parts

FORMAT = 1  # of trials and their records; a record of another one is not read


@dataclass(frozen=True)
class Trial(Described):
    """What to train, and how. Equal trials give equal numbers on one machine; the key of a trial names its record.

    Args:
        data: digits, cifar10, cifar100, tinyimagenet or folder.
        model: digits, resnet18, resnet50, alexnet, resnet18-gcp, ...: see `models`.
        width: channels of the first stage.
        layer: what is replaced: bn (nothing), zca or pca (decorrelated batch norm), denoise (PCA denoising), gcp.
        method: how it is differentiated: svd (the papers' analytic one), pi, clip, svd-pi, taylor, exact, newton, ...
        d: channels of a group; None for all.
        where: first (the norm after conv1), block (all norms of the first block), stage (those of the first stage) or all.
        eps, iterations, energy, rank: the layer's options; iterations is K of Taylor or the power iterations.
        running: what evaluation averages: covariance, or as NIPS19 prints it whitening (zca, pca) or subspace (denoise).
        treatments: of the weight before the layer, of {SN, OL, OW, NOG, OLR}.
        epochs: how often all images are seen.
        batch: images of a step.
        lr, momentum, weight_decay: of SGD.
        milestones: epochs after which the learning rate is multiplied by gamma.
        gamma: what the learning rate is multiplied by after each milestone.
        augment: crop and flip the images at random.
        train_samples, test_samples: how many images of each set are used; None for all.
        precision: 32-true, 64-true, bf16-mixed, 16-mixed or bf16-true.
        seed: of weights, batches and augmentation.
        schedule: steps (milestones and gamma) or onecycle (lr is the peak, after 30 % of the steps, then a cosine to 0).
        nesterov: of SGD's momentum.
        drop_last: leave out the images of an epoch that do not fill a batch: then every step can be one CUDA graph.
        evaluate: epochs between two evaluations; the last epoch is always evaluated.
        deflation: of svd-pi: two-sided, or printed (M - M v v^T, and pooling too breaks at lambda <= eps); pi is printed.
        through: of layer denoise: projector (its gradient across the cut) or vectors (the papers' own: U_k U_k^T by eigh).
        skew: of OW: matrix (the kernel, reshaped) or convolution (the exponential of a skew convolution).
        broken: what a broken image file of a folder does: refuse (an error names it) or skip (the record names it).
        first_stride: of a residual network's first stage; None is 1, and 2 for the digits.

    >>> Trial.from_json(Trial(d=8, treatments=("OW",)).as_json()) == Trial(d=8, treatments=("OW",))
    True
    """

    PREFIX: ClassVar[str] = str(FORMAT)
    PARTS: ClassVar[Parts] = Parts("epoch", "epoch")

    data: str = "digits"
    model: str = "digits"
    width: int = 64
    layer: str = "bn"
    method: str = "exact"
    d: int | None = None
    where: str = "first"
    eps: float = 1e-4
    iterations: int | None = None
    energy: float | None = None
    rank: int | None = None
    running: str = "covariance"
    treatments: tuple[str, ...] = ()
    epochs: int = 350
    batch: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    milestones: tuple[int, ...] = (100, 200, 300)
    gamma: float = 0.1
    augment: bool = True
    train_samples: int | None = None
    test_samples: int | None = None
    precision: str = "32-true"
    seed: int = 0
    schedule: str = later("steps")
    nesterov: bool = later(False)
    drop_last: bool = later(False)
    evaluate: int = later(1)
    deflation: str = later("two-sided")
    through: str = later("projector")
    skew: str = later("matrix")
    first_stride: int | None = later(None)
    broken: str = later("refuse")

    @property
    def files(self) -> Files:
        return Files(*(Path("trials", f"{self.key}.{suffix}") for suffix in ("jsonl", "ckpt", "lock")))
