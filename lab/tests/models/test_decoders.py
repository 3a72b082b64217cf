"""The decoders: the mirror image of the encoder, what a pixel depends on, and no frame."""

import pytest
import torch

from spectralgrad.errors import OptionError, ShapeError
from spectralgrad_lab.models.decoders import Decoder
from spectralgrad_lab.models.vgg import CHANNELS, LEVELS, STRIDE, Encoder


@pytest.mark.parametrize("level", LEVELS)
def test_pictures_come_back_in_their_size(level: str) -> None:
    x = torch.rand(2, 3, 32, 40)
    decoder = Decoder(level)
    y = decoder(Encoder(level)(x)[level])
    assert y.shape == x.shape
    y.mean().backward()
    assert all(parameter.grad is not None for parameter in decoder.parameters())
    middle = Decoder(level)(torch.zeros(1, CHANNELS[level], 2, 2)).detach()
    torch.testing.assert_close(middle, torch.full_like(middle, 0.5))  # before training


@pytest.mark.parametrize("level", LEVELS)
def test_it_mirrors_the_encoder(level: str) -> None:
    """The same convolutions with inputs and outputs exchanged; relu1_1 has one more."""
    there = [tuple(p.shape) for name, p in Encoder(level).named_parameters() if name.endswith("weight")]
    back = [tuple(p.shape) for name, p in Decoder(level).named_parameters() if name.endswith("weight")]
    expected = [(inner, outer, 3, 3) for outer, inner, _, _ in reversed(there)]
    assert back == ([(64, 64, 3, 3), *expected] if level == "relu1_1" else expected)


@pytest.mark.parametrize("level", LEVELS)
def test_the_halo_is_how_far_a_feature_reaches(level: str) -> None:
    """Exactly: one feature changes the pixels of its cell and of the halo around it, and no other."""
    torch.manual_seed(0)
    decoder, cells = Decoder(level).double(), 96 // STRIDE[level]
    for parameter in decoder.parameters():
        parameter.data.abs_()  # nothing is hidden by a ReLU
    x = torch.ones(1, CHANNELS[level], cells, cells, dtype=torch.float64)
    changed = x.clone()
    middle = cells // 2
    changed[:, :, middle, middle] += 1
    with torch.no_grad():
        reached = (decoder(changed) - decoder(x)).abs().sum((0, 1, 2)).gt(1e-9).nonzero().flatten()
    stride = STRIDE[level]
    assert int(reached.min()) == middle * stride - decoder.halo
    assert int(reached.max()) == (middle + 1) * stride - 1 + decoder.halo


@pytest.mark.parametrize("level", LEVELS)
def test_constant_features_make_a_constant_picture(level: str) -> None:
    torch.manual_seed(0)
    y = Decoder(level).double()(torch.rand(1, CHANNELS[level], 1, 1).double().expand(1, CHANNELS[level], 6, 5))
    torch.testing.assert_close(y, y[:, :, :1, :1].expand_as(y))


@pytest.mark.parametrize("level", LEVELS[1:])
def test_a_slope_makes_no_steps(level: str) -> None:
    """Features that rise evenly make a picture that does, away from its border; steps between cells are seen as a weave."""
    torch.manual_seed(0)
    decoder, cells = Decoder(level).double(), 160 // STRIDE[level]
    for parameter in decoder.parameters():
        parameter.data.abs_()  # nothing is hidden by a ReLU
    slope = torch.arange(cells, dtype=torch.float64).expand(1, CHANNELS[level], 4, cells)
    with torch.no_grad():
        rise = decoder(slope)[..., 64:-64].diff()
    torch.testing.assert_close(rise, rise[..., :1].expand_as(rise), rtol=1e-9, atol=0)


def test_one_cell_is_enough() -> None:
    assert Decoder("relu4_1")(torch.rand(1, 512, 1, 1)).shape == (1, 3, 8, 8)


def test_what_is_no_feature_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"`Decoder`: x must be features \(N, 256, h, w\) of relu3_1, got \(1, 128, 4, 4\)"):
        Decoder("relu3_1")(torch.rand(1, 128, 4, 4))
    with pytest.raises(OptionError, match="level must be one of"):
        Decoder("conv3_1")
