"""Training the decoders: a photograph's features back into the photograph, within a given time.

The loss is the squared error of the pixels plus that of the features, relative to their size, at every level up to the
decoder's. Data are the training photographs, in crops, mirrored, some enlarged, half of them in other colours: when
transfer goes from coarse to fine, a decoder meets colours that no photograph has. Paintings lend means and covariances, for
the third term of the loss: calm.py.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Conv2d
from torch.nn.functional import interpolate, mse_loss

from spectralgrad.errors import OptionError
from spectralgrad.validation import is_number
from spectralgrad_lab.data.batches import crop
from spectralgrad_lab.models.decoders import Decoder
from spectralgrad_lab.models.vgg import LEVELS, Encoder, require_level

from .calm import Styles

__all__ = ["Recipe", "psnr", "reconstruction", "train_decoder"]

ENLARGED = (1.5, 2.0)  # a large picture is smoother, pixel by pixel, than photographs of 256
ENLARGED_SHARE = 0.3  # of the steps
RECOLORED_SHARE = 0.5  # of the pictures
# Steps in which the learning rate rises: not a time, which a GPU may spend on choosing algorithms.
WARM_UP, WARM_UP_AGAIN = 100, 10  # from random weights, and from trained ones
AVERAGE = 0.999  # of the moving average of the weights
HALF_FROM = "relu3_1"  # from here on bfloat16 serves: its rounding is far below the error of the decoder
# What deep features do not tell of pixels they still tell of texture: there the error of the features counts for more.
FEATURE = dict(zip(LEVELS, (0.01, 0.01, 0.02, 0.05), strict=True))
# And there a transfer makes texture out of nothing.
CALM = dict(zip(LEVELS, (0.0, 0.0, 10.0, 10.0), strict=True))
STYLE_COUNT = 75  # pictures that lend their statistics
PERMUTATIONS = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a decoder is trained.

    level: whose features. seconds: of training, in which the learning rate falls to zero along a cosine. steps: instead of
    seconds, for a run that can be repeated exactly. batch, crop: pictures, and pixels a side. rate: the highest learning
    rate. feature: weight of the relative error of the features beside the squared error of the pixels; None is the level's
    own in FEATURE. calm: weight of the texture that transferred features get where the photograph is flat; None is the
    level's own in CALM. seed: of all draws.
    """

    level: str
    seconds: float = 150.0
    steps: int | None = None
    batch: int = 8
    crop: int = 160
    rate: float = 1e-3
    feature: float | None = None
    calm: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_level("Recipe", self.level)
        if self.crop % 8 or self.crop < 32:
            raise OptionError(f"`Recipe`: crop must be a multiple of 8, at least 32, got {self.crop}.")
        if (
            not all(map(is_number, (self.batch, self.seconds, self.rate, self.feature_weight, self.calm_weight)))
            or min(self.batch, self.seconds, self.rate) <= 0
            or min(self.feature_weight, self.calm_weight) < 0
            or (self.steps is not None and self.steps < 1)
        ):
            raise OptionError(
                "`Recipe`: batch, seconds, rate and steps must be finite and positive, feature and calm not negative, got "
                f"{self}."
            )

    @property
    def feature_weight(self) -> float:
        return FEATURE[self.level] if self.feature is None else self.feature

    @property
    def calm_weight(self) -> float:
        return CALM[self.level] if self.calm is None else self.calm

    def progress(self, step: int, seconds: float) -> float:
        """The part of the training that is done, in [0, 1]."""
        return min(1.0, step / self.steps if self.steps else seconds / self.seconds)


