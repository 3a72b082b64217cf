"""Texture counts where a photograph is flat and nowhere else, and a decoder that is told so makes less of it."""

import pytest
import torch
from torch import Tensor

from spectralgrad_lab.data.artworks import embedded_artworks
from spectralgrad_lab.models.vgg import Encoder
from spectralgrad_lab.transfer import Stylist, TransferOptions, calm
from spectralgrad_lab.transfer.calm import Styles, flatness, roughness
from spectralgrad_lab.transfer.matching import gathered
from spectralgrad_lab.transfer.pretrained import load_decoder, load_encoder
from spectralgrad_lab.transfer.train_decoders import Recipe, train_decoder
from support import cases


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load_encoder(level="relu2_1")


def half_flat() -> Tensor:
    """Grey on the left, noise on the right."""
    x = torch.full((1, 3, 32, 64), 0.5)
    x[..., 32:] = torch.rand(1, 3, 32, 32, generator=cases.generator())
    return x


def test_texture_counts_where_the_photograph_is_flat() -> None:
    weave = 0.1 * torch.tensor([1.0, -1.0]).repeat(32).expand(1, 3, 32, 64)
    left, right = (torch.arange(64) < 32).float(), (torch.arange(64) >= 40).float()
    x = half_flat()
    assert roughness(x * 0 + 0.3, x) < 1e-12
    assert 0.006 < roughness(weave * left, x) < 0.01  # the weave squared, but for the seam
    assert roughness(weave * right, x) < 1e-6
    assert roughness(weave, torch.rand(1, 3, 32, 64, generator=cases.generator())) < 1e-6  # nothing is flat


def test_a_slow_change_is_flat_and_no_texture() -> None:
    slope = torch.linspace(0, 1, 256).expand(1, 3, 16, 256)
    assert flatness(slope).min() > 0.4
    assert roughness(slope, torch.zeros_like(slope))[None] < 1e-4


def test_features_get_the_statistics_of_a_style(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = embedded_artworks(64, 4).train
    styles = Styles(encoder, "relu2_1", pictures["vangogh"][:1])
    features = encoder(pictures["photo"][:3] / 255)["relu2_1"]
    found = {}
    for strength in (0.0, 1.0):
        monkeypatch.setattr(calm, "STRENGTHS", (strength,))
        moved = styles.transferred(features)
        assert moved.shape == features.shape
        found[strength] = gathered(moved.transpose(0, 1).flatten(1))
    style = styles.moments[0]
    torch.testing.assert_close(found[1.0].mean, style.mean, rtol=1e-4, atol=1e-5)
    assert cases.relative_error(found[1.0].covariance(), style.covariance()) < 0.05
    assert cases.relative_error(found[0.0].covariance(), style.covariance()) > 0.3
    torch.testing.assert_close(moved[0], styles.transferred(features)[0])  # the order of pictures is kept


def test_draws_differ_and_repeat(encoder: Encoder) -> None:
    pictures = embedded_artworks(64, 6).train
    features = encoder(pictures["photo"][:1] / 255)["relu2_1"]
    first, again, other = (Styles(encoder, "relu2_1", pictures["monet"], seed) for seed in (0, 0, 1))
    series = [[styles.transferred(features) for _ in range(4)] for styles in (first, again, other)]
    assert all(torch.equal(x, y) for x, y in zip(series[0], series[1], strict=True))
    assert not all(torch.equal(x, y) for x, y in zip(series[0], series[2], strict=True))
    assert not torch.equal(series[0][0], series[0][1]) or not torch.equal(series[0][0], series[0][2])


@pytest.mark.slow
def test_a_decoder_learns_to_leave_the_sky_alone(encoder: Encoder) -> None:
    """From our weights, a few steps with and without: less texture, the photographs as well as before."""
    data = embedded_artworks(64, 8)
    photographs, styles = data.train["photo"], data.train["vangogh"]
    features = encoder(photographs / 255)["relu2_1"]
    rough, error = {}, {}
    for weight in (0.0, 3.0):
        recipe = Recipe(level="relu2_1", steps=20, batch=4, crop=64, rate=3e-4, calm=weight)
        decoder, _ = train_decoder(
            recipe, encoder, photographs, data.test["photo"], styles=styles, start=load_decoder("relu2_1")
        )
        rough[weight] = float(Styles(encoder, "relu2_1", styles).roughness(decoder, features, photographs / 255))
        error[weight] = float((decoder(features) - photographs / 255).square().mean())
    assert rough[3.0] < 0.75 * rough[0.0]
    assert error[3.0] < 1.2 * error[0.0]


def test_our_decoders_leave_it_alone() -> None:
    """Before they were told to, the texture was 0.019."""
    pictures = embedded_artworks(192, 2).train
    content, style = (pictures[name][0] / 255 for name in ("photo", "monet"))
    result = Stylist(style, TransferOptions(strength=1.0, device="cpu"))(content).colors.clamp(0, 1)
    assert roughness(result[None], content[None]) < 0.014**2
