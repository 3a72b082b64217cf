"""Training the style-transfer network on drawn pictures: it learns, stops, goes on, fails, and says so."""

import json
import math
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

import spectralgrad as sg
from spectralgrad.errors import OptionError
from spectralgrad_lab.cli import main
from spectralgrad_lab.data.artworks import embedded_artworks
from spectralgrad_lab.data.device import torch_device
from spectralgrad_lab.models.vgg import Encoder
from spectralgrad_lab.models.wct import VARIANTS
from spectralgrad_lab.models.wct_blocks import Roots
from spectralgrad_lab.records.lock import BusyError, hold
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.style_network import run as style_run
from spectralgrad_lab.style_network import train as style_train
from spectralgrad_lab.style_network.run import LOSSES, StyleRun, TrainingPictures, new_pair
from spectralgrad_lab.style_network.train import TrainedStyle, load_trained, place_of, trained
from spectralgrad_lab.style_network.trial import StyleTrial, changes_of, style_trial
from spectralgrad_lab.training import checkpoint
from spectralgrad_lab.training.watch import Diverged
from support.marks import slow_but

CPU = torch.device("cpu")


def tiny(variant: str = "exact", **changes: Any) -> StyleTrial:
    """Eight channels in two groups, pictures of 32 pixels."""
    small = dict(size=32, crop=24, width=4, group_size=8, hops=2, steps=12, every=3, save=6)  # noqa: C408
    return style_trial(variant, "smoke", **{**small, **changes})  # type: ignore[arg-type]


def train(trial: StyleTrial, folder: Path, **how: Any) -> TrainedStyle:
    return trained(trial, folder, device="cpu", **how)


