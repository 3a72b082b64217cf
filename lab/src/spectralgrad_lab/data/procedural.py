"""Landscapes out of noise, and three ways of painting them: pictures that need no file."""

import math

import torch
from torch import Generator, Tensor
from torch.nn.functional import grid_sample, interpolate

# Colours (5, 3) from dark to light, through which brightness is mapped.
NIGHT = ((0.05, 0.08, 0.25), (0.10, 0.22, 0.55), (0.18, 0.48, 0.62), (0.80, 0.62, 0.18), (0.98, 0.88, 0.42))
PASTEL = ((0.30, 0.38, 0.52), (0.48, 0.58, 0.52), (0.66, 0.66, 0.80), (0.86, 0.76, 0.80), (0.97, 0.93, 0.82))
PRINT = ((0.13, 0.17, 0.34), (0.24, 0.40, 0.52), (0.74, 0.33, 0.24), (0.66, 0.72, 0.62), (0.93, 0.87, 0.72))
INK = (0.10, 0.09, 0.12)
LUMA = (0.299, 0.587, 0.114)
STROKE = 0.06  # half the length of a stroke, in pictures
STEPS = 6  # samples along half a stroke
DAB = 0.034  # distance between dabs, in pictures


def photographs(count: int, size: int, generator: Generator) -> Tensor:
    """Smooth landscapes (count, 3, size, size) in [0, 1]: sky with clouds and a sun, hills behind hills, trees."""
    y, x = _grid(size)
    draw = _Uniform(count, generator)
    horizon = draw(0.42, 0.62)
    down = (y / horizon).clamp(0, 1)
    dusk = draw(0, 1)
    zenith = _mix(_color(0.20, 0.42, 0.78), _color(0.28, 0.25, 0.48), dusk)
    low = _mix(_color(0.78, 0.88, 0.96), _color(0.98, 0.68, 0.42), dusk)
    picture = _mix(zenith, low, down**1.3)
    clouds = (smooth_noise(count, 5, size, generator) + 0.5 * smooth_noise(count, 11, size, generator) - 0.5).clamp(0, 1)
    picture = _mix(picture, _mix(_color(1, 1, 1), _color(1, 0.85, 0.72), dusk), 0.8 * clouds * (1 - 0.5 * down))
    away = ((x - draw(0.12, 0.88)) ** 2 + (y - horizon * draw(0.2, 0.75)) ** 2).sqrt()
    sun = _color(1.0, 0.96, 0.80)
    picture = _mix(picture, sun, 0.5 * (-away / 0.12).exp())
    picture = _mix(picture, sun, _inside(0.055 - away, size))
    for depth in range(3):
        ridge = horizon + 0.14 * depth + (0.10 - 0.02 * depth) * smooth_noise(count, 3 + depth, size, generator)[:, :, :1]
        far, near = _color(0.45, 0.55, 0.68), _mix(_color(0.16, 0.36, 0.12), _color(0.52, 0.46, 0.18), draw(0, 1))
        ground = _mix(far, near, torch.tensor(0.15 + 0.42 * depth))
        light = 1 + 0.16 * smooth_noise(count, 9, size, generator) - 0.9 * (y - ridge).clamp(0, 0.3)
        picture = _mix(picture, ground * light, _inside(y - ridge, size))
    for _ in range(4):
        foot, left, height = draw(0.72, 0.95), draw(0.05, 0.95), draw(0.10, 0.24)
        trunk = _inside(0.07 * height - (x - left).abs(), size) * _inside((foot - y) * (y - foot + height) / height, size)
        picture = _mix(picture, _color(0.22, 0.15, 0.10), trunk)
        bumps = 0.35 * smooth_noise(count, 14, size, generator)
        crown = 1 + bumps - (((x - left) / (0.42 * height)) ** 2 + ((y - foot + 0.9 * height) / (0.55 * height)) ** 2)
        leaves = _color(0.10, 0.27, 0.09) * (1.25 + 0.8 * bumps + 2.0 * (foot - 0.9 * height - y))
        picture = _mix(picture, leaves, _inside(0.25 * height * crown, size))
    return picture + 0.012 * torch.randn(count, 3, size, size, generator=generator)


def swirls(count: int, size: int, generator: Generator) -> Tensor:
    """Landscapes in long curved strokes of blue and yellow: noise and colours smeared along a turning field."""
    scene = photographs(count, size, generator)
    angle = 2.2 * smooth_noise(count, 4, size, generator)
    # Noise of strokes' width, in pixels of a fixed number a side, so that a stroke is as wide in every size.
    bristles = interpolate(torch.randn(count, 1, 48, 48, generator=generator), size=(size, size), mode="bilinear")
    both = torch.cat([scene, bristles], 1)
    smeared = _smear(both, angle)
    relief = smeared[:, 3:] / smeared[:, 3:].std((2, 3), keepdim=True)
    return _tinted(smeared[:, :3], NIGHT, 0.10 * relief) * (1 + 0.08 * relief)


