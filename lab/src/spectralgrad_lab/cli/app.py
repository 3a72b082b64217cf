"""The one application: list, run, train, report, demo, and the commands of the other files here."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import spectralgrad as sg
from spectralgrad.errors import OptionError, SpectralError
from spectralgrad_lab.artifacts.registry import IDS, find, specs
from spectralgrad_lab.artifacts.run import run_spec
from spectralgrad_lab.artifacts.spec import Spec
from spectralgrad_lab.deadline import Deadline, OutOfTime
from spectralgrad_lab.records.results import SCALES, Printed, Scale
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.sweep.local import cores, run_trials

from .bars import SPEAKS, Bars, label
from .bench import EPILOG, STOPPED, BenchCommand, bench
from .decoders import convert_weights, train_decoders
from .options import FOLDER, Data, Device, Records, ScaleOption, Seconds
from .style import evaluate_style, gallery, train_style
from .transfer import run_transfer

WIDE = 160  # columns where there is no terminal
app = typer.Typer(help=(sg.__doc__ or "").partition("\n")[0], no_args_is_help=True, pretty_exceptions_enable=False)
plain = Console(width=None if Console().is_terminal else WIDE, quiet=not SPEAKS)

LATE = 3  # exit code when --seconds are over


@contextmanager
def answered(command: str) -> Iterator[None]:
    """Turn what goes wrong into one line and an exit code."""
    code, words = 0, ""
    try:
        yield
    except OptionError as error:
        code, words = 2, f"spectralgrad {error}"
    except SpectralError as error:
        code, words = 1, f"spectralgrad {error}"
    except ModuleNotFoundError as error:
        package = "'spectralgrad-lab[style]'" if command == "transfer" else "spectralgrad-lab"
        code, words = 2, f"spectralgrad {command}: needs {error.name}: pip install {package}"
    except OSError as error:
        code, words = 1, f"spectralgrad {command}: {error.filename}: {error.strerror}."
    except OutOfTime:
        code, words = LATE, f"spectralgrad {command}: out of time; the same command goes on from here."
    except KeyboardInterrupt:
        rest = "what was written is whole" if command == "transfer" else "the same command goes on from here"
        code, words = STOPPED, f"spectralgrad {command}: stopped; {rest}."
    if code:
        typer.echo(words, err=True)
        raise typer.Exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spectralgrad {sg.__version__}")
        raise typer.Exit


def _ids() -> list[str]:
    return list(IDS)


@app.callback()
def options(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False) -> None:
    pass


@app.command("list")
def show(records: Records = FOLDER) -> None:
    """Every artifact of the papers, and which scales have records."""
    with answered("list"):
        store = Store(records) if records.exists() else None
        table = Table("id", "paper", "shows", "kind", "records")
        table.columns[0].no_wrap = True
        for spec in specs().values():
            table.add_row(spec.id, spec.paper, escape(spec.shows), spec.kind, _recorded(spec, store))
        plain.print(table)


def _recorded(spec: Spec, store: Store | None) -> str:
    return ", ".join(filter(None, (_state(spec, scale, store) for scale in SCALES))) if store else ""


def _state(spec: Spec, scale: Any, store: Store) -> str:
    if spec.entries is None:
        return scale if store.load_computed(spec.id, scale) else ""
    trials = spec.trials(scale)
    done = sum(store.outcome(trial) is not None for trial in trials)
    return "" if not done else scale if done == len(trials) else f"{scale} {done}/{len(trials)}"


@app.command()
def run(
    ids: Annotated[list[str], typer.Argument(metavar="ARTIFACT", help="as list shows them", autocompletion=_ids)],
    scale: ScaleOption = "smoke",
    jobs: Annotated[int, typer.Option(help="worker processes")] = 1,
    ray: Annotated[str | None, typer.Option(help="address of a Ray cluster, or local")] = None,
    data: Data = None,
    device: Device = "auto",
    records: Records = FOLDER,
    seconds: Seconds = None,
) -> None:
    """Train or compute artifacts; what has a record is not run again."""
    with answered("run"):
        deadline = Deadline.after(seconds)
        chosen = [find(id) for id in dict.fromkeys(ids)]  # a wrong one is told before the first is run
        for spec in chosen:
            _sweep(spec, scale, Store(records), data=data, jobs=jobs, ray=ray, device=device, deadline=deadline)


def _sweep(spec: Spec, scale: Scale, store: Store, **how: Any) -> None:
    with Bars(len(spec.trials(scale))) as bars:
        run_spec(spec, scale, store, progress=bars, say=lambda text: bars.progress.console.print(escape(text)), **how)
    from spectralgrad_lab.report.cells import measure
    from spectralgrad_lab.report.tables import arrange

    if spec.entries:
        _print(arrange([measure(entry, store) for entry in spec.entries(scale)]))
    computed = store.load_computed(spec.id, scale) if spec.is_computed else None
    if computed:
        _print(computed.tables)
        for remark in computed.remarks:
            plain.print(escape(remark))
        if computed.pictures:
            plain.print(escape(f"{len(computed.pictures)} pictures in {store.folder / 'computed' / f'{spec.id}-{scale}'}"))


def _print(tables: Any) -> None:
    for printed in tables:
        assert isinstance(printed, Printed)
        table = Table("", *map(escape, printed.columns), title=escape(printed.caption) or None)
        for name, cells in printed.rows.items():
            table.add_row(escape(name), *(escape(cell) if cell is not None else "?" for cell in cells))
        plain.print(table)


def _train(folder: Path | None, device: str, records: Path, values: dict[str, Any]) -> None:
    """Train one trial; every field of it is a flag."""
    with answered("train"):
        values["treatments"] = tuple(filter(None, values["treatments"].split(",")))
        try:
            values["milestones"] = tuple(int(word) for word in filter(None, values["milestones"].split(",")))
        except ValueError:
            raise OptionError(f"`train`: --milestones must be epochs with commas, got {values['milestones']!r}.") from None
        trial, store = Trial(**values), Store(records)
        with Bars(1) as bars:
            run_trials([trial], store, data=folder, device=device, progress=bars)
        outcome = store.outcome(trial)
        assert outcome is not None
        end = f"test error {outcome.test_error} %" if outcome.status == "finished" else outcome.reason
        plain.print(escape(f"{label(trial)}: {outcome.status}, {end}; record {trial.key}"))


def _flags() -> Callable[..., None]:
    """`_train` with a flag for each field of a trial: a new field is a new flag."""
    folder = Annotated[Path | None, typer.Option("--data-folder", help="of the data sets")]
    made: dict[str, tuple[Any, Any]] = {"data_folder": (folder, None)}
    made |= {"device": (Device, "auto"), "records": (Records, FOLDER)}
    for field in fields(Trial):
        kind, default = (
            (str, ",".join(map(str, field.default))) if isinstance(field.default, tuple) else (field.type, field.default)
        )
        made[field.name] = (kind, default)

    def train(**values: Any) -> None:
        _train(values.pop("data_folder"), values.pop("device"), values.pop("records"), values)

    only = inspect.Parameter.KEYWORD_ONLY
    train.__doc__ = _train.__doc__
    train.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, only, default=default, annotation=kind) for name, (kind, default) in made.items()]
    )
    train.__annotations__ = {name: kind for name, (kind, _) in made.items()}
    return train


app.command("train")(_flags())


@app.command()
def report(
    records: Records = FOLDER,
    out: Annotated[Path, typer.Option("--out", "-o", help="folder of the page")] = Path("report"),
    scale: ScaleOption = "smoke",
    only: Annotated[
        list[str] | None, typer.Option("--only", help="this artifact alone; may be repeated", autocompletion=_ids)
    ] = None,
) -> None:
    """One HTML page of all records beside the papers' figures."""
    with answered("report"):
        from spectralgrad_lab.report.page import write_page

        if not records.exists():
            raise OptionError(f"`report`: there are no records in {records}. Run something first, or name them: --records.")
        shown = {id: find(id, "report") for id in only} if only else specs()
        typer.echo(str(write_page(out, Store(records), shown, scale)))


@app.command()
def demo(out: Annotated[Path, typer.Option("--out", "-o", help="folder of records and page")] = Path("demo")) -> None:
    """Every method by group size on digits, in three minutes: what fails, fails."""
    with answered("demo"):
        from spectralgrad_lab.report.page import write_page

        from .demo import SPEC

        store = Store(out / "records")
        _sweep(SPEC, "smoke", store, jobs=cores(), device="cpu")
        typer.echo(f"\nThe page: {write_page(out / 'page', store, {SPEC.id: SPEC}, 'smoke')}")


def _answering(command: str, function: Callable[..., None]) -> Callable[..., None]:
    """A command of another file: its flags, and our answers to what goes wrong."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> None:
        with answered(command):
            function(*args, **options)

    return call


app.command("transfer")(_answering("transfer", run_transfer))
app.command("train-style")(_answering("train-style", train_style))
app.command("evaluate")(_answering("evaluate", evaluate_style))
app.command("gallery")(_answering("gallery", gallery))
app.command("train-decoders")(_answering("train-decoders", train_decoders))
app.command("convert-weights")(_answering("convert-weights", convert_weights))
app.command("bench", cls=BenchCommand, epilog=EPILOG)(_answering("bench", bench))
