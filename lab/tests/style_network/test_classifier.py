"""The classifier of domains: it learns what can be learned, and its accuracy is that on pictures it has not seen."""

import pytest
import torch
from torch import Tensor

from spectralgrad.errors import OptionError
from spectralgrad_lab.data.artworks import Artworks, embedded_artworks
from spectralgrad_lab.style_network.classifier import Classifier, Score, train_classifier

NAMES = ("photo", "vangogh", "monet", "ukiyoe")


def encoder(x: Tensor) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    first = torch.nn.functional.conv2d(x - 0.5, torch.randn(16, 3, 3, 3, generator=generator)).relu()
    return {
        "relu1_1": first,
        "relu2_1": torch.nn.functional.conv2d(first, torch.randn(32, 16, 3, 3, generator=generator), stride=2).relu(),
    }


@pytest.fixture(scope="module")
def pictures() -> Artworks:
    return embedded_artworks(size=32, count=24)


@pytest.fixture(scope="module", params=[encoder, None], ids=["encoder", "pixels"])
def judge(request: pytest.FixtureRequest, pictures: Artworks) -> Classifier:
    return train_classifier(pictures, request.param, steps=150)


def test_it_tells_the_domains_apart(judge: Classifier, pictures: Artworks) -> None:
    assert judge.domains == NAMES
    assert judge.mean_accuracy >= 80
    assert judge.mean_accuracy == sum(judge.accuracy.values()) / 4
    for i, name in enumerate(NAMES):
        right = int((judge.predict(pictures.test[name]) == i).sum())
        assert judge.score(pictures.test[name], name) == Score(right, len(pictures.test[name]))
        assert judge.accuracy[name] == 100 * right / len(pictures.test[name])


def test_floats_and_bytes_are_the_same_pictures(judge: Classifier, pictures: Artworks) -> None:
    some = pictures.test["monet"]
    assert torch.equal(judge.predict(some), judge.predict(some.float() / 255))


def test_labels_that_mean_nothing_cannot_be_learned() -> None:
    """The control: held-out accuracy on noise is chance, whatever is remembered of the training."""
    generator = torch.Generator().manual_seed(0)

    def noise(count: int) -> dict[str, Tensor]:
        return {n: torch.randint(0, 256, (count, 3, 16, 16), generator=generator, dtype=torch.uint8) for n in NAMES}

    judge = train_classifier(Artworks(noise(20), noise(30)), encoder, steps=100, views=1)
    assert 10 < judge.mean_accuracy < 45


def test_equal_seeds_give_equal_classifiers(pictures: Artworks) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, other = (train_classifier(pictures, encoder, steps=5) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)  # and the caller's generator is left alone
    states = [torch.cat([x.flatten() for x in judge.head.state_dict().values()]) for judge in (one, other)]
    assert torch.equal(*states)
    third = train_classifier(pictures, encoder, steps=5, seed=1)
    assert not torch.equal(states[0], torch.cat([x.flatten() for x in third.head.state_dict().values()]))


def test_every_option_changes_the_result(pictures: Artworks) -> None:
    def weights(**options: int) -> Tensor:
        judge = train_classifier(pictures, encoder, **{"steps": 5, "views": 2, **options})  # type: ignore[arg-type]
        return torch.cat([x.flatten() for x in judge.head.state_dict().values()])

    base = weights()
    assert all(not torch.equal(base, weights(**option)) for option in ({"steps": 6}, {"views": 1}))


def test_a_rare_domain_counts_as_much_as_a_common_one(pictures: Artworks) -> None:
    few = {name: some[: 20 if name == "photo" else 5] for name, some in pictures.train.items()}
    judge = train_classifier(Artworks(few, pictures.test), encoder, steps=150)
    assert min(judge.accuracy[name] for name in NAMES[1:]) > 25


def test_bad_input(pictures: Artworks) -> None:
    one = {"photo": pictures.train["photo"]}
    with pytest.raises(OptionError, match="needs two domains, a step and a view at least, got 1 domains"):
        train_classifier(Artworks(one, one))
    with pytest.raises(OptionError, match="0 steps"):
        train_classifier(pictures, steps=0)
    empty = {**pictures.test, "monet": pictures.test["monet"][:0]}
    with pytest.raises(OptionError, match=r"monet must have pictures for training and test, got \d+ and 0"):
        train_classifier(Artworks(pictures.train, empty))
    judge = train_classifier(pictures, encoder, steps=1, views=1)
    with pytest.raises(OptionError, match="knows photo, vangogh, monet, ukiyoe, got 'cezanne'"):
        judge.score(pictures.test["monet"], "cezanne")
