"""The result has the style's statistics, in tiles as in one piece; no picture breaks it."""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from spectralgrad.errors import DtypeError, NonFiniteError, OptionError, ShapeError
from spectralgrad.nn.functional import color_transfer
from spectralgrad_lab.data.artworks import embedded_artworks, load_artworks
from spectralgrad_lab.data.dataset import DataError
from spectralgrad_lab.models.decoders import Decoder
from spectralgrad_lab.models.vgg import LEVELS, Encoder
from spectralgrad_lab.transfer import Picture, Stylist, TransferOptions, transfer
from spectralgrad_lab.transfer.clock import Clock
from spectralgrad_lab.transfer.deep import DeepTransfer, Networks
from spectralgrad_lab.transfer.matching import Coloring, gathered, matching, relative_eps
from spectralgrad_lab.transfer.pretrained import WeightsError, load_decoder, load_encoder

PIXELS = 1e-3  # what the statistics of colours may be off by
FEATURES = 1e-2  # and those of features, relative
TILED = 1e-4


@cache
def embedded(domain: str, size: int = 64) -> Tensor:
    return embedded_artworks(size, 2).train[domain][0] / 255


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(3, *shape, generator=torch.Generator().manual_seed(seed))


@cache
def random_networks(depth: int = 4) -> dict[str, Networks]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return {level: Networks(_lively(Encoder(level)), _lively(Decoder(level))) for level in LEVELS[:depth]}


def _lively(network: Any) -> Any:
    """Random weights that keep the size of what goes through them, where torch's own would let it fade."""
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.kaiming_normal_(parameter)
    return network.eval()


def vgg_networks() -> dict[str, Networks]:
    """VGG-19 with its weights, and decoders: ours where they are there."""
    try:
        encoders = {level: load_encoder(level=level) for level in LEVELS}
    except WeightsError as error:
        pytest.skip(str(error))
    try:
        return {level: Networks(encoder, load_decoder(level)) for level, encoder in encoders.items()}
    except WeightsError:
        return {level: Networks(encoders[level], networks.decoder) for level, networks in random_networks().items()}


def deep(style: Tensor | Picture, **options: Any) -> Stylist:
    return Stylist(style, TransferOptions(device="cpu", **options), networks=random_networks(options.get("depth", 4)))


def mean_and_covariance(x: Tensor) -> tuple[Tensor, Tensor]:
    samples = x.double().flatten(1)
    return samples.mean(1), torch.cov(samples, correction=0)


def real(domain: str) -> Tensor:
    try:
        return load_artworks(domains=(domain,)).test[domain][0] / 255
    except DataError as error:
        pytest.skip(str(error))


PAIRS = {
    "embedded": lambda: (embedded("photo"), embedded("vangogh")),
    "real": lambda: (real("photo"), real("ukiyoe")),
    "16 bits": lambda: (noise(40, 31), noise(9, 50, seed=1) ** 3),
}


# Colours.


@pytest.mark.parametrize("pair", PAIRS)
def test_colours_have_the_style_s_mean_and_covariance(pair: str) -> None:
    content, style = PAIRS[pair]()
    result = transfer(content, style, level="pixels", clip=False)
    (mean, covariance), (m, C) = mean_and_covariance(result), mean_and_covariance(style)
    assert (mean - m).abs().max() <= PIXELS
    assert (covariance - C).norm() <= PIXELS * C.norm()
    before = mean_and_covariance(content)
    assert (before[0] - m).abs().max() > 10 * PIXELS  # there was something to do
    assert (before[1] - C).norm() > 10 * PIXELS * C.norm()
    assert torch.allclose(result, color_transfer(content, style, clip=False), atol=1e-4)


def test_strips_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    content, style = embedded("photo"), embedded("monet")
    whole = transfer(content, style, level="pixels")
    monkeypatch.setattr(import_module("spectralgrad_lab.transfer.pixels"), "STRIP", 200)
    assert torch.allclose(transfer(content, style, level="pixels"), whole, atol=1e-6)


