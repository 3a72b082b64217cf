"""Style trials: what they say, that they say it all, and what they refuse."""

from dataclasses import fields, replace

import pytest

from spectralgrad.errors import OptionError
from spectralgrad_lab.models.wct import VARIANTS
from spectralgrad_lab.records.results import SCALES
from spectralgrad_lab.style_network.trial import DOMAINS, StyleTrial, Weights, style_trial

OTHER = {
    "variant": "gd", "domains": ("monet",), "data": "embedded", "size": 512, "crop": 64, "width": 32, "group_size": 16,
    "eps": 0.1, "iterations": 3, "hops": 4, "blocks": 1, "scales": 1, "features": "network", "steps": 7, "batch": 2,
    "lr": 1e-3, "decay": 0.0, "adversarial": 2.0, "cycle": 2.0, "identity": 2.0, "style": 2.0, "content": 2.0,
    "whitening": 2.0, "orthogonality": 2.0, "ema": 0.5, "precision": "bf16-mixed", "every": 25, "save": 50, "seed": 1,
    "deflation": "printed",
}  # fmt: skip


def test_each_field_changes_the_key_and_survives_json() -> None:
    plain = StyleTrial(variant="pi")  # which has every field
    assert set(OTHER) == {field.name for field in fields(StyleTrial)}
    changed = [replace(plain, **{name: value}) for name, value in OTHER.items()]
    assert len({trial.key for trial in (plain, *changed)}) == len(OTHER) + 1
    for trial in changed:
        assert StyleTrial.from_json(trial.as_json()) == trial


def test_a_record_of_another_version_is_refused() -> None:
    with pytest.raises(OptionError, match=r"\['colour'\]"):
        StyleTrial.from_json(StyleTrial().as_json().replace('"crop": 128', '"crop": 128, "colour": 1'))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_has_every_scale(variant: str, scale: str) -> None:
    trial = style_trial(variant, scale)  # type: ignore[arg-type]
    assert (trial.variant, trial.domains, trial.eps, trial.hops) == (variant, DOMAINS, 0.01, 5)
    assert trial.data == ("embedded" if scale == "smoke" else "artworks")
    if scale != "smoke":
        assert (4 * trial.width, trial.group_size) == (256, 32)  # PAMI 5.3.3


def test_changes_and_the_factors_of_the_losses() -> None:
    trial = style_trial("gd", "short", ("monet",), steps=10, style=7.0)
    assert (trial.steps, trial.domains, trial.precision) == (10, ("monet",), "bf16-mixed")
    assert trial.weights.style == 7.0
    assert trial.weights._fields == Weights._fields


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"variant": "svd"}, "variant must be one of gd"),
        ({"domains": ()}, "at least one kind of art"),
        ({"domains": ("photo",)}, "not photo"),
        ({"domains": ("monet", "monet")}, "named once"),
        ({"domains": ("a/b",)}, "names of folders"),
        ({"deflation": "printed"}, "deflation is that of pi"),
        ({"variant": "pi", "deflation": "left"}, "deflation must be one of two-sided, printed"),
        ({"data": "digits"}, "data must be"),
        ({"features": "resnet"}, "features must be"),
        ({"precision": "16-mixed"}, "precision must be"),
        ({"steps": 0}, "steps must be a whole number"),
        ({"batch": 1.5}, "batch must be a whole number"),
        ({"style": -1.0}, "style must be a finite number"),
        ({"lr": float("nan")}, "lr must be a finite number"),
        ({"ema": 1.5}, "ema must be a number in"),
        ({"decay": -0.1}, "decay must be a number in"),
        ({"crop": 100}, "crop must be a multiple of 8"),
        ({"crop": 512}, "up to size 256"),
        ({"save": 75}, "multiple of every"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"seed": "x"}, "seed must be a whole number"),
        ({"seed": 2**64}, "seed must be a whole number"),
    ],
)
def test_what_no_training_can_use_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        replace(StyleTrial(), **change)


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(OptionError, match="smoke, short, paper"):
        style_trial("exact", "huge")  # type: ignore[arg-type]
