"""What a decoder is told about transferred features in training: where a photograph is flat, no texture is invented.

Photographs alone teach a decoder nothing about features that were given a painting's mean and covariance. Those of a smooth
sky say «texture, everywhere», and it answers with a weave.
"""

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, max_pool2d, pad

from spectralgrad.linalg.covariance import Moments
from spectralgrad_lab.models.decoders import Decoder
from spectralgrad_lab.models.vgg import Encoder

from .matching import gathered, matching, relative_eps

__all__ = ["Styles", "flatness", "roughness"]

RADIUS = 4  # pixels; what a mean over this neighbourhood leaves of a picture is its texture
CONTRAST = 0.03  # the deviation of colours in a neighbourhood at which a picture is no longer flat
STRENGTHS = (0.6, 1.0)  # of the transfers in training
RTOL = 1e-3  # a few crops have fewer positions than a picture: the shift is larger than at a transfer
_NO_FLATNESS = 1e-3  # of a batch; less does not count for more


class Styles:
    """Means and covariances of pictures' features at one level, to be given to other features.

    Args:
        encoder: whose features. level: which of them.
        pictures: uint8 (N, 3, S, S).
        seed: of the draws.
    """

    def __init__(self, encoder: Encoder, level: str, pictures: Tensor, seed: int = 0) -> None:
        device = next(encoder.parameters()).device
        self.draws = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            found = (encoder(picture[None].to(device).float() / 255)[level][0] for picture in pictures)
            self.moments: list[Moments] = [gathered(features.flatten(1)) for features in found]

    def roughness(self, decoder: Decoder, features: Tensor, pictures: Tensor) -> Tensor:
        """The texture of transferred pictures where the photographs (N, 3, H, W) with these features are flat."""
        return roughness(decoder(self.transferred(features)).float(), pictures)

    @torch.no_grad()
    def transferred(self, features: Tensor) -> Tensor:
        """Features (N, C, h, w) with the mean and covariance of a drawn style, taken all together."""
        style, strength = (int(torch.randint(len(x), (), generator=self.draws)) for x in (self.moments, STRENGTHS))
        x = features.float().transpose(0, 1).flatten(1)
        content = gathered(x)
        eps = relative_eps(content, RTOL, features.dtype)
        y = matching(content, self.moments[style], eps, STRENGTHS[strength], "nearest")(x)
        moved: Tensor = y.unflatten(1, (len(features), *features.shape[2:])).transpose(0, 1).to(features.dtype)
        return moved.contiguous(memory_format=torch.channels_last)


def roughness(made: Tensor, pictures: Tensor) -> Tensor:
    """The mean square of what a blur leaves of ``made`` (N, 3, H, W), where ``pictures`` of the same shape are flat."""
    weight = flatness(pictures)
    return (weight * (made - _blurred(made)).square()).mean() / weight.mean().clamp(min=_NO_FLATNESS)


def flatness(pictures: Tensor) -> Tensor:
    """(N, 1, H, W): 1 where a picture's neighbourhood is of one colour, falling to 0 where it is not.

    >>> x = torch.zeros(1, 3, 32, 32)
    >>> x[..., 16:] = 1
    >>> flatness(x)[0, 0, 0, [0, 15, 31]]
    tensor([1., 0., 1.])
    """
    variance = (_blurred(pictures.square()) - _blurred(pictures).square()).sum(1, keepdim=True).clamp(min=0)
    return (-max_pool2d(variance, 2 * RADIUS + 1, 1, RADIUS) / CONTRAST**2).exp()


def _blurred(x: Tensor) -> Tensor:
    return avg_pool2d(pad(x, (RADIUS,) * 4, mode="reflect"), 2 * RADIUS + 1, 1)
