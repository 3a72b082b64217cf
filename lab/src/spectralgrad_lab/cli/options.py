"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from spectralgrad_lab.records.results import Scale

FOLDER = Path("records")
Records = Annotated[Path, typer.Option("--records", help="folder of the records")]
Data = Annotated[Path | None, typer.Option("--data", help="folder of the data sets (or SPECTRALGRAD_DATA)")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N")]
ScaleOption = Annotated[Scale, typer.Option("--scale", help="how much of the paper's protocol")]
EncoderFile = Annotated[Path | None, typer.Option("--encoder", help="file of VGG-19's weights; else the installed one")]
Seconds = Annotated[float | None, typer.Option("--seconds", help="stop after this many seconds; the same command goes on")]
Changes = Annotated[list[str] | None, typer.Option("--set", help="a field of the training, NAME=VALUE; may be repeated")]