def test_what_is_transparent_does_not_count() -> None:
    content, style = embedded("photo"), embedded("ukiyoe")
    alpha = torch.ones(64, 64)
    alpha[:20] = 0
    hidden = [torch.cat([noise(20, 64, seed=seed), x[:, 20:]], 1) for seed, x in enumerate((content, style))]
    results = [
        transfer(Picture(c, alpha), Picture(s, alpha), level="pixels") for c, s in ((content, style), (hidden[0], hidden[1]))
    ]
    assert torch.equal(results[0][:, 20:], results[1][:, 20:])
    visible = transfer(content[:, 20:], style[:, 20:], level="pixels")
    assert torch.allclose(results[0][:, 20:], visible, atol=1e-5)
    assert (transfer(content, style, level="pixels")[:, 20:] - visible).abs().max() > 0.01  # else it shows nothing


def test_grey_pictures() -> None:
    photo, painting = embedded("photo"), embedded("vangogh")
    grey = photo.mean(0, keepdim=True).expand(3, -1, -1)
    ramp = transfer(grey, painting, level="pixels", clip=False)
    assert torch.linalg.matrix_rank(torch.cov(ramp.double().flatten(1)), rtol=1e-3) == 1  # one ramp of colours
    made_grey = transfer(painting, grey, level="pixels")
    assert (made_grey - made_grey.mean(0)).abs().max() < 0.01


# Features.


