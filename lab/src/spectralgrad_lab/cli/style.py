"""`spectralgrad train-style`, `evaluate` and `gallery`: the style-transfer networks of PAMI fig. 8, and their pictures."""

from pathlib import Path
from typing import Annotated

import typer

from spectralgrad_lab.artifacts.drawn import by_transfer
from spectralgrad_lab.artifacts.evaluate import IDS, evaluate
from spectralgrad_lab.data.device import torch_device
from spectralgrad_lab.deadline import OutOfTime
from spectralgrad_lab.records.machine import circumstances
from spectralgrad_lab.records.results import Computed
from spectralgrad_lab.report.gallery_page import write_gallery
from spectralgrad_lab.report.publish import publish
from spectralgrad_lab.style_network.train import place_of, told, trained
from spectralgrad_lab.style_network.trial import DOMAINS, changes_of, style_trial
from spectralgrad_lab.style_network.workplace import Workplace

from .answers import require_options
from .options import FOLDER, Changes, Data, Device, EncoderFile, Records, ScaleOption, Seconds

ALL = ",".join(DOMAINS)
Variant = Annotated[str, typer.Option(help="gd, clip, pi, taylor or exact")]
Domains = Annotated[str, typer.Option(help="kinds of art, with commas; one is the paper's protocol")]


def train_style(
    variant: Variant = "exact",
    domains: Domains = ALL,
    scale: ScaleOption = "smoke",
    data: Data = None,
    encoder: EncoderFile = None,
    device: Device = "auto",
    records: Records = FOLDER,
    seconds: Seconds = None,
    change: Changes = None,
) -> None:
    """Train the style-transfer network: log, weights and contact sheets go into the records."""
    require_options("train-style", device, seconds, data)
    kinds = tuple(filter(None, domains.split(",")))
    trial = style_trial(variant, scale, kinds, **changes_of("train-style", change or []))
    found = trained(
        trial,
        records,
        data=data,
        device=device,
        progress=lambda line: typer.echo(f"{trial.variant:6s} {told(line)}"),
        seconds=seconds,
        encoder=encoder,
    )
    typer.echo(f"{trial.variant}: {found.outcome.status} {found.outcome.reason} in {place_of(trial, records)}")
    if found.outcome.status == "failed":
        raise typer.Exit(1)
    if found.outcome.status == "stopped":
        raise OutOfTime


def evaluate_style(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ARTIFACT", help=f"otherwise {', '.join(IDS)}")] = None,
    scale: ScaleOption = "smoke",
    data: Data = None,
    records: Records = FOLDER,
    device: Device = "auto",
    encoder: EncoderFile = None,
    change: Changes = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="train nothing: also what was stopped counts")] = False,
    again: Annotated[bool, typer.Option("--again", help="also where there is a record")] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="folder of what may be published")] = Path("published"),
) -> None:
    """Run the artifacts of style transfer, and write what may be published: tables, and pictures without the originals.

    OUT gets tables (.md, .json) and a sheet of results (.jpg) for each artifact, and a sheet of drawn pictures.
    """
    changes, gpu = tuple(changes_of("evaluate", change or []).items()), torch_device("evaluate", device).type == "cuda"
    place = Workplace(records, data, device, typer.echo, encoder, changes, as_is)

    def leave(id: str, found: Computed) -> None:
        publish(id, scale, found, out, circumstances(f"spectralgrad evaluate {id} --scale {scale}", gpu))

    if evaluate(ids or IDS, scale, place, leave, again=again):
        raise typer.Exit(1)


def gallery(
    docs: Annotated[Path, typer.Option("--docs", help="folder of the documentation")] = Path("docs"),
    results: Annotated[Path | None, typer.Option("--results", help="folder that evaluate has filled")] = None,
    scale: ScaleOption = "short",
) -> None:
    """Write the gallery of the documentation, from drawn pictures and from results alone."""
    for path in write_gallery(docs, by_transfer(), results, scale):
        typer.echo(str(path))
