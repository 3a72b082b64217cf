"""Which domain a picture belongs to: the judge of stylised pictures (PAMI Table 8).

PAMI fine-tunes an Inception-v3. Ours is a linear classifier on the means and deviations of VGG-19's channels, which are what
a style is; where the weights of VGG-19 are not at hand, a small network on the pixels. Either is judged first: by its
accuracy on real pictures that it has not seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from spectralgrad.errors import OptionError

from .measures import Features

BATCH = 32  # pictures at a time
VIEWS = 3  # of each picture in training: the whole one, and VIEWS - 1 random parts of it
SMALLEST = 0.5  # side of such a part: pictures of a domain come in one resolution, which must not give it away
STEPS = 400
RATE, DECAY = 3e-3, 1e-1  # AdamW
CHANNELS = (16, 32, 64)  # of the small network
TINY = 1e-6  # a feature that does not vary more than that is left out


class PicturesByDomain(Protocol):
    """`data.artworks.Artworks`: domain -> uint8 (N, 3, size, size)."""

    @property
    def train(self) -> Mapping[str, Tensor]: ...
    @property
    def test(self) -> Mapping[str, Tensor]: ...


class Score(NamedTuple):
    """Right answers for one domain, and how many were asked for."""

    right: int
    of: int

    @property
    def percent(self) -> float:
        return 100 * self.right / self.of if self.of else float("nan")


@dataclass(frozen=True)
class Classifier:
    """A trained classifier.

    Args:
        domains: its classes, in order.
        accuracy: in percent, by domain, on the real pictures that were held out.
        features: pictures (N, 3, H, W) in [0, 1] -> (N, F).
        head: (N, F) -> (N, domains).
        device: where it computes.
        about: what it is, in words.
    """

    domains: tuple[str, ...]
    accuracy: dict[str, float]
    features: nn.Module
    head: nn.Module
    device: torch.device
    about: str

    @property
    def mean_accuracy(self) -> float:
        """Over the domains, each counted alike."""
        return sum(self.accuracy.values()) / len(self.accuracy)

    def predict(self, images: Tensor) -> Tensor:
        """The class (N,) of pictures (N, 3, H, W), uint8 or in [0, 1]."""
        with torch.no_grad():
            parts = [self.head(self.features(_as_float(part, self.device))) for part in images.split(BATCH)]
        return torch.cat(parts).argmax(1).cpu()

    def score(self, images: Tensor, domain: str) -> Score:
        """How many of the pictures it takes for ones of this domain."""
        if domain not in self.domains:
            raise OptionError(f"`Classifier`: knows {', '.join(self.domains)}, got {domain!r}.")
        return Score(int((self.predict(images) == self.domains.index(domain)).sum()), len(images))


class Statistics(nn.Module):
    """Mean and standard deviation of every channel at every level of an encoder: (N, 3, H, W) -> (N, F)."""

    def __init__(self, encoder: Features) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        parts = []
        for features in self.encoder(images).values():
            deviation, mean = torch.std_mean(features.float(), (2, 3), correction=0)
            parts += [mean, deviation]
        return torch.cat(parts, 1)


class Small(nn.Module):
    """Three convolutions, each followed by statistics over its map; for tests and for smoke."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (3, *CHANNELS)
        self.steps = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(sizes))

    def forward(self, images: Tensor) -> Tensor:
        x, parts = images - 0.5, []
        for step in self.steps:
            x = step(x).relu()
            parts += [x.mean((2, 3)), (x.var((2, 3), correction=0) + TINY).sqrt()]
        return torch.cat(parts, 1)


