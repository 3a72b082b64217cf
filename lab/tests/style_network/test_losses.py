"""The losses of the style-transfer network."""

import pytest
import torch
from torch import Tensor

from spectralgrad_lab.models.vgg import Encoder
from spectralgrad_lab.style_network.losses import (
    Looks,
    content_loss,
    fooling_loss,
    judged_loss,
    style_loss,
    through_networks,
    through_vgg,
)
from spectralgrad_lab.style_network.run import new_pair
from spectralgrad_lab.style_network.trial import style_trial
from support.cases import generator


def features(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


def looks(x: Tensor) -> Looks:
    return Looks((x,), x)


def test_style_is_moments_and_nothing_else() -> None:
    x, y = features(2, 4, 6, 6), features(2, 4, 6, 6, seed=1)
    assert float(style_loss(looks(x), looks(x))) == 0
    order = torch.randperm(36, generator=generator())
    moved = x.flatten(2)[..., order].unflatten(2, (6, 6))
    assert float(style_loss(looks(moved), looks(x))) < 1e-10  # where things are does not count
    assert float(style_loss(looks(x + 1), looks(x))) > 0.1  # the mean
    assert float(style_loss(looks(2 * x), looks(x))) > 0.1  # the covariance
    assert float(style_loss(looks(x), looks(y))) == pytest.approx(float(style_loss(looks(y), looks(x))), rel=1e-5)


def test_style_is_bounded_and_flat_pictures_do_no_harm() -> None:
    flat, wild = torch.zeros(1, 4, 6, 6, requires_grad=True), 1e4 * features(1, 4, 6, 6)
    assert float(style_loss(looks(flat), looks(torch.zeros(1, 4, 6, 6))).detach()) == 0
    loss = style_loss(looks(wild), looks(-wild))
    assert float(loss) <= 4
    style_loss(looks(flat), looks(wild)).backward()
    assert flat.grad is not None
    assert flat.grad.isfinite().all()


def test_exemplars_get_no_gradient() -> None:
    x, y = (features(1, 4, 6, 6, seed=seed).requires_grad_() for seed in (0, 1))
    (style_loss(looks(x), looks(y)) + content_loss(looks(x), looks(y))).backward()
    assert x.grad is not None
    assert y.grad is None


def test_content_is_what_is_where_and_not_its_colour() -> None:
    x = features(2, 4, 6, 6)
    assert float(content_loss(looks(3 * x + 2), looks(x))) < 1e-5
    assert float(content_loss(looks(x.flip(-1)), looks(x))) > 0.5


def test_verdicts_by_hand() -> None:
    """Two domains; the first picture is painted, the second real, both of domain 1."""
    verdicts = torch.tensor([[9.0, 0.5], [0.25, 0.75]])[..., None, None]
    painted, domain = torch.tensor([True, False]), torch.tensor([1, 1])
    # painted: 0.5^2, and the other map does not count; real: (0.75 - 1)^2 + 0.25^2
    assert float(judged_loss([verdicts], painted, domain)) == pytest.approx((0.25 + 0.0625 + 0.0625) / 2)
    assert float(judged_loss([verdicts, verdicts], painted, domain)) == pytest.approx((0.25 + 0.0625 + 0.0625) / 2)
    assert float(fooling_loss([verdicts], domain)) == pytest.approx((0.25 + 0.0625) / 2)
    assert float(fooling_loss([verdicts], 1 - domain)) == pytest.approx((64 + 0.5625) / 2)


def test_one_domain_is_the_plain_least_squares_loss() -> None:
    verdicts, painted = features(4, 1, 3, 3), torch.tensor([True, True, False, False])
    wanted = (verdicts[:2].square().mean() + (verdicts[2:] - 1).square().mean()) / 2
    assert float(judged_loss([verdicts], painted, torch.zeros(4, dtype=torch.long))) == pytest.approx(
        float(wanted), rel=1e-6
    )


def test_what_is_looked_at() -> None:
    x = torch.rand(1, 3, 16, 16, generator=generator())
    torch.manual_seed(0)
    seen = through_vgg(Encoder())(x)
    assert [f.shape[1] for f in seen.style] == [64, 128, 256, 512]
    assert seen.content is seen.style[-1]
    pair = new_pair(style_trial("exact"))
    art, photo = (through_networks(pair, is_art)(x) for is_art in (True, False))
    assert art.style[0].shape == photo.style[0].shape == (1, 32, 4, 4)
    assert not torch.equal(art.style[0], photo.style[0])
    assert torch.equal(art.content, pair.to_photo.encode(x))  # type: ignore[union-attr]
