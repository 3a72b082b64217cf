"""The losses of the style-transfer network: adversarial on patches, and distances of features; see docs/style-network.md."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spectralgrad_lab.models.vgg import Encoder
from spectralgrad_lab.models.wct import StylePair

_TINY = 1e-12  # beside squares of norms: 0 / 0 becomes 0
_FLAT = 1e-3  # beside variances of features: a constant channel is not blown up
CONTENT = "relu4_1"


class Looks(NamedTuple):
    """What the losses see of pictures: features whose moments are the style, and features that are the content."""

    style: tuple[Tensor, ...]
    content: Tensor


Look = Callable[[Tensor], Looks]


def through_vgg(encoder: Encoder) -> Look:
    """All levels of VGG for the style, the deepest for the content."""

    def look(pictures: Tensor) -> Looks:
        features = encoder(pictures)
        return Looks(tuple(features.values()), features[CONTENT])

    return look


def through_networks(pair: StylePair, art: bool) -> Look:
    """The features of the pair's own encoders for pictures of art, or for photographs."""
    here, back = (pair.to_art, pair.to_photo) if art else (pair.to_photo, pair.to_art)
    assert here is not None
    assert back is not None

    def look(pictures: Tensor) -> Looks:
        return Looks((here.style(2 * pictures - 1),), back.encode(pictures))

    return look


def style_loss(painted: Looks, exemplar: Looks) -> Tensor:
    """How far mean and covariance of the features are from the exemplar's, over levels: 0 where equal, never above 4.

    For each of the two, |x - y|^2 / (|x|^2 + |y|^2), the denominator a constant for autograd.
    """
    terms = []
    for x, y in zip(painted.style, exemplar.style, strict=True):
        (mean, covariance), (its_mean, its_covariance) = _moments(x), _moments(y.detach())
        terms += [_apart(mean, its_mean), _apart(covariance.flatten(1), its_covariance.flatten(1))]
    return 2 * torch.stack(terms).mean()


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (N, C) and covariance (N, C, C) of features (N, C, H, W), in float32."""
    with torch.autocast(x.device.type, enabled=False):
        X = x.float().flatten(2)
        mean = X.mean(-1)
        X = X - mean.unsqueeze(-1)
        return mean, X @ X.mT / X.shape[-1]


def _apart(x: Tensor, y: Tensor) -> Tensor:
    sizes = (x.detach().square().sum(1) + y.square().sum(1)).clamp(min=_TINY)
    return ((x - y).square().sum(1) / sizes).mean()


def content_loss(painted: Looks, original: Looks) -> Tensor:
    """The mean square between features that were standardised channel by channel, so that colours do not count."""
    return (_standardised(painted.content) - _standardised(original.content.detach())).square().mean()


def _standardised(x: Tensor) -> Tensor:
    x = x.float()
    variance, mean = torch.var_mean(x, (2, 3), correction=0, keepdim=True)
    return (x - mean) / (variance + _FLAT).sqrt()


# Least squares on patches. Maps (N, domains, h, w) come by scale; domain (N,) says which map is a picture's own.


def judged_loss(maps: Sequence[Tensor], painted: Tensor, domain: Tensor) -> Tensor:
    """What a discriminator minimises: its verdict is 1 for a real picture in its domain's map, 0 for a painted one.

    A real picture should also get 0 in the maps of other domains. With one domain this is the plain least-squares loss.

    Args:
        maps: verdicts on pictures, by scale.
        painted: (N,) bool, which of them are painted.
        domain: (N,), of each picture.
    """
    total = maps[0].new_zeros(())
    for verdicts in maps:
        own = domain.unsqueeze(1) == torch.arange(verdicts.shape[1], device=domain.device)  # (N, domains)
        wanted = (own & ~painted.unsqueeze(1)).to(verdicts.dtype)
        counted = own | ~painted.unsqueeze(1)  # a painted picture says nothing about the other domains
        squares = (verdicts - wanted[..., None, None]).square().mean((2, 3))
        total = total + torch.where(counted, squares, 0).sum(1).mean()
    return total / len(maps)


def fooling_loss(maps: Sequence[Tensor], domain: Tensor) -> Tensor:
    """What a generator minimises: its pictures should get 1 in the map of their domain."""
    terms = []
    for verdicts in maps:
        own = verdicts.gather(1, domain[:, None, None, None].expand(-1, 1, *verdicts.shape[2:]))
        terms.append((own - 1).square().mean())
    return torch.stack(terms).mean()
