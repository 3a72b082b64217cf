"""One training of the style-transfer network, completely described, and the three scales of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from spectralgrad.errors import OptionError
from spectralgrad.validation import is_number, is_whole
from spectralgrad_lab.data.artworks import PAINTINGS
from spectralgrad_lab.models.wct_blocks import VARIANTS
from spectralgrad_lab.records.described import Described, later
from spectralgrad_lab.records.recording import Files, Parts
from spectralgrad_lab.records.results import SCALES, Scale

__all__ = ["DOMAINS", "StyleTrial", "Weights", "changes_of", "style_trial"]

FORMAT = 1  # of style trials and what they leave; a record of another one is not read
DOMAINS = PAINTINGS  # of art; the other side is always photo
SOURCES = ("artworks", "embedded")
DEFLATIONS = ("two-sided", "printed")
FEATURES = ("vgg", "network")
PRECISIONS = ("32-true", "bf16-mixed")
_WHOLE = (
    "size", "crop", "width", "group_size", "hops", "blocks", "scales", "steps", "batch", "every", "save",
)  # fmt: skip


class Weights(NamedTuple):
    """Factors of the losses; PAMI's text gives none. See docs/style-network.md."""

    adversarial: float
    cycle: float
    identity: float
    style: float
    content: float
    whitening: float
    orthogonality: float


@dataclass(frozen=True)
class StyleTrial(Described):
    """What to train, and how. Equal trials give equal numbers on one CPU; the key of a trial names its folder.

    Args:
        variant: how the hops whiten and colour: gd (learned), clip, pi, taylor or exact.
        domains: the kinds of art that one network is trained for, as their folders are called; a single one is the paper's.
        data: artworks, or embedded for pictures that are drawn.
        size, crop: pixels of the pictures, and of the random crops that are trained on.
        width: channels after the first convolution; the hops have four times as many.
        group_size, eps, iterations, hops: of the whitening; iterations is K of Taylor or the power iterations.
        blocks: residual blocks of the content encoder.
        scales: of each discriminator.
        features: what style and content losses look at: vgg, or the network's own encoders.
        steps, batch, lr, decay: Adam; the learning rate falls to zero over the last part ``decay`` of the steps.
        adversarial, cycle, identity, style, content: factors of the losses.
        whitening, orthogonality: factors of the regularisers of gd.
        deflation: of pi: two-sided, or printed as in NIPS19.
        ema: of the weights that are kept in the end.
        every, save: steps between two lines of the log, and between two checkpoints.

    >>> StyleTrial().key == StyleTrial(variant="exact").key != StyleTrial(variant="taylor").key
    True
    >>> StyleTrial.from_json(StyleTrial(domains=("monet",)).as_json()) == StyleTrial(domains=("monet",))
    True
    """

    PREFIX: ClassVar[str] = f"style {FORMAT}"
    PARTS: ClassVar[Parts] = Parts("log", "step", ("seconds", "nonfinite"))

    variant: str = "exact"
    domains: tuple[str, ...] = DOMAINS
    data: str = "artworks"
    size: int = 256
    crop: int = 128
    width: int = 64
    group_size: int = 32
    eps: float = 0.01
    iterations: int | None = None
    hops: int = 5
    blocks: int = 2
    scales: int = 2
    features: str = "vgg"
    steps: int = 2500
    batch: int = 4
    lr: float = 2e-4
    decay: float = 0.3
    adversarial: float = 1.0
    cycle: float = 5.0
    identity: float = 10.0
    style: float = 3.0
    content: float = 1.0
    whitening: float = 1.0
    orthogonality: float = 1.0
    ema: float = 0.995
    precision: str = "32-true"
    every: int = 50
    save: int = 500
    seed: int = 0
    deflation: str = later("two-sided")

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise OptionError(f"`StyleTrial`: variant must be one of {', '.join(VARIANTS)}, got {self.variant!r}.")
        if not self.domains or not all(isinstance(name, str) for name in self.domains) or "photo" in self.domains:
            raise OptionError(
                f"`StyleTrial`: domains must name at least one kind of art, and not photo, got {self.domains!r}."
            )
        if any(Path(name).name != name for name in self.domains):
            raise OptionError(f"`StyleTrial`: domains must be names of folders, got {', '.join(self.domains)}.")
        if len(set(self.domains)) < len(self.domains):
            raise OptionError(f"`StyleTrial`: each domain can be named once, got {', '.join(self.domains)}.")
        if self.deflation != "two-sided" and self.variant != "pi":
            raise OptionError(f"`StyleTrial`: deflation is that of pi, got {self.deflation!r} for {self.variant}.")
        for name, choices in (
            ("deflation", DEFLATIONS),
            ("data", SOURCES),
            ("features", FEATURES),
            ("precision", PRECISIONS),
        ):
            if getattr(self, name) not in choices:
                raise OptionError(f"`StyleTrial`: {name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}.")
        for name in _WHOLE:
            if not is_whole(getattr(self, name)):
                raise OptionError(f"`StyleTrial`: {name} must be a whole number >= 1, got {getattr(self, name)!r}.")
        for name in (*Weights._fields, "lr"):
            value = getattr(self, name)
            if not (is_number(value) and value >= 0):
                raise OptionError(f"`StyleTrial`: {name} must be a finite number >= 0, got {value!r}.")
        if not (is_whole(self.seed, -(2**63)) and self.seed < 2**64):
            raise OptionError(f"`StyleTrial`: seed must be a whole number in [-2^63, 2^64), as torch's, got {self.seed!r}.")
        self._require_sizes()

    def _require_sizes(self) -> None:
        for name in ("decay", "ema"):
            value = getattr(self, name)
            if not (is_number(value) and 0 <= value <= 1):
                raise OptionError(f"`StyleTrial`: {name} must be a number in [0, 1], got {value!r}.")
        if self.crop % 8 or self.crop > self.size:
            raise OptionError(f"`StyleTrial`: crop must be a multiple of 8 up to size {self.size}, got {self.crop}.")
        if self.save % self.every:
            raise OptionError(f"`StyleTrial`: save must be a multiple of every, got {self.save} and {self.every}.")

    @property
    def files(self) -> Files:
        place = Path("style", f"{self.variant}-{'-'.join(self.domains)}-{self.key}")
        return Files(place / "log.jsonl", place / "checkpoint.ckpt", place / "lock")

    @property
    def weights(self) -> Weights:
        """The factors of the losses."""
        return Weights(*(getattr(self, name) for name in Weights._fields))


