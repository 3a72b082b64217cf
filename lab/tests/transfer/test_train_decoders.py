"""Training decoders: it learns, its options matter, it can be repeated, and it writes what it measured."""

import json
from pathlib import Path

import pytest
import torch

from spectralgrad.errors import OptionError
from spectralgrad_lab.cli import main
from spectralgrad_lab.data.artworks import embedded_artworks
from spectralgrad_lab.models.decoders import Decoder
from spectralgrad_lab.models.vgg import Encoder
from spectralgrad_lab.transfer import train_decoders
from spectralgrad_lab.transfer.pretrained import load_decoder, load_encoder
from spectralgrad_lab.transfer.train_decoders import (
    Recipe,
    augmented,
    color_changes,
    losses,
    psnr,
    reconstruction,
    train_decoder,
)
from spectralgrad_lab.transfer.write_decoder import EMBEDDED, write_decoder
from support import cases


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load_encoder(level="relu2_1")


@pytest.fixture(scope="module")
def photographs() -> tuple[torch.Tensor, torch.Tensor]:
    data = embedded_artworks(48, 12)
    return data.train["photo"], data.test["photo"]


def test_it_learns(photographs: tuple[torch.Tensor, torch.Tensor]) -> None:
    lines: list[dict[str, float]] = []
    encoder = load_encoder(level="relu1_1")
    recipe = Recipe(level="relu1_1", steps=60, batch=4, crop=32, rate=3e-3)
    decoder, steps = train_decoder(recipe, encoder, *photographs, lambda line, _: lines.append(line), every=0)
    assert steps == 60
    assert [line["step"] for line in lines] == list(range(1, 61))
    assert lines[-1]["psnr"] > 22
    assert lines[-1]["psnr"] > lines[0]["psnr"] + 8
    assert float(reconstruction(encoder, decoder, photographs[1]).mean()) == pytest.approx(lines[-1]["psnr"], abs=1e-3)
    assert not any(parameter.requires_grad for parameter in decoder.parameters())


def trained(encoder: Encoder, photographs: tuple[torch.Tensor, torch.Tensor], **changes: float) -> torch.Tensor:
    recipe = Recipe(**{"level": "relu2_1", "steps": 3, "batch": 2, "crop": 32, **changes})  # type: ignore[arg-type]
    decoder, _ = train_decoder(recipe, encoder, *photographs)
    return torch.cat([parameter.flatten() for parameter in decoder.parameters()])


def test_equal_recipes_give_equal_weights_and_every_option_matters(
    encoder: Encoder, photographs: tuple[torch.Tensor, torch.Tensor]
) -> None:
    reference = trained(encoder, photographs)
    assert torch.equal(reference, trained(encoder, photographs))
    for change in ({"seed": 1}, {"feature": 0.5}, {"calm": 50.0}, {"rate": 5e-3}, {"batch": 3}, {"crop": 40}, {"steps": 4}):
        assert not torch.equal(reference, trained(encoder, photographs, **change)), change


def test_time_ends_a_training(encoder: Encoder, photographs: tuple[torch.Tensor, torch.Tensor]) -> None:
    _, steps = train_decoder(Recipe(level="relu1_1", seconds=0.5, batch=1, crop=32), encoder, *photographs)
    assert steps >= 1
    recipe = Recipe(level="relu1_1", seconds=10)
    assert [recipe.progress(10**6, seconds) for seconds in (0, 5, 20)] == [0, 0.5, 1]