def train_decoder(
    recipe: Recipe,
    encoder: Encoder,
    photographs: Tensor,
    held_out: Tensor,
    report: Callable[[dict[str, float], Decoder], None] | None = None,
    every: float = 5.0,
    *,
    styles: Tensor | None = None,
    start: Decoder | None = None,
) -> tuple[Decoder, int]:
    """A decoder, trained on the device of the encoder.

    Args:
        recipe: how.
        encoder: whose features, at least up to the recipe's level.
        photographs: uint8 (N, 3, S, S) with S >= the crop, to train on.
        held_out: uint8 (M, 3, S, S), on which ``report`` is told the error.
        report: takes, now and then, numbers (step, seconds, pixel, feature, rough, psnr) and the decoder so far.
        every: the seconds between two reports; 0 reports each step.
        styles: uint8 (K, 3, S', S'), which lend their statistics to transfers in training; None for the photographs.
        start: go on from its weights; None for random ones.

    Returns:
        The moving average of the weights, in evaluation mode, and the number of steps.
    """
    device = next(encoder.parameters()).device
    torch.manual_seed(recipe.seed)
    decoder = copy.deepcopy(start).train().requires_grad_() if start else Decoder(recipe.level)
    decoder.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    encoder = encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = augmented(photographs.to(device), recipe)
    held_out = held_out.to(device)
    if start is None:
        _prepare(decoder, encoder, next(batches))
    lent = photographs[:STYLE_COUNT] if styles is None else styles
    transfers = Styles(encoder, recipe.level, lent, recipe.seed) if recipe.calm_weight else None
    average = copy.deepcopy(decoder).requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(decoder.parameters(), recipe.rate, weight_decay=1e-4, fused=device.type == "cuda")
    step, begin, reported = 0, time.monotonic(), time.monotonic()
    warm_up = WARM_UP if start is None else WARM_UP_AGAIN
    while (done := recipe.progress(step, time.monotonic() - begin)) < 1:
        optimizer.param_groups[0]["lr"] = recipe.rate * min(1.0, (step + 1) / warm_up) * 0.5 * (1 + math.cos(math.pi * done))
        x = next(batches)
        with half_precision(recipe.level, device):
            with torch.no_grad():
                features = encoder(x)
            pixel, feature = losses(decoder, encoder, x, features)
            rough = transfers.roughness(decoder, features[recipe.level], x) if transfers else torch.zeros_like(pixel)
            loss = pixel + recipe.feature_weight * feature + recipe.calm_weight * rough
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        step += 1
        keep = min(AVERAGE, step / (step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(decoder.parameters()), 1 - keep)
        if report and time.monotonic() - reported >= every:
            shown = reconstruction(encoder, average, held_out[:8]).mean()
            seconds = time.monotonic() - begin
            parts = {"pixel": pixel.item(), "feature": feature.item(), "rough": rough.item(), "psnr": shown.item()}
            report({"step": step, "seconds": seconds, **parts}, average)
            reported = time.monotonic()
    return average, step


def losses(decoder: Decoder, encoder: Encoder, x: Tensor, target: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The squared error of the pixels, and that of the features relative to their mean square, averaged over the levels.

    ``target`` are the features of the pictures ``x``.
    """
    y = decoder(target[decoder.level])
    pixel = mse_loss(y.float(), x)
    found = encoder(y)
    used = LEVELS[: LEVELS.index(decoder.level) + 1]
    terms = [mse_loss(found[level].float(), target[level].float()) / target[level].float().square().mean() for level in used]
    return pixel, torch.stack(terms).mean()


def augmented(photographs: Tensor, recipe: Recipe) -> Iterator[Tensor]:
    """Batches (B, 3, crop, crop) in [0, 1] for ever, drawn and made on the device, without making the host wait."""
    host = torch.Generator().manual_seed(recipe.seed)
    device = photographs.device
    count, size = len(photographs), photographs.shape[-1]
    while True:
        enlarged = torch.rand((), generator=host) < ENLARGED_SHARE
        factor = ENLARGED[int(torch.randint(len(ENLARGED), (), generator=host))] if enlarged else 1.0
        side = round(recipe.crop / factor)
        index = torch.randint(count, (recipe.batch,), generator=host)
        shift = torch.randint(size - side + 1, (2, recipe.batch), generator=host)
        mirrored = torch.rand(recipe.batch, generator=host) < 0.5
        index, shift, mirrored, matrix = (
            x.to(device, non_blocking=True) for x in (index, shift, mirrored, color_changes(recipe.batch, host))
        )
        x = crop(photographs[index], side, shift, mirrored).float() / 255
        if factor != 1:
            x = interpolate(x, size=(recipe.crop, recipe.crop), mode="bilinear")
        x = torch.einsum("bij,bjhw->bihw", matrix[:, :, :3], x) + matrix[:, :, 3, None, None]
        yield x.clamp(0, 1).contiguous(memory_format=torch.channels_last)


def color_changes(count: int, generator: torch.Generator) -> Tensor:
    """Affine maps of colours (count, 3, 4): the identity, or another order of the channels with other saturation, contrast
    and brightness.

    >>> maps = color_changes(4, torch.Generator().manual_seed(0))
    >>> maps.shape
    torch.Size([4, 3, 4])
    """
    order = torch.tensor(PERMUTATIONS)[torch.randint(len(PERMUTATIONS), (count,), generator=generator)]  # (count, 3)
    draw = torch.rand(4, count, 1, 1, generator=generator)
    saturation, contrast, brightness = 1.8 * draw[0], 0.6 + 0.9 * draw[1], 0.4 * draw[2] - 0.2
    identity, grey = torch.eye(3), torch.full((3, 3), 1 / 3)
    linear = contrast * (grey + saturation * (identity - grey)) @ identity[order]
    offset = 0.5 * (1 - contrast) + brightness  # contrast about the middle
    changed = torch.cat([linear, offset.expand(count, 3, 1)], 2)
    return torch.where(draw[3] < RECOLORED_SHARE, changed, torch.cat([identity, torch.zeros(3, 1)], 1))


def half_precision(level: str, device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 where it pays: on a GPU, for the levels whose decoder errs by far more than its rounding."""
    enabled = device.type == "cuda" and LEVELS.index(level) >= LEVELS.index(HALF_FROM)
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


def psnr(x: Tensor, reference: Tensor) -> Tensor:
    """10 log10(1 / mean squared error) in dB of each picture (N, 3, H, W) in [0, 1].

    >>> psnr(torch.full((1, 3, 2, 2), 0.75), torch.full((1, 3, 2, 2), 0.5))
    tensor([12.0412])
    """
    return -10 * (x - reference).square().mean((1, 2, 3)).log10()


@torch.no_grad()
def reconstruction(encoder: Encoder, decoder: Decoder, pictures: Tensor, batch: int = 8) -> Tensor:
    """The PSNR (N,) of uint8 pictures (N, 3, H, W) that were encoded, decoded and clipped, in full precision."""
    result = []
    for part in pictures.split(batch):
        x = part.to(next(encoder.parameters()).device).float() / 255
        result.append(psnr(decoder(encoder(x)[decoder.level]).float().clamp(0, 1), x))
    return torch.cat(result)


@torch.no_grad()
def _prepare(decoder: Decoder, encoder: Encoder, x: Tensor) -> None:
    """Scale the first convolution to features of any size, and the last to a contrast of about that of pictures."""
    first, last = decoder.convolutions[0], decoder.convolutions[-1]
    assert isinstance(first, Conv2d)
    assert isinstance(last, Conv2d)
    features = encoder(x)[decoder.level].float()
    first.weight /= features.square().mean().sqrt()
    last.weight *= 0.2 / decoder(features).std().clamp(min=1e-6)