@pytest.mark.parametrize("variant", slow_but(["pi"], VARIANTS))
def test_every_variant_learns_without_a_step_that_is_not_finite(variant: str, tmp_path: Path) -> None:
    found = train(tiny(variant, width=8, steps=18, every=6, save=18, lr=2e-3), tmp_path)
    assert (found.outcome.status, found.outcome.step, found.outcome.nonfinite) == ("finished", 18, 0)
    assert [line["step"] for line in found.log] == [6, 12, 18]
    assert all(line["nonfinite"] == line["solver_failures"] == 0 and set(LOSSES) < set(line) for line in found.log)
    first, last = found.log[0], found.log[-1]
    assert last["identity"] < 0.85 * first["identity"]
    assert last["cycle"] < 0.92 * first["cycle"]
    assert (last["whitening"] > 0) == (variant == "gd") == (last["orthogonality"] > 0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[StyleTrial, Path, TrainedStyle]:
    folder = tmp_path_factory.mktemp("finished")
    return tiny(), folder, train(tiny(), folder)


def test_what_a_training_leaves(finished: tuple[StyleTrial, Path, TrainedStyle]) -> None:
    trial, folder, found = finished
    place = place_of(trial, folder)
    names = {"log.jsonl", "weights.pt", "weights-photo.pt", "samples.png", "results.png"}
    assert {path.name for path in place.iterdir()} == names
    state = checkpoint.load(place / "weights.pt", trial.key)
    assert state is not None
    assert {x.dtype for x in state["weights"].values()} == {torch.float16}
    assert StyleTrial.from_json(state["trial"]) == trial
    start = Store(folder).lines(trial)[0]
    assert StyleTrial.from_json(start["trial"]) == trial
    assert start["versions"]["torch"] == metadata.version("torch")
    assert str(folder) not in (place / "log.jsonl").read_text()  # no path of a machine
    assert found.network is not None
    assert not found.network.training


def test_sheets_show_what_the_network_paints(finished: tuple[StyleTrial, Path, TrainedStyle]) -> None:
    from PIL import Image

    trial, folder, found = finished
    with Image.open(place_of(trial, folder) / "results.png") as results:
        size = results.size
        corner = torch.tensor([results.getpixel((x, y)) for y in range(4) for x in range(4)])  # (16, 3)
    assert size == (3 * 36 - 4, 3 * 36 - 4)  # three contents by three domains
    test = embedded_artworks(32).test
    assert found.network is not None
    painted = found.network.stylise(*(test[name][:1].float() / 255 for name in ("photo", "vangogh")), "vangogh")
    expected = (painted[0, :, :4, :4].clamp(0, 1) * 255).flatten(1).mT
    assert (corner - expected).abs().max() < 4  # the file holds the average before it was rounded to half precision
    with Image.open(place_of(trial, folder) / "samples.png") as samples:
        assert samples.size == (3 * 36 - 4, 9 * 36 - 4)
        first = torch.tensor([samples.getpixel((x, 0)) for x in range(32)])
    assert torch.equal(first.mT, test["photo"][0, :, 0].long())


def test_a_finished_training_is_loaded_and_not_repeated(finished: tuple[StyleTrial, Path, TrainedStyle]) -> None:
    trial, folder, found = finished
    before = (place_of(trial, folder) / "log.jsonl").read_bytes()
    again = train(trial, folder)
    assert (place_of(trial, folder) / "log.jsonl").read_bytes() == before
    assert (again.outcome, again.log) == (found.outcome, found.log)
    x = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert again.network is not None
    assert found.network is not None
    for domain in ("monet", "photo"):
        assert torch.equal(again.network.stylise(x, x, domain), found.network.stylise(x, x, domain))


def test_a_missing_way_back_is_only_that(finished: tuple[StyleTrial, Path, TrainedStyle], tmp_path: Path) -> None:
    trial, folder, _ = finished
    place = place_of(trial, tmp_path)
    place.mkdir(parents=True)
    for name in ("log.jsonl", "weights.pt"):
        (place / name).write_bytes((place_of(trial, folder) / name).read_bytes())
    found = load_trained(trial, tmp_path, device="cpu")
    assert found.network is not None
    assert found.network.to_photo is None
    (place / "weights.pt").unlink()
    with pytest.raises(OptionError, match="missing"):
        load_trained(trial, tmp_path, device="cpu")


def test_weights_of_another_version_are_one_clear_error(
    finished: tuple[StyleTrial, Path, TrainedStyle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished and stopped: the same trial, whose network has since got one layer more."""
    trial, folder, _ = finished
    stopped = tiny(steps=12, seed=9)
    train(stopped, tmp_path, seconds=0)

    def later(trial: StyleTrial) -> Any:
        pair = new_pair(trial)
        pair.to_art.content.append(torch.nn.Conv2d(1, 1, 1))
        return pair

    monkeypatch.setattr(style_run, "new_pair", later)
    monkeypatch.setattr(style_train, "new_pair", later)
    with pytest.raises(OptionError, match=r"weights.pt holds another network .* train again"):
        load_trained(trial, folder, device="cpu")
    with pytest.raises(OptionError, match=r"checkpoint.ckpt holds another network .* train again"):
        train(stopped, tmp_path)


@pytest.mark.parametrize("variant", slow_but(["gd"], ["exact", "gd"]))
def test_killed_and_resumed_equals_unbroken_bit_for_bit(variant: str, tmp_path: Path) -> None:
    trial = tiny(variant)
    whole = train(trial, tmp_path / "whole")

    class Killed(BaseException):
        pass

    def kill(line: dict[str, Any]) -> None:
        if line["kind"] == "log" and line["step"] == 9:  # three steps after the checkpoint
            raise Killed

    with pytest.raises(Killed):
        train(trial, tmp_path / "broken", progress=kill)
    log = place_of(trial, tmp_path / "broken") / "log.jsonl"
    log.write_bytes(log.read_bytes() + b'{"kind": "log", "step": 1')  # a line that the kill cut short
    resumed = train(trial, tmp_path / "broken")
    starts = [line["step"] for line in Store(tmp_path / "broken").lines(trial) if line["kind"] == "start"]
    assert starts == [0, 6]
    assert not (log.parent / "checkpoint.ckpt").exists()
    for one, two in zip(whole.log, resumed.log, strict=True):
        assert {**one, "seconds": 0} == {**two, "seconds": 0}
    states = [checkpoint.load(place_of(trial, tmp_path / name) / "weights.pt", trial.key) for name in ("whole", "broken")]
    assert states[0] is not None
    assert states[1] is not None
    assert all(torch.equal(x, states[1]["weights"][name]) for name, x in states[0]["weights"].items())


def test_when_time_is_up_there_is_something_and_the_same_call_goes_on(tmp_path: Path) -> None:
    found = train(tiny(), tmp_path, seconds=0.0)
    assert (found.outcome.status, found.outcome.step) == ("stopped", 3)
    assert found.network is not None
    assert (place_of(tiny(), tmp_path) / "results.png").exists()
    found = train(tiny(), tmp_path)
    assert (found.outcome.status, found.outcome.step) == ("finished", 12)
    assert [line["step"] for line in found.log] == [3, 6, 9, 12]


def test_a_training_that_diverges_is_recorded_and_stays_so(tmp_path: Path) -> None:
    trial = tiny(lr=1e30)
    found = train(trial, tmp_path)
    assert found.network is None
    assert found.outcome.status == "failed"
    assert found.outcome.reason
    assert found.outcome.step == 1  # the discriminators' own first step is enough
    assert found.log == ()
    assert train(trial, tmp_path).outcome == found.outcome
    assert not (place_of(trial, tmp_path) / "weights.pt").exists()


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_the_first_step_that_is_not_finite_is_told_with_its_cause(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NaN in step 5: in a loss, or in a gradient alone. Steps 4 to 6 are one look of a GPU; on the CPU every step is."""
    plain = StyleRun._losses

    def poisoned(self: StyleRun, *given: Any) -> Any:
        losses = plain(self, *given)
        if self.step == 4:
            if what == "loss":
                losses["style"] = losses["style"] * float("nan")
            else:
                losses["style"].register_hook(lambda g: g * float("nan"))
        return losses

    monkeypatch.setattr(style_run.StyleRun, "_losses", poisoned)
    found = train(tiny(), tmp_path)
    assert (found.outcome.status, found.outcome.step) == ("failed", 5)
    assert found.outcome.reason == f"a {what} is not finite"
    assert found.outcome.nonfinite == 1
    assert [line["step"] for line in found.log] == [3]


def test_on_a_gpu_the_flag_waits_for_the_end_of_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    run = StyleRun(tiny(), embedded_artworks(32, 8), CPU, None)
    run._note(torch.ones(len(LOSSES)))
    run.require_finite()
    run.step = 4
    run._note(torch.full((len(LOSSES),), float("inf")))
    run.step = 7
    run._note(torch.full((len(LOSSES),), float("nan")))
    assert int(run.bad) == 2
    with pytest.raises(Diverged) as caught:
        run.require_finite()
    assert caught.value.step == 5


def test_an_error_in_a_step_is_a_failure_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: StyleRun, *given: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(style_run.StyleRun, "_losses", broken)
    found = train(tiny(), tmp_path)
    assert found.outcome[:3] == ("failed", "RuntimeError: out of memory", 1)


def test_a_log_of_an_older_version_is_read_with_its_words_for_nan(
    finished: tuple[StyleTrial, Path, TrainedStyle], tmp_path: Path
) -> None:
    """Older logs say nan where ours say NaN, and stand in a folder without FORMAT, beside whatever there is."""
    trial, folder, _ = finished
    place = place_of(trial, tmp_path)
    shutil.copytree(place_of(trial, folder), place)
    (tmp_path / "notes.txt").touch()
    lines = [json.loads(line) for line in (place / "log.jsonl").read_text().splitlines()]
    lines[1] |= {"style": "nan", "cycle": "-inf"}
    (place / "log.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    found = load_trained(trial, tmp_path, device="cpu")
    assert math.isnan(found.log[0]["style"])
    assert found.log[0]["cycle"] == -math.inf
    assert found.outcome.status == "finished"


# What a step sees.


def test_the_networks_have_the_options_of_their_trial() -> None:
    pair = new_pair(style_trial("pi", "smoke", deflation="printed", iterations=3))
    rules = {module.gradient for module in pair.modules() if isinstance(module, Roots)}
    assert rules == {sg.PowerIteration(3, min_eigenvalue=0.01, deflation="printed")}


def test_a_domain_that_is_not_drawn_needs_pictures(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"drawn of vangogh, monet, ukiyoe, got cezanne\. Take data artworks"):
        trained(style_trial("exact", "smoke", ("cezanne",)), tmp_path, device="cpu")


def test_crops_come_from_the_domain_that_they_claim_and_cover_the_pictures() -> None:
    """TrainingPictures whose pixels tell their domain, number and place."""
    trial = tiny(size=32, crop=24, batch=4)
    place = torch.arange(32, dtype=torch.uint8)
    train = {}
    for domain, (name, count) in enumerate({"photo": 5, "vangogh": 3, "monet": 2, "ukiyoe": 4}.items()):
        number = 10 * domain + torch.arange(count, dtype=torch.uint8)
        parts = (
            number[:, None, None].expand(count, 32, 32),
            place[:, None].expand(count, 32, 32),
            place.expand(count, 32, 32),
        )
        train[name] = torch.stack(parts, 1)
    pictures = TrainingPictures(trial, train, CPU)
    seen, tops, flips = set(), set(), set()
    for draw in pictures.draws(0, 60):
        photo, art, domain = pictures.crops(draw)
        assert photo.shape == art.shape == (4, 3, 24, 24)
        assert photo.is_contiguous(memory_format=torch.channels_last)
        for side, own in ((photo, torch.full((4,), -1)), (art, domain)):
            values = (side * 255).round().long()
            numbers = values[:, 0, 0, 0]
            assert (numbers // 10 == own + 1).all()
            seen |= set(numbers.tolist())
            assert (values[:, 1].diff(dim=1) == 1).all()
            steps = values[:, 2].diff(dim=2)
            assert ((steps == 1).all((1, 2)) | (steps == -1).all((1, 2))).all()
            tops |= set(values[:, 1, 0, 0].tolist())
            flips |= set(steps[:, 0, 0].tolist())
        assert domain.bincount(minlength=3).min() >= 1  # four exemplars of three domains
    assert seen == {*range(5), 10, 11, 12, 20, 21, 30, 31, 32, 33}
    assert tops == set(range(9))
    assert flips == {1, -1}
    assert torch.equal(pictures.draws(3, 5), pictures.draws(0, 60)[3:5])  # a step draws the same wherever one starts
    assert not torch.equal(
        TrainingPictures(tiny(size=32, crop=24, batch=4, seed=1), train, CPU).draws(0, 2), pictures.draws(0, 2)
    )


def test_vgg_and_half_precision_go_through_the_same_step() -> None:
    torch.manual_seed(0)
    run = StyleRun(tiny("taylor", precision="bf16-mixed", features="vgg"), embedded_artworks(32, 8), CPU, Encoder())
    before = [p.clone() for p in run.pair.parameters()]
    losses = run.advance(2)
    assert losses["nonfinite"] == 0
    assert all(p.dtype == torch.float32 and p.grad is not None for p in run.pair.parameters())
    moved = [not torch.equal(p, q) for p, q in zip(run.pair.parameters(), before, strict=True)]
    assert all(moved)


def test_each_factor_reaches_the_weights() -> None:
    """A loss whose factor is zero leaves no trace; with another factor the weights after two steps differ."""
    found = {}
    for name in ("", "adversarial", "cycle", "identity", "style", "content", "whitening", "orthogonality"):
        with checkpoint.own_randomness(0):
            run = StyleRun(tiny("gd", **({name: 0.0} if name else {})), embedded_artworks(32, 8), CPU, None)
        run.advance(2)
        found[name] = torch.cat([p.detach().flatten() for p in run.pair.parameters()])
    for name, weights in found.items():
        assert name == "" or not torch.equal(weights, found[""]), name


def test_the_learning_rate_falls_at_the_end_and_the_average_follows() -> None:
    run = StyleRun(tiny(decay=0.5), embedded_artworks(32, 8), CPU, None)
    rates = []
    for run.step in (0, 6, 9, 12):
        rates.append(run._rate())
    assert rates == [1.0, 1.0, 0.5, 0.0]
    run.step = 0
    run.advance(1)
    new, average = (next(iter(x.parameters())).detach() for x in (run.pair, run.average))
    assert not torch.equal(new, average)


# Commands and doors.


def test_the_command_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train-style", "--variant", "taylor", "--domains", "monet", "--records", str(tmp_path), "--device", "cpu"]
    for name, value in {"size": 32, "crop": 24, "width": 4, "hops": 1, "steps": 2, "every": 1, "save": 1}.items():
        command += ["--set", f"{name}={json.dumps(value)}"]
    assert main([*command, "--seconds", "0"]) == 3
    assert "taylor: stopped" in capsys.readouterr().out
    for _ in range(2):
        assert main(command) == 0
        assert "taylor: finished" in capsys.readouterr().out
    assert len(list((tmp_path / "style").iterdir())) == 1  # the second found it done
    assert main([*command, "--set", "steps=3"]) == 0
    assert "not finite: 0" in capsys.readouterr().out
    assert main([*command, "--set", "colour=1"]) == 2
    assert "--set takes name=value, got 'colour=1'" in capsys.readouterr().err
    assert main([*command, "--set", "lr=1e30", "--set", "steps=4"]) == 1
    for wrong in ("nan", "-1"):
        assert main([*command, "--seconds", wrong]) == 2
        assert "`train-style`: --seconds must be a number >= 0" in capsys.readouterr().err
    assert main(["train-style", "--variant", "svd", "--records", str(tmp_path)]) == 2
    assert "variant must be one of" in capsys.readouterr().err


def test_options_of_the_command() -> None:
    changes = changes_of("train-style", ["style=2.5", "precision=32-true"])
    assert style_trial("gd", "short", ("monet", "ukiyoe"), **changes) == style_trial(
        "gd", "short", ("monet", "ukiyoe"), style=2.5, precision="32-true"
    )
    for wrong in ("colour=1", "steps", "variant=gd"):
        with pytest.raises(OptionError, match="--set takes"):
            changes_of("train-style", [wrong])


def test_doors(tmp_path: Path) -> None:
    for wrong in ("tpu", "cpu:1", "cuda:x"):
        with pytest.raises(OptionError, match="device must be"):
            torch_device("trained", wrong)
    with pytest.raises(OptionError, match="no training that has ended"):
        load_trained(tiny(), tmp_path)
    place = place_of(tiny(), tmp_path)
    place.mkdir(parents=True)
    with hold(place / "lock", "`other`"), pytest.raises(BusyError):
        train(tiny(), tmp_path)