def test_it_runs_in_half_precision(
    encoder: Encoder, photographs: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU does, on the CPU: convolutions in bfloat16, losses and weights in float32."""
    full = trained(encoder, photographs)
    monkeypatch.setattr(train_decoders, "half_precision", lambda *_: torch.autocast("cpu", torch.bfloat16))
    half = trained(encoder, photographs)
    assert half.dtype == torch.float32
    assert 0 < cases.relative_error(half, full) < 1e-2


def test_the_losses_are_zero_only_for_a_perfect_decoder(encoder: Encoder) -> None:
    x = torch.rand(1, 3, 16, 16)

    class Perfect(Decoder):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return x

    assert [float(loss) for loss in losses(Perfect("relu2_1"), encoder, x, encoder(x))] == [0, 0]
    pixel, feature = losses(Decoder("relu2_1"), encoder, x, encoder(x))
    assert float(pixel.detach()) > 0.01
    assert float(feature.detach()) > 0.1


def test_batches_are_pictures_and_never_the_same() -> None:
    photographs = embedded_artworks(48, 12).train["photo"]
    stream = augmented(photographs, Recipe(level="relu1_1", batch=5, crop=32))
    parts = [next(stream) for _ in range(12)]
    for part in parts:
        assert part.shape == (5, 3, 32, 32)
        assert part.is_contiguous(memory_format=torch.channels_last)
        assert 0 <= float(part.min()) < float(part.max()) <= 1
    whole = torch.cat(parts).flatten(1)
    assert len(whole.unique(dim=0)) == len(whole)
    sharp = torch.cat(parts).diff(dim=3).abs().mean((1, 2, 3)).view(12, 5).mean(1)
    assert float(sharp.max() / sharp.min()) > 1.3  # some steps have enlarged pictures


def test_half_of_the_colours_are_changed_and_greys_of_the_others_stay_grey() -> None:
    maps = color_changes(4000, cases.generator())
    identity = torch.cat([torch.eye(3), torch.zeros(3, 1)], 1)
    same = (maps == identity).all(2).all(1)
    assert 0.47 < float(same.float().mean()) < 0.53
    grey = maps[:, :, :3] @ torch.full((3,), 0.5) + maps[:, :, 3]
    torch.testing.assert_close(grey, grey[:, :1].expand(-1, 3))
    assert float(grey.std()) > 0.05  # brightness
    red = maps[~same][:, :, :3] @ torch.tensor([1.0, 0, 0])
    share = red.argmax(1).bincount(minlength=3) / len(red)
    assert float(share.min()) > 0.28  # every channel may become every other


def test_psnr_is_the_definition() -> None:
    x = torch.zeros(2, 3, 4, 4)
    y = torch.stack([torch.full((3, 4, 4), 0.1), torch.full((3, 4, 4), 0.01)])
    torch.testing.assert_close(psnr(y, x), torch.tensor([20.0, 40.0]))


def command(level: str, out: Path, **options: object) -> None:
    """The command on a CPU with drawn pictures."""
    chosen = {"data": "embedded", "crop": 32, "device": "cpu", **options, "level": level, "out": out}
    words = [part for name, value in chosen.items() for part in (f"--{name}", str(value))]
    assert main(["train-decoders", *words]) == 0


def test_the_command_writes_a_decoder_and_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("relu1_1", tmp_path, steps=4, batch=2, every=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decoder-relu1_1.json", "decoder-relu1_1.pt"]
    about = json.loads((tmp_path / "decoder-relu1_1.json").read_text())
    assert about["steps"] == 4
    assert about["recipe"]["crop"] == 32
    assert about["command"].endswith(f" --every 0 --level relu1_1 --out {tmp_path.name}")  # without the folders of a machine
    assert about["psnr_min_db"] <= about["psnr_mean_db"]
    assert about["test_pictures"] == 4
    out = capsys.readouterr().out
    assert out.count("decoder-relu1_1 step ") == 4
    assert f"| relu1_1 | 38659 | {about['psnr_mean_db']:.2f} |" in out


def test_the_command_goes_on_from_a_decoder(tmp_path: Path) -> None:
    """With a rate of almost nothing it stays what it was, and tells where it came from."""
    command("relu2_1", tmp_path / "a", steps=2, batch=2)
    first = tmp_path / "a" / "decoder-relu2_1.pt"
    command("relu2_1", tmp_path / "b", steps=1, batch=2, rate=1e-9, calm=1, start=first)
    a, b = (load_decoder("relu2_1", path=tmp_path / name / "decoder-relu2_1.pt").state_dict() for name in "ab")
    for name, value in a.items():
        torch.testing.assert_close(b[name], value, rtol=2e-3, atol=1e-4)
    about = json.loads((tmp_path / "b" / "decoder-relu2_1.json").read_text())
    assert about["started_from"] == json.loads(first.with_suffix(".json").read_text())
    assert about["started_from"]["started_from"] is None
    assert "as styles" in about["data"]
    assert "as styles" not in about["started_from"]["data"]


def test_a_training_that_is_stopped_leaves_its_last_decoder(tmp_path: Path) -> None:
    def stop(text: str) -> None:
        raise KeyboardInterrupt

    recipe = Recipe(level="relu1_1", steps=9, batch=1, crop=32)
    with pytest.raises(KeyboardInterrupt):
        write_decoder(recipe, tmp_path, command="", data=EMBEDDED, device="cpu", every=0, say=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["decoder-relu1_1.pt"]
    load_decoder("relu1_1", path=tmp_path / "decoder-relu1_1.pt")


@pytest.mark.parametrize(
    "changes",
    [
        {"level": "relu9"},
        {"crop": 30},
        {"crop": 24},
        {"batch": 0},
        {"seconds": 0},
        {"seconds": float("nan")},
        {"rate": float("inf")},
        {"feature": -1},
        {"calm": -1},
        {"steps": 0},
    ],
)
def test_a_recipe_out_of_range_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="`Recipe`: "):
        Recipe(**{"level": "relu1_1", **changes})  # type: ignore[arg-type]