# Smoke runs on a CPU in seconds and needs no file. Short is for one H200, all variants side by side. Paper is what the text
# says, one network for each domain; size, precision, steps and batch are ours.
_SCALES: dict[Scale, StyleTrial] = {
    "smoke": StyleTrial(
        data="embedded", size=64, crop=48, width=8, group_size=8, blocks=1, scales=1, features="network", steps=30, batch=2,
        lr=1e-3, ema=0.8, every=5, save=10,
    ),
    "short": StyleTrial(precision="bf16-mixed"),
    "paper": StyleTrial(
        crop=256, blocks=4, scales=3, steps=100_000, batch=2, lr=1e-4, decay=0.5, ema=0.999, every=100, save=1000,
    ),
}  # fmt: skip


def style_trial(variant: str, scale: Scale = "smoke", domains: tuple[str, ...] = DOMAINS, **changes: Any) -> StyleTrial:
    """The trial of a variant at a scale.

    Args:
        variant: gd, clip, pi, taylor or exact.
        scale: smoke, short or paper. At paper scale the text trains one network for each domain: pass one domain.
        domains: of art.
        changes: other fields of the trial.

    Raises:
        OptionError: an unknown scale, or a field out of its range.

    >>> style_trial("taylor", "paper", ("monet",)).crop
    256
    """
    if scale not in SCALES:
        raise OptionError(f"`style_trial`: scale must be one of {', '.join(SCALES)}, got {scale!r}.")
    return replace(_SCALES[scale], variant=variant, domains=tuple(domains), **changes)


def changes_of(who: str, texts: Sequence[str]) -> dict[str, Any]:
    """Fields of a trial from a command line.

    Args:
        who: the command.
        texts: each name=value, with values in JSON or plain words.

    Raises:
        OptionError: no such field, or no value.

    >>> changes_of("train-style", ["steps=7", "precision=32-true"])
    {'steps': 7, 'precision': '32-true'}
    """
    known = sorted({field.name for field in fields(StyleTrial)} - {"variant", "domains"})
    values: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or name not in known:
            raise OptionError(f"`{who}`: --set takes name=value, got {text!r}. Names are {', '.join(known)}.")
        try:
            values[name] = json.loads(value)
        except json.JSONDecodeError:
            values[name] = value
    return values