def test_the_nearest_map_is_nearest() -> None:
    """Among maps with the style's covariance it changes the content least; both maps have it."""
    x, y = (torch.randn(8, 500, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    mix = torch.randn(8, 8, generator=torch.Generator().manual_seed(2))
    content, style = gathered(mix.T @ x), gathered(mix @ y)
    moved = {how: matching(content, style, 1e-9, coloring=how)(mix.T @ x) for how in get_args(Coloring)}
    for result in moved.values():
        covariance = mean_and_covariance(result)[1]
        assert (covariance - style.covariance()[0]).norm() < 1e-5 * covariance.norm()
    distance = {how: float((result - mix.T @ x).square().sum()) for how, result in moved.items()}
    assert distance["nearest"] < 0.95 * distance["zca"]


def watched(
    content: Tensor, style: Tensor, networks: dict[str, Networks], **options: Any
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """By level, the features (C, n) of the result as the decoder gets them, and those of the style."""
    seen: dict[str, list[Tensor]] = {}
    made = TransferOptions(device="cpu", **{"strength": 1.0, **options})
    moved = DeepTransfer(
        style, None, options=made, networks=networks, clock=Clock(),
        watch=lambda level, x: seen.setdefault(level, []).append(x.flatten(1)),
    )  # fmt: skip
    moved(content, None)
    with torch.no_grad():
        wanted = {level: networks[level].encoder(style[None])[level][0].flatten(1) for level in networks}
    return {level: torch.cat(parts, 1) for level, parts in seen.items()}, wanted


SLOW = [pytest.param(8, 160, "nearest", marks=pytest.mark.slow), pytest.param(8, 1024, "zca", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("groups", "tile", "coloring"), [(1, 1024, "nearest"), *SLOW])
def test_features_have_the_style_s_mean_and_covariance(groups: int, tile: int, coloring: str) -> None:
    """In every group of channels at every level. 320 x 320 gives VGG's features full rank: 1600 positions at relu4_1."""
    options = {"groups": groups, "tile": tile, "coloring": coloring}
    got, wanted = watched(embedded("photo", size=320), embedded("vangogh"), vgg_networks(), **options)
    assert list(got) == list(reversed(LEVELS))
    for level in LEVELS:
        for x, y in zip(got[level].chunk(groups), wanted[level].chunk(groups), strict=True):
            (mean, covariance), (m, C) = mean_and_covariance(x), mean_and_covariance(y)
            assert (mean - m).norm() <= FEATURES * m.norm()
            assert (covariance - C).norm() <= FEATURES * C.norm(), level


def test_the_covariance_test_can_fail() -> None:
    got, wanted = watched(noise(64, 64), embedded("vangogh"), random_networks(1), depth=1, strength=0.9)
    (_, covariance), (_, C) = mean_and_covariance(got["relu1_1"]), mean_and_covariance(wanted["relu1_1"])
    assert (covariance - C).norm() > FEATURES * C.norm()


@pytest.mark.parametrize(("weights", "depth"), [("random", 2), ("vgg", 4)])
def test_tiles_do_not_show(weights: str, depth: int) -> None:
    networks = random_networks(depth) if weights == "random" else vgg_networks()
    content, style = noise(133, 67), embedded("monet")
    whole, tiled = (
        Stylist(style, TransferOptions(device="cpu", depth=depth, tile=tile), networks=networks)(content).colors
        for tile in (1024, 64)
    )
    assert whole.std() > 0.05
    assert (tiled - whole).abs().max() <= TILED


def test_strength_goes_from_the_content_to_the_style() -> None:
    content, style = embedded("photo"), embedded("vangogh")
    results = {s: deep(style, strength=s)(content).colors for s in (0.0, 0.01, 0.5, 1.0)}
    distance = [float((result - content).abs().mean()) for result in results.values()]
    assert distance[0] == 0
    assert distance == sorted(distance)
    assert distance[1] < 0.1 * distance[3]


def test_each_level_has_a_strength_of_its_own() -> None:
    content, style = embedded("photo"), embedded("vangogh")
    assert torch.equal(deep(style, depth=1)(content).colors, deep(style, depth=1, strength=0.6)(content).colors)
    pixels = [Stylist(style, TransferOptions(level="pixels", strength=s))(content).colors for s in (None, 1.0, 0.6)]
    assert torch.equal(pixels[0], pixels[1])
    assert not torch.equal(pixels[0], pixels[2])


CHANGES = [{"depth": 2}, {"groups": 16}, {"strength": 0.5}, {"style_size": 32}, {"level": "pixels"}, {"coloring": "zca"}]


@pytest.mark.parametrize("option", CHANGES)
def test_every_option_changes_the_result(option: dict[str, Any]) -> None:
    content, style = embedded("photo"), embedded("vangogh")
    assert (deep(style, **option)(content).colors - deep(style)(content).colors).abs().max() > 0.01


def test_groups_of_colours_and_size() -> None:
    content, style = embedded("photo"), embedded("vangogh")
    one, three = (transfer(content, style, level="pixels", groups=groups) for groups in (1, 3))
    assert (one - three).abs().max() > 0.01
    assert transfer(content, style, level="pixels", size=16).shape == (3, 16, 16)
    assert deep(style, size=40)(embedded("photo")[:, :32]).colors.shape == (3, 20, 40)


def test_what_is_transparent_does_not_count_at_the_deep_level_either() -> None:
    content, style = embedded("photo"), embedded("vangogh")
    alpha = torch.ones(64, 64)
    alpha[:32] = 0
    hidden = [torch.cat([noise(32, 64, seed=seed), x[:, 32:]], 1) for seed, x in enumerate((content, style))]
    a, b = (
        deep(Picture(s, alpha), depth=2)(Picture(c, alpha)).colors for c, s in ((content, style), (hidden[0], hidden[1]))
    )
    assert torch.equal(a[:, 32:], b[:, 32:])
    assert not torch.allclose(deep(style, depth=2)(content).colors[:, 32:], a[:, 32:], atol=0.01)


def test_progress_ends_at_all() -> None:
    told: list[tuple[int, int]] = []
    deep(embedded("monet"), tile=64, depth=2)(noise(64, 130), lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
    assert {total for _, total in told} == {len(told)}
    assert len(told) == 2 * 2 * 3  # two levels, three tiles, twice


# Odd pictures.

ODD = {
    "one pixel": noise(1, 1),
    "one row": noise(1, 50),
    "constant": torch.full((3, 24, 20), 0.3),
    "black": torch.zeros(3, 16, 16),
    "nearly constant": torch.full((3, 24, 20), 0.3) + 1e-7 * noise(24, 20),
    "two colours": torch.cat([torch.zeros(3, 8, 16), torch.ones(3, 8, 16)], 1),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("level", ["deep", "pixels"])
@pytest.mark.parametrize("name", ODD)
def test_odd_pictures_give_a_picture(name: str, level: str) -> None:
    odd, painting = ODD[name], embedded("vangogh")
    for content, style in ((odd, painting), (painting, odd), (odd, odd)):
        stylist = deep(style, level=level) if level == "deep" else Stylist(style, TransferOptions(level="pixels"))
        result = stylist(content).colors
        assert result.shape == content.shape
        assert result.isfinite().all()
        assert result.abs().max() < 1e3


def test_coarser_features_have_more_rounding_to_leave_alone() -> None:
    found = gathered(torch.full((4, 9), 2.0))
    eps = {dtype: relative_eps(found, 0.1, dtype).item() for dtype in (torch.float32, torch.float16)}
    assert 0 < eps[torch.float32] ** 0.5 < 1e-4 < eps[torch.float16] ** 0.5 < 1e-2


def test_a_constant_content_stays_constant() -> None:
    """What its features differ by is rounding, and that is not blown up to a texture."""
    result = deep(embedded("vangogh"))(torch.full((3, 40, 40), 0.3)).colors
    assert result.std((1, 2)).max() < 1e-2
    mean = embedded("vangogh").mean((1, 2))
    flat = transfer(torch.full((3, 9, 9), 0.3), embedded("vangogh"), level="pixels")
    assert torch.allclose(flat, mean[:, None, None].expand(3, 9, 9), atol=1e-4)


def test_its_own_style_changes_nothing() -> None:
    photo = embedded("photo")
    assert torch.allclose(transfer(photo, photo, level="pixels"), photo, atol=1e-3)


def test_nothing_visible() -> None:
    photo, nothing = embedded("photo"), torch.zeros(64, 64)
    assert torch.equal(transfer(Picture(photo, nothing), embedded("monet"), level="pixels"), photo)
    with pytest.raises(OptionError, match="nothing is visible"):
        transfer(photo, Picture(photo, nothing), level="pixels")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"strength": 1.5}, "strength"),
    ({"strength": float("nan")}, "strength"),
    ({"level": "shallow"}, "level"),
    ({"size": 0}, "size"),
    ({"style_size": 2.5}, "style_size"),
    ({"groups": 7}, "groups"),
    ({"groups": 2, "level": "pixels"}, "groups"),
    ({"coloring": "crayon"}, "coloring"),
    ({"depth": 5}, "depth"),
    ({"tile": 10}, "tile"),
    ({"device": "tpu"}, "device"),
    ({"half": True, "device": "cpu"}, "half"),
]


@pytest.mark.parametrize(("option", "name"), WRONG)
def test_a_wrong_option_is_named(option: dict[str, Any], name: str) -> None:
    with pytest.raises(OptionError, match=name):
        transfer(noise(8, 8), noise(8, 8), **option)


@pytest.mark.parametrize(
    ("picture", "error"),
    [
        (torch.zeros(3, 8, 8, dtype=torch.uint8), DtypeError),
        (torch.zeros(1, 8, 8), ShapeError),
        (torch.zeros(3, 0, 8), ShapeError),
        (torch.full((3, 8, 8), 200.0), OptionError),
        (torch.full((3, 8, 8), float("nan")), NonFiniteError),
    ],
)
def test_what_is_no_picture_is_an_error(picture: Tensor, error: type[Exception]) -> None:
    with pytest.raises(error, match="content"):
        transfer(picture, noise(8, 8), level="pixels")
    with pytest.raises(error, match="style"):
        transfer(noise(8, 8), picture, level="pixels")


def test_weights_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="load_encoder"):
        transfer(noise(8, 8), noise(8, 8), weights=tmp_path / "none.pth")