def dabs(count: int, size: int, generator: Generator) -> Tensor:
    """Landscapes in short dabs of pastel: a pixel takes the colour of the nearest of many points, with a tint of its own."""
    scene = photographs(count, size, generator)
    scene = _mix(_tinted(scene, PASTEL), 0.35 + 0.65 * scene, torch.tensor(0.35))
    result = torch.zeros_like(scene)
    nearest = torch.full((count, 1, size, size), math.inf)
    y, x = _grid(size)
    rows, columns = round(1 / DAB), round(0.6 / DAB)  # a dab is longer than high
    shift = torch.rand(count, 2, rows + 2, columns + 2, generator=generator)
    tint = 0.055 * torch.randn(count, 3, rows + 2, columns + 2, generator=generator)
    row, column = (y * rows).long().clamp(max=rows - 1), (x * columns).long().clamp(max=columns - 1)
    for i in range(3):
        for j in range(3):
            at = (
                slice(None),
                slice(None),
                (row + i).expand(1, 1, size, size)[0, 0],
                (column + j).expand(1, 1, size, size)[0, 0],
            )
            offset = shift[at]  # (count, 2, size, size), of the point in its cell
            down, right = row + i - 1 + offset[:, :1] - y * rows, column + j - 1 + offset[:, 1:] - x * columns
            distance = down.square() + right.square()
            place = torch.cat([x + right / columns, y + down / rows], 1).permute(0, 2, 3, 1)
            color = grid_sample(scene, 2 * place - 1, mode="nearest", padding_mode="border", align_corners=False) + tint[at]
            closer = distance < nearest
            result, nearest = torch.where(closer, color, result), torch.where(closer, distance, nearest)
    return result * (1.05 - 0.16 * nearest.sqrt())


def flat_areas(count: int, size: int, generator: Generator) -> Tensor:
    """Landscapes as woodblock prints: five flat colours, dark outlines between them, the grain of paper."""
    scene = photographs(count, size, generator)
    coarse = interpolate(scene, size=(max(size // 3, 8),) * 2, mode="area")
    luma = _luma(interpolate(coarse, size=(size, size), mode="bicubic"))
    low, high = luma.amin((2, 3), keepdim=True), luma.amax((2, 3), keepdim=True)
    block = ((luma - low) / (high - low) * 4.999).long().clamp(0, 4)  # (count, 1, size, size)
    picture = torch.tensor(PRINT)[block[:, 0]].permute(0, 3, 1, 2)
    y, _ = _grid(size)
    picture = picture * (1 - 0.22 * (block == 4) * (1 - y / 0.5).clamp(0, 1) ** 2)  # the printed sky darkens at the top
    outline = torch.zeros(count, 1, size, size)
    width = max(1, size // 96)
    for axis in (2, 3):
        outline += (block != block.roll(width, axis)).float()
    outline[:, :, :width] = 0  # roll wraps round
    outline[:, :, :, :width] = 0
    grain = 0.02 * interpolate(torch.randn(count, 1, size, 12, generator=generator), size=(size, size), mode="bilinear")
    return _mix(picture + grain, _color(*INK), 0.85 * outline.clamp(0, 1))


def smooth_noise(count: int, cells: int, size: int, generator: Generator) -> Tensor:
    """Noise (count, 1, size, size) of standard deviation about 1 that varies over 1/cells of a picture."""
    coarse = torch.randn(count, 1, cells + 1, cells + 1, generator=generator)
    return interpolate(coarse, size=(size, size), mode="bicubic", align_corners=True)


class _Uniform:
    """Draws numbers (count, 1, 1, 1), one for each picture."""

    def __init__(self, count: int, generator: Generator) -> None:
        self.count, self.generator = count, generator

    def __call__(self, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(self.count, 1, 1, 1, generator=self.generator)


def _grid(size: int) -> tuple[Tensor, Tensor]:
    """Rows (size, 1) and columns (1, size): the middles of the pixels, in (0, 1)."""
    along = (torch.arange(size) + 0.5) / size
    return along.view(-1, 1), along.view(1, -1)


def _color(red: float, green: float, blue: float) -> Tensor:
    return torch.tensor((red, green, blue)).view(1, 3, 1, 1)


def _mix(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    return a + (b - a) * share


def _inside(signed: Tensor, size: int) -> Tensor:
    """1 where a distance in pictures is positive, 0 where negative, with a soft edge of about a pixel."""
    return (signed * size + 0.5).clamp(0, 1)


def _luma(picture: Tensor) -> Tensor:
    return (picture * torch.tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)


def _tinted(picture: Tensor, palette: tuple[tuple[float, float, float], ...], offset: Tensor | float = 0.0) -> Tensor:
    """A picture in the colours of a palette, chosen by brightness plus an offset, with a part of its own hue left."""
    luma = _luma(picture)
    low, high = luma.amin((2, 3), keepdim=True), luma.amax((2, 3), keepdim=True)
    place = ((luma - low) / (high - low) + offset).clamp(0, 1) * (len(palette) - 1)
    lower = place.long().clamp(max=len(palette) - 2)
    colors = torch.tensor(palette)
    tint = _mix(colors[lower[:, 0]], colors[lower[:, 0] + 1], (place - lower)[:, 0].unsqueeze(-1)).permute(0, 3, 1, 2)
    return tint + 0.25 * (picture - luma)


def _smear(picture: Tensor, angle: Tensor) -> Tensor:
    """The mean of a picture along curves of length 2 STROKE that follow the angle (N, 1, S, S) at each of their points."""
    size = picture.shape[-1]
    y, x = _grid(size)
    start = torch.stack([x.expand(size, size), y.expand(size, size)], -1).expand(len(picture), size, size, 2)
    total = picture.clone()
    for sign in (-1.0, 1.0):
        place = start
        for _ in range(STEPS):
            here = grid_sample(angle, 2 * place - 1, padding_mode="border", align_corners=False)[:, 0]
            place = place + sign * STROKE / STEPS * torch.stack([here.cos(), here.sin()], -1)
            total = total + grid_sample(picture, 2 * place - 1, padding_mode="border", align_corners=False)
    return total / (2 * STEPS + 1)
