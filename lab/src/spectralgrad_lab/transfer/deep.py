"""Whitening and colouring of a network's features, coarse to fine (PAMI 5.3.1), in tiles that give what the whole would."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from spectralgrad.linalg.covariance import Moments, merge_moments
from spectralgrad_lab.models.decoders import Decoder
from spectralgrad_lab.models.vgg import LEVELS, STRIDE, Encoder

from .clock import Clock
from .matching import Matching, gathered, matching, relative_eps
from .options import TransferOptions
from .tiles import Tile, divided, filled, padded

__all__ = ["RTOL", "DeepTransfer", "Networks", "Progress", "load_networks"]

Progress = Callable[[int, int], None]  # what is done, and what there is to do
Watch = Callable[[str, Tensor], None]  # a level, and the core of a tile's features (C, h, w) after the transfer

# The shift of a level's covariance, of the content's mean eigenvalue there: features grow thirtyfold from relu1_1 to
# relu4_1, and one absolute number does not fit all. At 1e-5 the covariance of the result is the style's to about 1e-3 where
# the content has full rank. A tenth makes rounding show at the seams of tiles; ten times as much misses 1e-2 at relu4_1.
RTOL = 1e-5
STEPS = 2  # of progress for each tile of a level: statistics, then map and decode


class Networks(NamedTuple):
    """The two networks of a level."""

    encoder: Encoder
    decoder: Decoder

    @property
    def halo(self) -> int:
        """The pixels by which decode(encode(picture)) looks beyond a tile of whole cells.

        The decoder looks at whole cells, so its halo is rounded up before the encoder's is added to it.
        """
        stride = STRIDE[self.decoder.level]
        return -(-self.decoder.halo // stride) * stride + self.encoder.halo()

    def arranged(self) -> "Networks":
        """With weights channels last, as convolutions want all."""
        for network in self:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self


def load_networks(depth: int, weights: Path | None, device: torch.device) -> dict[str, Networks]:
    """The trained networks of the levels from relu1_1 up to a depth."""
    from .pretrained import load_decoder, load_encoder

    return {
        level: Networks(load_encoder(weights, level, device), load_decoder(level, device)).arranged()
        for level in LEVELS[:depth]
    }


class DeepTransfer:
    """A style whose features' means and covariances were taken once, to be given to any number of pictures.

    Args:
        style: (3, H, W), in [0, 1]. visible: (H, W), bool, or None.
        options: how.
        networks: by level; those of levels up to options.depth.
        clock: told where the time goes.
        watch: for tests: shown the features of every tile after the transfer.
    """

    def __init__(
        self,
        style: Tensor,
        visible: Tensor | None,
        *,
        options: TransferOptions,
        networks: Mapping[str, Networks],
        clock: Clock,
        watch: Watch | None = None,
    ) -> None:
        self.options, self.clock, self.watch = options, clock, watch
        self.device, self.half = options.on, options.half
        self.networks = {level: networks[level] for level in LEVELS[: options.depth]}
        self.groups = options.groups or 1
        with torch.no_grad():
            shown = style if visible is None else filled(style, visible)
            self.styles = self._styles(shown.to(self.device), visible)

    def __call__(self, content: Tensor, visible: Tensor | None, progress: Progress | None = None) -> Tensor:
        """The colours (3, H, W) of the result, not clipped, on the device of ``content``."""
        height, width = content.shape[-2:]
        coarsest = STRIDE[LEVELS[self.options.depth - 1]]
        shown = content.to(self.device) if visible is None else filled(content, visible).to(self.device)
        picture = padded(shown, coarsest, coarsest)
        steps = _Steps(progress, self._number_of_tiles(picture))
        with torch.no_grad():
            for level in reversed(self.networks):
                before = picture.clamp(0, 1)
                picture = self._one_level(level, before, (height, width), visible, steps)
                if self.half and not bool(picture.isfinite().all()):  # beyond the range of float16
                    self.half = False
                    picture = self._one_level(level, before, (height, width), visible, steps)
        return picture[:, :height, :width].to(content.device)

    def _styles(self, style: Tensor, visible: Tensor | None) -> dict[str, Moments]:
        """The style at every level, from one pass through the deepest encoder."""
        deepest = LEVELS[self.options.depth - 1]
        stride, encoder = STRIDE[deepest], self.networks[deepest].encoder
        shape = (int(style.shape[-2]), int(style.shape[-1]))
        picture = padded(style, stride, stride)
        parts: dict[str, list[Moments]] = {level: [] for level in self.networks}
        for tile in divided(picture.shape[-2:], self.options.tile, encoder.halo(), stride):
            with self._precision(), self.clock("encode style"):
                found = encoder(_batch(tile.cut(picture)))
            with self.clock("statistics"):
                for level in parts:
                    parts[level].append(self._moments(level, tile, found[level][0], shape, visible))
        return {level: merge_moments(found) for level, found in parts.items()}

    def _one_level(
        self, level: str, picture: Tensor, shape: tuple[int, int], visible: Tensor | None, steps: "_Steps"
    ) -> Tensor:
        """The picture (3, H, W) after the transfer of one level's features."""
        networks, stride = self.networks[level], STRIDE[level]
        tiles = divided(picture.shape[-2:], self.options.tile, networks.halo, stride)
        parts, kept = [], None
        for tile in tiles:
            features = self._encode(level, tile.cut(picture))
            kept = features if len(tiles) == 1 else None  # of many tiles nothing is kept: they are encoded again
            with self.clock("statistics"):
                parts.append(self._moments(level, tile, features[0], shape, visible))
            steps.advance()
        with self.clock("statistics"):
            content = merge_moments(parts)
            eps = relative_eps(content, RTOL, features.dtype)
        with self.clock("decomposition"):
            move = matching(content, self.styles[level], eps, self.options.amount, self.options.coloring)
        result = torch.empty_like(picture)
        for tile in tiles:
            features = self._encode(level, tile.cut(picture)) if kept is None else kept
            tile.put(result, self._decode(level, tile, features, move, picture))
            steps.advance()
        return result

    def _encode(self, level: str, part: Tensor) -> Tensor:
        """Features (1, C, h, w) of a part (3, H, W) of a picture."""
        with self._precision(), self.clock("encode"):
            found: dict[str, Tensor] = self.networks[level].encoder(_batch(part))
        return found[level]

    def _decode(self, level: str, tile: Tile, features: Tensor, move: Matching, picture: Tensor) -> Tensor:
        decoder, strength = self.networks[level].decoder, self.options.amount
        with self.clock("map"):
            mapped = _batch(move(features[0]))
        if self.watch is not None:
            self.watch(level, tile.inner(mapped[0], STRIDE[level]))
        with self._precision(), self.clock("decode"):
            made: Tensor = decoder(mapped)[0].float()
            if strength < 1:
                # What the decoder loses of the content comes back in the measure in which content is wanted, so that a
                # strength near 0 is near the content and not near its reconstruction.
                made += (1 - strength) * (tile.cut(picture) - decoder(features)[0].float())
        return made

    def _moments(self, level: str, tile: Tile, features: Tensor, shape: tuple[int, int], visible: Tensor | None) -> Moments:
        """Of the features (C, h, w) in the core of a tile that show something of the picture: not of its continuation, and
        not of what is transparent."""
        stride = STRIDE[level]
        top, bottom, left, right = (edge // stride for edge in tile.core)
        rows, columns = (-(-length // stride) for length in shape)
        core = tile.inner(features, stride)[:, : max(0, min(bottom, rows) - top), : max(0, min(right, columns) - left)]
        if visible is None:
            return gathered(core.flatten(1), self.groups)
        cells = max_pool2d(visible[None].float(), stride, ceil_mode=True)[0] > 0  # (rows, columns)
        mask = cells[top : top + core.shape[1], left : left + core.shape[2]].to(core.device)
        return gathered(core[:, mask], self.groups)

    def _number_of_tiles(self, picture: Tensor) -> int:
        size = picture.shape[-2:]
        return sum(len(divided(size, self.options.tile, 0, STRIDE[level])) for level in self.networks)

    @contextmanager
    def _precision(self) -> Iterator[None]:
        with torch.autocast("cuda", torch.float16, enabled=self.half):
            yield


class _Steps:
    """Tells the listener how far it is."""

    def __init__(self, progress: Progress | None, tiles: int) -> None:
        self.progress, self.done, self.total = progress, 0, STEPS * tiles

    def advance(self) -> None:
        self.done = min(self.done + 1, self.total)
        if self.progress is not None:
            self.progress(self.done, self.total)


def _batch(x: Tensor) -> Tensor:
    """(1, C, H, W), channels last. A copy, since one picture's strides may be those of both layouts: what convolutions make
    of it, in speed and in rounding, shall not depend on where it came from."""
    return torch.empty_like(x[None], memory_format=torch.channels_last).copy_(x[None])