class Standard(nn.Module):
    """Features with mean 0 and deviation 1 over the training pictures; those that do not vary become 0."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        deviation, mean = torch.std_mean(features, 0)
        self.register_buffer("mean", mean)
        self.register_buffer("scale", torch.where(deviation > TINY, 1 / deviation.clamp_min(TINY), 0.0))

    def forward(self, features: Tensor) -> Tensor:
        scaled: Tensor = (features - self.get_buffer("mean")) * self.get_buffer("scale")
        return scaled


def train_classifier(
    artworks: PicturesByDomain,
    encoder: Features | None = None,
    device: str | torch.device = "cpu",
    *,
    steps: int = STEPS,
    views: int = VIEWS,
    seed: int = 0,
) -> Classifier:
    """Train a classifier of the domains, and measure it on the pictures that were held out.

    Every domain counts alike, however many pictures it has.

    Args:
        artworks: pictures by domain, for training and test.
        encoder: `style.weights.load_encoder`'s; None for a small network on the pixels.
        device: where to compute.
        steps: of AdamW.
        views: of each picture: the whole, and random parts of it, some mirrored.
        seed: of parts, batches and weights.

    Returns:
        The classifier, with its accuracy on the held-out pictures.

    Raises:
        OptionError: fewer than two domains, a domain without pictures, or no view or step.
    """
    domains = tuple(artworks.train)
    _require(artworks, domains, steps, views)
    at = torch.device(device)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.full((len(artworks.train[name]),), i) for i, name in enumerate(domains)])
    images = torch.cat([artworks.train[name] for name in domains])
    weights = (len(labels) / (len(domains) * torch.bincount(labels))).to(at)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        features, head = _fit(images, labels, encoder, len(domains), weights, at, steps, views, generator)
    about = (
        "a linear classifier on the statistics of VGG-19's channels" if encoder is not None else "a small network on pixels"
    )
    made = Classifier(domains, {}, features.eval(), head.eval(), at, about)
    for name in domains:
        made.accuracy[name] = made.score(artworks.test[name], name).percent
    return made


def _fit(
    images: Tensor,
    labels: Tensor,
    encoder: Features | None,
    classes: int,
    weights: Tensor,
    device: torch.device,
    steps: int,
    views: int,
    generator: torch.Generator,
) -> tuple[nn.Module, nn.Module]:
    """With an encoder the features are computed once; without, they are learned."""
    seen = [images, *(_parts(images, generator) for _ in range(views - 1))]
    labels = labels.repeat(views).to(device)
    if encoder is not None:
        features: nn.Module = Statistics(encoder)
        inputs = _all_features(features, seen, device)
        standard = Standard(inputs)
        inputs = standard(inputs)
        linear = nn.Linear(inputs.shape[1], classes).to(device)
        _descend(linear, list(linear.parameters()), inputs, labels, weights, steps, 4 * BATCH, generator)
        return features, nn.Sequential(standard, linear)
    features = Small().to(device)
    standard = Standard(_all_features(features, seen, device))  # of the weights as they begin: it keeps the scale in hand
    head = nn.Sequential(standard, nn.Linear(standard.get_buffer("mean").numel(), classes)).to(device)
    inputs = torch.cat([_as_float(part, device) for part in seen])
    whole = nn.Sequential(features, head)
    _descend(whole, list(whole.parameters()), inputs, labels, weights, steps, BATCH, generator)
    return features, head


def _descend(
    net: nn.Module,
    parameters: Sequence[nn.Parameter],
    inputs: Tensor,
    labels: Tensor,
    weights: Tensor,
    steps: int,
    batch: int,
    generator: torch.Generator,
) -> None:
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        some = torch.randint(len(labels), (batch,), generator=generator).to(labels.device)
        optimizer.zero_grad()
        cross_entropy(net(inputs[some]), labels[some], weight=weights).backward()
        optimizer.step()
        schedule.step()


def _all_features(features: nn.Module, seen: Sequence[Tensor], device: torch.device) -> Tensor:
    with torch.no_grad():
        return torch.cat([features(_as_float(part, device)) for view in seen for part in view.split(BATCH)])


def _parts(images: Tensor, generator: torch.Generator) -> Tensor:
    """A random square part of each picture, scaled back to its size; half of them mirrored."""
    size = images.shape[-1]
    made = torch.empty_like(images)
    for i, image in enumerate(images):
        share, x, y, turn = torch.rand(4, generator=generator).tolist()
        side = max(1, round(size * (SMALLEST + (1 - SMALLEST) * share)))
        top, left = int(y * (size - side + 1)), int(x * (size - side + 1))
        part = image[None, :, top : top + side, left : left + side].float()
        part = interpolate(part, (size, size), mode="bilinear", antialias=True)[0]
        made[i] = (part.flip(2) if turn < 0.5 else part).round().clamp(0, 255).to(images.dtype)
    return made


def _as_float(images: Tensor, device: torch.device) -> Tensor:
    images = images.to(device)
    return images.float() / 255 if images.dtype == torch.uint8 else images.float().clamp(0, 1)


def _require(artworks: PicturesByDomain, domains: Sequence[str], steps: int, views: int) -> None:
    who = "train_classifier"
    if len(domains) < 2 or steps < 1 or views < 1:
        raise OptionError(
            f"`{who}`: needs two domains, a step and a view at least, got {len(domains)} domains, {steps} steps, "
            f"{views} views."
        )
    for name in domains:
        counts = len(artworks.train[name]), len(artworks.test.get(name, ()))
        if min(counts) < 1:
            raise OptionError(
                f"`{who}`: {name} must have pictures for training and test, got {counts[0]} and {counts[1]}. "
                "Leave the domain out, or add pictures."
            )
