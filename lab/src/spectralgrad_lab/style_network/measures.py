"""How good a stylised picture is, in numbers: its sharpness, and how far it is from its content and from its style."""

import statistics
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from spectralgrad.errors import OptionError, ShapeError
from spectralgrad.linalg.precision import matmul
from spectralgrad_lab.training.timing import now

Features = Callable[[Tensor], Mapping[str, Tensor]]  # (N, 3, H, W) in [0, 1] -> level -> (N, C, h, w); `models.vgg.Encoder`

LUMA = (0.299, 0.587, 0.114)  # intensity of red, green and blue (ITU-R BT.601)
WHITE = 255.0  # PAMI's scores are of 8-bit intensities
LEAST = 1e-12  # of a variance: a constant channel is left at 0
DEEPEST = "relu4_1"


def sharpness(images: Tensor) -> Tensor:
    """Mean norm of the gradient of the intensity (PAMI Table 9), with central differences, one-sided at the border.

        mean over the pixels of ( (dI/dx)^2 + (dI/dy)^2 )^(1/2),        I = 255 (0.299 R + 0.587 G + 0.114 B)

    Args:
        images: (N, 3, H, W), RGB in [0, 1]; H and W at least 2.

    Returns:
        (N,), float32.

    Raises:
        ShapeError: no such images.

    >>> ramp = torch.arange(8).expand(1, 3, 8, 8) / 255  # one level of 255 more in each column
    >>> round(sharpness(ramp).item(), 4)
    1.0
    """
    _require_images("sharpness", images, least=2)
    luma = torch.tensor(LUMA, device=images.device).view(3, 1, 1)
    intensity = WHITE * (images.float() * luma).sum(1)  # (N, H, W)
    dy, dx = torch.gradient(intensity, dim=(1, 2))
    return torch.hypot(dx, dy).mean((1, 2))


def content_distance(encoder: Features, images: Tensor, content: Tensor, level: str = DEEPEST) -> Tensor:
    """Relative distance of deep features, each channel of a map standardised so that its style does not count.

        |n(F(y)) - n(F(c))| / |n(F(c))|,        n(F) = (F - mean) / std over the positions of a channel

    0 for the content itself, about 2^(1/2) for a picture that has nothing to do with it.

    Args:
        encoder: from pictures to features by level.
        images, content: (N, 3, H, W) in [0, 1], of one size.
        level: whose features are compared.

    Returns:
        (N,).

    Raises:
        ShapeError: no images, or not of one size.
    """
    _require_images("content_distance", images)
    if images.shape != content.shape:
        raise ShapeError(
            f"`content_distance`: images and content must be of one shape, got {tuple(images.shape)} and "
            f"{tuple(content.shape)}. Scale them to one size first."
        )
    with torch.no_grad():
        ours, theirs = (_standardised(encoder(x)[level]).flatten(1) for x in (images, content))
    return _relative(ours, theirs)


def style_distance(encoder: Features, images: Tensor, style: Tensor) -> Tensor:
    """Relative distance of the means and covariances of features, averaged over the levels.

        mean over the levels of ( |m_y - m_s| / |m_s| + |C_y - C_s|_F / |C_s|_F ) / 2

    0 for the style itself and for every picture with the same statistics.

    Args:
        encoder: from pictures to features by level.
        images: (N, 3, H, W) in [0, 1].
        style: (N or 1, 3, H', W'), of any size.

    Returns:
        (N,).

    Raises:
        ShapeError: no images, or as many styles as images are not there.
    """
    _require_images("style_distance", images)
    _require_images("style_distance", style)
    if style.shape[0] not in (1, images.shape[0]):
        raise ShapeError(
            f"`style_distance`: one style, or one for each of {images.shape[0]} images, is needed, got {style.shape[0]}."
        )
    with torch.no_grad():
        ours, theirs = encoder(images), encoder(style)
        parts = [_statistics_distance(ours[level], theirs[level]) for level in theirs]
    return torch.stack(parts).mean(0)


def milliseconds(
    runs: Mapping[str, Callable[[], object]], device: torch.device, rounds: int = 20, warm_up: int = 3
) -> dict[str, float]:
    """Median times of calls, in ms, the device's work included (PAMI Table 10: batches of size 1).

    Every round times every call once, in an order that turns round, so that a disturbance meets all alike.

    Args:
        runs: what is timed, by name.
        device: where they compute; it is waited for before and after each call.
        rounds: rounds that count.
        warm_up: calls of each before them.

    Returns:
        The medians, by name.

    Raises:
        OptionError: no round.

    >>> import time
    >>> milliseconds({"sleep": lambda: time.sleep(0.002)}, torch.device("cpu"), rounds=3)["sleep"] > 1.5
    True
    """
    if rounds < 1:
        raise OptionError(f"`milliseconds`: rounds must be at least 1, got {rounds}.")
    for run in runs.values():
        for _ in range(warm_up):
            run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    for _ in range(rounds):
        for name in order:
            start = now(device)
            runs[name]()
            seconds[name].append(now(device) - start)
        order.reverse()
    return {name: 1e3 * statistics.median(some) for name, some in seconds.items()}


def _standardised(features: Tensor) -> Tensor:
    """Each channel of each map (N, C, h, w) with mean 0 and variance 1; a constant one becomes 0."""
    centred = features.float() - features.float().mean((2, 3), keepdim=True)
    variance = centred.square().mean((2, 3), keepdim=True)
    return torch.where(variance > LEAST, centred * variance.clamp_min(LEAST).rsqrt(), 0.0)


def _statistics_distance(ours: Tensor, theirs: Tensor) -> Tensor:
    (m, C), (n, D) = _moments(ours), _moments(theirs)
    return (_relative(m, n) + _relative(C.flatten(1), D.flatten(1))) / 2


def _relative(x: Tensor, y: Tensor) -> Tensor:
    """|x - y| / |y| of the rows (N, F)."""
    size: Tensor = torch.linalg.vector_norm(y, dim=1).clamp_min(LEAST)
    distance: Tensor = torch.linalg.vector_norm(x - y, dim=1)
    return distance / size


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (N, C) and covariance (N, C, C) of a map (N, C, h, w) over its positions."""
    X = features.float().flatten(2)
    mean = X.mean(2)
    X = X - mean.unsqueeze(2)
    return mean, matmul(X, X.mT) / X.shape[2]


def _require_images(who: str, images: Tensor, least: int = 1) -> None:
    if images.ndim != 4 or images.shape[1] != 3 or min(images.shape[2:]) < least:
        raise ShapeError(
            f"`{who}`: images must be (N, 3, H, W) with H and W at least {least}, got {tuple(images.shape)}. "
            "For one picture use picture.unsqueeze(0)."
        )
