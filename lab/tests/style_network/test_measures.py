"""Measures of pictures: against numpy and by hand, with pictures for which the answer is known."""

import math
import time

import numpy as np
import pytest
import torch
from torch import Tensor

from spectralgrad.errors import OptionError, ShapeError
from spectralgrad_lab.style_network.measures import content_distance, milliseconds, sharpness, style_distance


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def encoder(x: Tensor) -> dict[str, Tensor]:
    """Two levels of fixed random convolutions, with the names that VGG's have."""
    generator = torch.Generator().manual_seed(1)
    first = torch.nn.functional.conv2d(x, torch.randn(8, 3, 3, 3, generator=generator)).relu()
    second = torch.nn.functional.conv2d(first, torch.randn(16, 8, 3, 3, generator=generator), stride=2).relu()
    return {"relu1_1": first, "relu4_1": second}


# --- sharpness


def test_sharpness_equals_numpys_gradient() -> None:
    images = draw(3, 3, 17, 12)
    for image, score in zip(images, sharpness(images), strict=True):
        r, g, b = 255 * image.double().numpy()
        dy, dx = np.gradient(0.299 * r + 0.587 * g + 0.114 * b)
        assert math.isclose(float(score), float(np.mean(np.sqrt(dx**2 + dy**2))), rel_tol=1e-5)


def test_a_constant_picture_has_none_and_blurring_takes_some() -> None:
    picture = draw(1, 3, 32, 32)
    assert sharpness(torch.full((1, 3, 8, 8), 0.3)).item() == 0
    blurred = torch.nn.functional.avg_pool2d(picture, 3, 1, 1, count_include_pad=False)
    assert sharpness(blurred) < 0.6 * sharpness(picture)


@pytest.mark.parametrize(
    "turn", [lambda x: x.flip(3), lambda x: x.transpose(2, 3), lambda x: 1 - x], ids=["mirrored", "turned", "negative"]
)
def test_mirrors_and_negatives_are_as_sharp(turn: object) -> None:
    picture = draw(2, 3, 16, 16)
    torch.testing.assert_close(sharpness(turn(picture)), sharpness(picture))  # type: ignore[operator]


def test_twice_the_contrast_is_twice_as_sharp() -> None:
    picture = draw(2, 3, 16, 16)
    torch.testing.assert_close(sharpness(picture / 2), sharpness(picture) / 2)
    torch.testing.assert_close(sharpness(picture.half()), sharpness(picture), rtol=1e-2, atol=0)


# --- distances


def test_content_distance_is_0_for_itself_and_sqrt_2_for_a_stranger() -> None:
    content = draw(2, 3, 48, 48)
    assert content_distance(encoder, content, content).tolist() == [0, 0]
    strange = content_distance(encoder, draw(2, 3, 48, 48, seed=7), content)
    assert torch.allclose(strange, torch.full((2,), math.sqrt(2)), atol=0.2)
    near = content_distance(encoder, (content + 0.02 * draw(2, 3, 48, 48, seed=8)).clamp(0, 1), content)
    assert (near < 0.3 * strange).all()


def test_content_distance_does_not_see_a_change_of_contrast() -> None:
    """A linear encoder: every channel is scaled and shifted, and standardised again."""
    content = draw(1, 3, 32, 32)

    def linear(x: Tensor) -> dict[str, Tensor]:
        return {"relu4_1": x}

    assert content_distance(linear, 0.3 * content + 0.2, content).item() < 1e-5
    assert content_distance(linear, content.flip(3), content).item() > 1  # control


def test_style_distance_is_0_where_the_statistics_are_equal() -> None:
    style = draw(1, 3, 24, 24)

    def pixels(x: Tensor) -> dict[str, Tensor]:
        return {"relu1_1": x}

    order = torch.randperm(24 * 24, generator=torch.Generator().manual_seed(3))
    shuffled = style.flatten(2)[..., order].reshape_as(style)  # the same colours at other places
    assert style_distance(pixels, shuffled, style).item() < 1e-5
    assert style_distance(encoder, style, style).item() == 0
    assert style_distance(encoder, shuffled, style).item() > 1e-3  # convolutions see the places


def test_style_distance_by_hand() -> None:
    """One channel: means 1 and 2, variances 1 and 4: (1/2 + 3/4) / 2."""
    x = torch.tensor([0.0, 2.0]).reshape(1, 1, 1, 2)
    y = torch.tensor([0.0, 4.0]).reshape(1, 1, 1, 2)
    found = style_distance(lambda z: {"a": x if z.shape[2] == 1 else y}, draw(1, 3, 1, 1), draw(1, 3, 2, 2))
    assert math.isclose(found.item(), 0.625, rel_tol=1e-6)


def test_one_style_serves_all_pictures() -> None:
    images, style = draw(3, 3, 24, 24), draw(1, 3, 40, 31, seed=5)
    together = style_distance(encoder, images, style)
    alone = torch.cat([style_distance(encoder, image.unsqueeze(0), style) for image in images])
    torch.testing.assert_close(together, alone)


def test_a_constant_picture_gives_finite_distances() -> None:
    flat, other = torch.full((1, 3, 24, 24), 0.5), draw(1, 3, 24, 24)
    for found in (
        content_distance(encoder, flat, other),
        content_distance(encoder, other, flat),
        style_distance(encoder, flat, other),
    ):
        assert torch.isfinite(found).all()


# --- time


def test_the_median_is_that_of_the_calls_that_count() -> None:
    calls: list[str] = []

    def run(name: str) -> None:
        calls.append(name)
        time.sleep(0.05 if calls.count(name) <= 2 else 0.001 if name == "a" else 0.02)  # the first two are the warm-up

    found = milliseconds({"a": lambda: run("a"), "b": lambda: run("b")}, torch.device("cpu"), rounds=3, warm_up=2)
    assert 1 <= found["a"] < 15 < found["b"] < 45
    assert calls[4:] == ["a", "b", "b", "a", "a", "b"]  # the order turns round
    with pytest.raises(OptionError, match="rounds must be at least 1, got 0"):
        milliseconds({}, torch.device("cpu"), rounds=0)


# --- bad input


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 1, 8, 8), (1, 3, 1, 8)])
def test_what_is_no_batch_of_pictures_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"`sharpness`: images must be \(N, 3, H, W\)"):
        sharpness(torch.zeros(shape))


def test_pictures_that_do_not_match_are_refused() -> None:
    with pytest.raises(ShapeError, match="of one shape"):
        content_distance(encoder, draw(1, 3, 24, 24), draw(1, 3, 24, 25))
    with pytest.raises(ShapeError, match="one style, or one for each of 3 images"):
        style_distance(encoder, draw(3, 3, 24, 24), draw(2, 3, 24, 24))
