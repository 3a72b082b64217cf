"""The one application: list, run, train, report, demo, and the commands of the other files here."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import spectralgrad as sg
from spectralgrad.errors import OptionError
from spectralgrad_lab.artifacts.registry import IDS, find, specs
from spectralgrad_lab.artifacts.run import run_spec
from spectralgrad_lab.artifacts.spec import Entry, Spec, narrowed, trials_of
from spectralgrad_lab.deadline import Deadline, OutOfTime
from spectralgrad_lab.records.machine import cores
from spectralgrad_lab.records.results import SCALES, Printed, Scale
from spectralgrad_lab.records.store import Store, StoreError
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.sweep.local import run_trials

from .answers import ON, answered, answering, require_options
from .bars import SPEAKS, places, progress_of
from .bench import EPILOG, BenchCommand, bench
from .decoders import convert_weights, train_decoders
from .options import FOLDER, Data, Device, Records, ScaleOption, Seconds
from .style import evaluate_style, gallery, train_style
from .train import train_command
from .transfer import run_transfer

WIDE = 160  # columns where there is no terminal
app = typer.Typer(
    help=(sg.__doc__ or "").partition("\n")[0],
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
plain = Console(width=None if Console().is_terminal else WIDE, quiet=not SPEAKS)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spectralgrad {sg.__version__}")
        raise typer.Exit


def _ids() -> list[str]:
    return list(IDS)


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")] = False,
) -> None:
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
        _tell_damaged(store.damaged.values() if store else ())
        if store is None and records != FOLDER:  # it was asked for
            typer.echo(f"spectralgrad `list`: there is no folder {records}; nothing is recorded in it.", err=True)


def _tell_damaged(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(f"spectralgrad {line}.", err=True)


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
    row: Annotated[list[str] | None, typer.Option(help="train this row alone; may be repeated")] = None,
    column: Annotated[list[str] | None, typer.Option(help="train this column alone; may be repeated")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="the first so many trainings of each cell")] = None,
) -> None:
    """Train or compute artifacts; what has a record is not run again."""
    with answered("run"):
        require_options("run", device, seconds, data, jobs=jobs, ray=ray)
        deadline = Deadline.after(seconds)
        chosen = [find(id) for id in dict.fromkeys(ids)]  # a wrong one is told before the first is run
        _require_known(chosen, scale, row or (), column or (), seeds)
        chosen = [narrowed(spec, row or (), column or (), seeds) for spec in chosen]
        store = Store(records)
        how: dict[str, Any] = {"data": data, "jobs": jobs, "ray": ray, "device": device, "deadline": deadline}
        before = _ended(trials_of(_entries(chosen, scale)), store)
        try:
            if len(chosen) > 1:
                _train_together(chosen, scale, store, **how)
            for spec in chosen:
                _sweep(spec, scale, store, before, **how)
        except OutOfTime as late:
            raise OutOfTime(_left(chosen, scale, store, seconds)) from late


def _entries(chosen: Iterable[Spec], scale: Scale) -> list[Entry]:
    """The cells of all artifacts."""
    return [entry for spec in chosen if spec.entries is not None for entry in spec.entries(scale)]


def _ended(trials: Iterable[Trial], store: Store) -> set[Trial]:
    return {trial for trial in trials if store.outcome(trial) is not None}


def _require_known(chosen: list[Spec], scale: Scale, rows: Sequence[str], columns: Sequence[str], seeds: int | None) -> None:
    """Raise for a row or column that none of the artifacts has, and for more seeds than any of their cells."""
    entries = _entries(chosen, scale)
    for flag, wanted, known in (
        ("--row", rows, [entry.row for entry in entries]),
        ("--column", columns, [entry.column for entry in entries]),
    ):
        for name in wanted:
            if name not in known:
                found = "; ".join(dict.fromkeys(known)) or "none, since they are not trained"
                raise OptionError(
                    f"`run`: {flag} must be one of the artifacts' own at scale {scale}, got {name!r}. There are: {found}."
                )
    most = max((len(entry.trials) for entry in entries), default=0)
    if seeds is not None and seeds > most:
        raise OptionError(f"`run`: --seeds must be at most {most}, which a cell has at scale {scale}, got {seeds}.")


def _train_together(chosen: list[Spec], scale: Scale, store: Store, **how: Any) -> None:
    """The trainings of several artifacts in one order, so that every beginning has something of each."""
    trials = trials_of(_entries(chosen, scale))
    told = _ended(trials, store)
    names: dict[Trial, str] = {}
    for spec in reversed(chosen):  # the first that has a trial names it
        names |= {trial: f"{spec.id} {place}" for trial, place in places(_entries([spec], scale)).items()}
    judged = all(spec.is_judged(scale) for spec in chosen)
    if len(told) < len(trials):
        with progress_of(len(trials), f"{len(chosen)} artifacts", told, names=names, judged=judged) as progress:
            run_trials(trials, store, progress=progress, **how)


def _left(chosen: list[Spec], scale: Scale, store: Store, seconds: float | None) -> str:
    """What --seconds left to do, in words."""
    trials = trials_of(_entries(chosen, scale))
    if seconds is not None and trials and not any(store.lines(trial) for trial in trials):
        return f"--seconds {seconds:g} was too short to begin a training. Give more; {ON}"
    some = f"{len(_ended(trials, store))} of {len(trials)} trainings have ended; " if trials else ""
    return f"{some}{ON}"


def _sweep(spec: Spec, scale: Scale, store: Store, before: Collection[Trial], **how: Any) -> None:
    """Run an artifact and tell what came out; ``before``: trials that had ended when the command began."""
    from spectralgrad_lab.report.answer import answer, trained
    from spectralgrad_lab.report.findings import gather
    from spectralgrad_lab.report.origin import cached, starts_of

    trials = spec.trials(scale)
    told, known = _ended(trials, store), [trial for trial in trials if trial in before]
    if known:
        plain.print(escape(f"{spec.id}: {len(known)} of {len(trials)} trainings {cached(starts_of(known, store))}."))
    head = store.head_of_computed(spec.id, scale) if spec.is_computed else None
    if head is not None and store.load_computed(spec.id, scale) is not None:
        plain.print(escape(f"{spec.id}: {cached([head])}."))
    _tell_damaged(store.damage_of(trials, *([(spec.id, scale)] if spec.is_computed else [])))
    names = places(_entries([spec], scale))
    with progress_of(len(trials), spec.id, told, names=names, judged=spec.is_judged(scale)) as progress:
        run_spec(spec, scale, store, progress=progress, say=progress.say, **how)
    found = gather(spec, scale, store)
    if found.problem:
        raise StoreError(found.problem)
    tables = [*found.tables, *(found.result.tables if found.result else ())]
    for printed in tables:
        _print(printed, ": ".join(filter(None, (spec.id, found.banner, printed.caption))))
    remarks = found.result.remarks if found.result else ()
    for text in dict.fromkeys((trained(found) if trials else "", answer(found), *remarks)):
        if text:
            plain.print(escape(text))
    if found.result and found.result.pictures:
        folder = store.folder / "computed" / f"{spec.id}-{scale}"
        plain.print(escape(f"{len(found.result.pictures)} pictures in {folder}"))


def _print(printed: Printed, title: str) -> None:
    table = Table("", *map(escape, printed.columns), title=escape(title) or None)
    for name, cells in printed.rows.items():
        table.add_row(escape(name), *(escape(cell) if cell is not None else "?" for cell in cells))
    plain.print(table)


app.command("train")(train_command())


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
        store = Store(records)
        with Console(stderr=True).status("reading the records") as status:  # on a terminal alone
            page = write_page(
                out, store, shown, scale, progress=lambda id: status.update(f"drawing {id}"), tell=_tell_damaged
            )
        recorded = {each: any(_state(spec, each, store) for spec in shown.values()) for each in SCALES}
        if not recorded[scale] and any(recorded.values()):
            others = ", ".join(f"--scale {each}" for each in SCALES if recorded[each])
            typer.echo(f"spectralgrad `report`: {records} has no records at scale {scale}. It has some: {others}.", err=True)
        typer.echo(str(page))


@app.command()
def demo(out: Annotated[Path, typer.Option("--out", "-o", help="folder of records and page")] = Path("demo")) -> None:
    """Every method by group size on digits, in three minutes: what fails, what does not, and why."""
    with answered("demo"):
        from spectralgrad_lab.report.page import write_page

        from .demo import SPEC, conclusion
        from .why import WHY

        store = Store(out / "records")
        for spec in (SPEC, WHY):
            _sweep(spec, "smoke", store, _ended(spec.trials("smoke"), store), jobs=cores(), device="cpu")
        page = write_page(out / "page", store, {spec.id: spec for spec in (SPEC, WHY)}, "smoke")
        typer.echo(f"\n{conclusion(store)}\n\nThe picture: {page.parent / f'{WHY.id}.png'}\nThe page: {page}")


app.command("transfer")(answering("transfer", run_transfer))
app.command("train-style")(answering("train-style", train_style))
app.command("evaluate")(answering("evaluate", evaluate_style))
app.command("gallery")(answering("gallery", gallery))
app.command("train-decoders")(answering("train-decoders", train_decoders))
app.command("convert-weights")(answering("convert-weights", convert_weights))
app.command("bench", cls=BenchCommand, epilog=EPILOG)(answering("bench", bench))
