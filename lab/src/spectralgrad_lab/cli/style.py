"""The command train-style: the style-transfer network of PAMI fig. 8, one variant at a time."""

from pathlib import Path
from typing import Annotated

import typer

from spectralgrad_lab.records.results import Scale
from spectralgrad_lab.style_network.train import chosen, place_of, told, trained
from spectralgrad_lab.style_network.trial import DOMAINS

ALL = ",".join(DOMAINS)
Variant = Annotated[str, typer.Option(help="gd, clip, pi, taylor or exact")]
Domains = Annotated[str, typer.Option(help="kinds of art, with commas; one is the paper's protocol")]
Size = Annotated[Scale, typer.Option(help="how much of the paper's protocol")]
Data = Annotated[Path | None, typer.Option("--data", help="folder of the artworks (or SPECTRALGRAD_DATA)")]
Encoder = Annotated[Path | None, typer.Option("--encoder", help="file of VGG-19's weights; else the installed one")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N")]
Records = Annotated[Path, typer.Option("--records", help="folder of the records")]
Seconds = Annotated[float | None, typer.Option("--seconds", help="stop after so much time; the same command goes on")]
Change = Annotated[list[str] | None, typer.Option("--set", help="another field of the trial, NAME=VALUE; may be repeated")]


def train_style(
    variant: Variant = "exact",
    domains: Domains = ALL,
    scale: Size = "smoke",
    data: Data = None,
    encoder: Encoder = None,
    device: Device = "auto",
    records: Records = Path("records"),
    seconds: Seconds = None,
    change: Change = None,
) -> None:
    """Train the style-transfer network: log, weights and contact sheets go into the records."""
    trial = chosen(variant, scale, domains, change or [])
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
