"""`spectralgrad train`: one trial, every field of it a flag, whose help is the sentence of `Trial`'s doc-string."""

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from spectralgrad.errors import OptionError
from spectralgrad_lab.deadline import Deadline
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.report.origin import cached, starts_of
from spectralgrad_lab.sweep.local import run_trials

from .answers import answered, require_options
from .bars import SPEAKS, ending, label, progress_of
from .options import FOLDER, Device, Records, Seconds

ARGUMENT = re.compile(
    r"^        (\w+(?:, \w+)*): (.+(?:\n            .+)*)", re.MULTILINE
)  # of a doc-string, with its lines


def sentences(text: str) -> dict[str, str]:
    """What a doc-string says of each argument; those that share a sentence have the same.

    >>> sentences("Args:\\n        a, b: two\\n            lines.\\n        c: one.")
    {'a': 'two lines.', 'b': 'two lines.', 'c': 'one.'}
    """
    found = [(names, " ".join(said.split())) for names, said in ARGUMENT.findall(text)]
    return {name: said for names, said in found for name in names.split(", ")}


def _train(folder: Path | None, device: str, records: Path, seconds: float | None, values: dict[str, Any]) -> None:
    """Train one trial; every field of it is a flag."""
    with answered("train"):
        require_options("train", device, seconds, folder)
        values["treatments"] = tuple(filter(None, values["treatments"].split(",")))
        try:
            values["milestones"] = tuple(int(word) for word in filter(None, values["milestones"].split(",")))
        except ValueError:
            raise OptionError(f"`train`: --milestones must be epochs with commas, got {values['milestones']!r}.") from None
        trial, store = Trial(**values), Store(records)
        known = store.outcome(trial) is not None
        with progress_of(1, "train", (trial,)) as progress:
            run_trials([trial], store, data=folder, device=device, progress=progress, deadline=Deadline.after(seconds))
        outcome = store.outcome(trial)
        assert outcome is not None
        when = f"; {cached(starts_of([trial], store))}" if known else ""
        if SPEAKS:
            typer.echo(f"{label(trial)}: {ending(outcome)}; record {trial.key}{when}")


def train_command() -> Callable[..., None]:
    """`_train` with a flag for each field of a trial: a new field is a new flag."""
    folder = Annotated[Path | None, typer.Option("--data-folder", help="folder of the data sets (or SPECTRALGRAD_DATA)")]
    made: dict[str, tuple[Any, Any]] = {"data_folder": (folder, None)}
    made |= {"device": (Device, "auto"), "records": (Records, FOLDER), "seconds": (Seconds, None)}
    said = sentences(Trial.__doc__ or "")  # none where Python strips doc-strings
    for field in fields(Trial):
        kind, default, more = field.type, field.default, ""
        if isinstance(default, tuple):
            kind, default, more = str, ",".join(map(str, default)), " With commas."
        made[field.name] = (Annotated[kind, typer.Option(help=f"{said.get(field.name, '')}{more}")], default)

    def train(**values: Any) -> None:
        _train(values.pop("data_folder"), values.pop("device"), values.pop("records"), values.pop("seconds"), values)

    only = inspect.Parameter.KEYWORD_ONLY
    train.__doc__ = _train.__doc__
    train.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, only, default=default, annotation=kind) for name, (kind, default) in made.items()]
    )
    train.__annotations__ = {name: kind for name, (kind, _) in made.items()}
    return train
