"""Tiles cover a picture once, are aligned, and a network computes in their cores what it computes in the whole."""

import pytest
import torch

from spectralgrad_lab.models.decoders import Decoder
from spectralgrad_lab.models.vgg import LEVELS, STRIDE, Encoder
from spectralgrad_lab.transfer.deep import Networks
from spectralgrad_lab.transfer.tiles import divided, padded, strips


@pytest.mark.parametrize(
    ("shape", "size", "halo", "stride"), [((64, 200), 64, 30, 8), ((8, 8), 64, 9, 8), ((40, 36), 16, 3, 4)]
)
def test_cores_cover_once_and_are_aligned(shape: tuple[int, int], size: int, halo: int, stride: int) -> None:
    seen = torch.zeros(shape)
    for tile in divided(shape, size, halo, stride):
        top, bottom, left, right = tile.core
        seen[top:bottom, left:right] += 1
        assert not any(edge % stride for edge in (*tile.core, *tile.around))
        assert max(bottom - top, right - left) <= size
        above, below, before, after = tile.around
        assert above == 0 or top - above >= halo
        assert below == shape[0] or below - bottom >= halo
        assert before == 0 or left - before >= halo
        assert after == shape[1] or after - right >= halo
    assert torch.equal(seen, torch.ones(shape))


def autoencoded_in_tiles(level: str, picture: torch.Tensor, halo: int) -> torch.Tensor:
    torch.manual_seed(0)
    encoder, decoder = Encoder(level).eval(), Decoder(level).eval()
    result = torch.empty_like(picture)
    with torch.no_grad():
        for tile in divided(picture.shape[-2:], 64, halo, STRIDE[level]):
            tile.put(result, decoder(encoder(tile.cut(picture)[None])[level])[0])
    return result


@pytest.mark.parametrize("level", LEVELS)
def test_the_halos_of_the_networks_are_wide_enough_and_needed(level: str) -> None:
    """Compared with the whole in one tile; and without any halo the tiles show."""
    picture = torch.rand(3, 64, 160, generator=torch.Generator().manual_seed(1))
    halo = Networks(Encoder(level), Decoder(level)).halo
    whole = autoencoded_in_tiles(level, picture, 1000)
    scale = whole.std((1, 2)).min()
    assert (autoencoded_in_tiles(level, picture, halo) - whole).abs().max() <= 1e-3 * scale
    assert (autoencoded_in_tiles(level, picture, 0) - whole).abs().max() > 0.1 * scale


def test_padding_mirrors_any_length() -> None:
    assert padded(torch.tensor([[[1, 2], [3, 4]]]), 4, 4)[0].tolist() == [[1, 2, 1, 2], [3, 4, 3, 4]] * 2
    assert padded(torch.tensor([[[7.0]]]), 8, 8).eq(7).all()
    assert padded(torch.zeros(3, 16, 24), 8, 8).shape == (3, 16, 24)


def test_strips_are_the_picture() -> None:
    picture = torch.rand(3, 7, 5)
    assert torch.equal(torch.cat([strip for _, strip in strips(picture, 12)], 1), picture)
    assert [strip.shape[1] for _, strip in strips(picture, 1)] == [1] * 7
