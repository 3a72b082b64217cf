"""What was trained, on what, and what came out, in a sentence each; all of it read off the records."""

from collections.abc import Sequence

from spectralgrad_lab.artifacts.spec import trials_of

from .cells import Cell
from .findings import Findings
from .paired import Difference, differences
from .panels import CURVES
from .survival import lasted

MANY = 5  # names in a list; more are counted
APART = " What is marked as a misprint does not count."
MODELS = {"digits": "a small residual network", "resnet18": "ResNet-18", "resnet50": "ResNet-50", "alexnet": "AlexNet"}
DATA = {
    "digits": "scikit-learn's digits",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tinyimagenet": "Tiny ImageNet",
    "folder": "a folder of images",
}
LAYERS = {
    "bn": "batch norm",
    "zca": "decorrelated batch norm (ZCA)",
    "pca": "decorrelated batch norm (PCA)",
    "denoise": "PCA denoising",
    "gcp": "covariance pooling",
}


def trained(found: Findings) -> str:
    """What was trained and on what; what was computed, if nothing was trained.

    >>> from spectralgrad_lab.artifacts.spec import Entry, Spec
    >>> from spectralgrad_lab.records.trial import Trial
    >>> cell = Entry("Exact", "", (Trial(layer="zca", data="cifar10", model="resnet18", epochs=8, augment=True),))
    >>> trained(Findings(Spec("x", "PAMI", "", "training"), "short", (cell,)))
    'ResNet-18 with decorrelated batch norm (ZCA) on CIFAR-10, 8 epochs, 1 seed a cell.'
    """
    ran = [entry for entry, cell in zip(found.entries, found.cells, strict=False) if cell.run]
    trials = trials_of(ran or found.entries)
    if not trials:
        if found.spec.kind == "computed" and found.spec.make is not None:
            return "A training was repeated and looked into."
        did = {"timing": "Steps were timed, nothing was trained to its end.", "style": "Style networks were trained."}
        return did.get(found.spec.kind, "Computed; nothing was trained.")
    networks = _list(MODELS.get(trial.model.partition("-")[0], trial.model) for trial in trials)
    layers = _list(LAYERS.get(trial.layer, trial.layer) for trial in trials)
    data = _list(DATA.get(trial.data, trial.data) for trial in trials)
    epochs = _list(str(trial.epochs) for trial in trials)
    seeds = _list(str(len(entry.trials)) for entry in found.entries)
    many = f"{seeds} seed{_s(seeds)} a cell"
    if 0 < found.run < found.planned:  # what is left would be told as done
        many = f"{found.run} of {found.planned} trainings so far"
    what = f"{networks} with {layers} on {data}, {epochs} epoch{_s(epochs)}, {many}."
    return what[0].upper() + what[1:]


def answer(found: Findings) -> str:
    """What came out."""
    if found.result is not None and not found.cells:
        apart = APART if any(printed.misprints for printed in found.spec.printed) else ""
        said = {True: f"Equal to the paper's own numbers.{apart}", False: "Differs from the paper's own numbers."}
        first = found.result.remarks[0] if found.result.remarks else ""
        return said.get(found.result.agrees, first) if found.result.agrees is not None else first
    if found.lives:
        return lasted(found.lives)
    if not found.run:
        return "No training has ended yet." if found.begun else ""
    if not found.spec.is_judged(found.scale):
        return f"It runs: {found.finite} of {found.run} trainings stayed finite. That says nothing of the paper's question."
    parts = [_successes(found)]
    parts += [_curves(found)] if found.spec.form in CURVES else [_best(found)]
    parts += [_clear(differences(found.entries, found.cells), found.cells)] if found.spec.form not in CURVES else []
    return " ".join(part for part in parts if part)


def _successes(found: Findings) -> str:
    short = [cell for cell in found.cells if cell.run > cell.successes]
    if not short:
        many = f"All {found.run} trainings" if found.run > 1 else "The training"
        return f"{many} stayed finite and converged."
    named = []
    for row in dict.fromkeys(cell.row for cell in short):
        some = [f"{cell.column} {cell.successes} of {cell.run}" for cell in short if cell.row == row]
        named.append(f"{row} ({', '.join(some)})")
    more = f" and {len(named) - MANY} more" if len(named) > MANY else ""
    others = "all others always" if found.run == found.planned else "all others that were run always"
    return f"Not always a success: {'; '.join(named[:MANY])}{more}; {others}."


def _best(found: Findings) -> str:
    """The best cell of each data set: errors on different ones say nothing of each other."""
    sets: dict[str, list[Cell]] = {}
    for entry, cell in zip(found.entries, found.cells, strict=True):
        if cell.known and cell.figure in ("accuracy", "test_error"):
            sets.setdefault(entry.trials[0].data, []).append(cell)
    known = [cell for some in sets.values() for cell in some]
    if len({cell.row for cell in known} | {cell.column for cell in known}) < 3:
        return f"Mean: {known[0].shown_mean()} %." if known else ""
    best = [min(some, key=lambda cell: -cell.mean if cell.is_accuracy else cell.mean) for some in sets.values()]
    what = "Highest mean accuracy" if best[0].is_accuracy else "Lowest mean error"
    named = [f"{', '.join(filter(None, (cell.row, cell.column)))}, {cell.shown_mean()} %" for cell in best]
    return f"{what}: {'; '.join(named)}."


def _clear(found: Sequence[Difference], cells: Sequence[Cell]) -> str:
    """Which differences are larger than chance explains; each interval by itself."""
    if not found:
        several = len({cell.row for cell in cells if cell.run}) > 1
        return "Too few seeds to tell methods apart: fewer than 3 pairs." if several else ""
    references = list(dict.fromkeys(x.reference for x in found))
    parts = []
    for reference in references:
        clear = [x for x in found if x.is_clear and x.reference == reference]
        for word, some in (("below", [x for x in clear if x.mean < 0]), ("above", [x for x in clear if x.mean > 0])):
            if some:
                named = [f"{', '.join(filter(None, (x.row, x.column)))} ({x.mean:+.2f})" for x in some]
                more = f" and {len(named) - MANY} more" if len(named) > MANY else ""
                parts.append(f"Clearly {word} {reference} seed by seed: {'; '.join(named[:MANY])}{more}.")
    return " ".join(parts) or f"No difference from {' or '.join(references)} is clear at 95 %."


def _curves(found: Findings) -> str:
    """The lowest and the highest line of a figure at their last epochs."""
    ends = [
        (line.y[-1], ", ".join(filter(None, (line.label, panel.title))))
        for panel in found.panels
        for line in panel.lines
        if line.y and not line.companion and panel.y_label == found.panels[0].y_label
    ]
    if not ends:
        return ""
    (low, lowest), (high, highest) = min(ends), max(ends)
    return f"At the end, {found.panels[0].y_label}: lowest {lowest} ({low:.3g}), highest {highest} ({high:.3g})."


def _list(names: object) -> str:
    """Each name once.

    >>> _list(["a", "b", "a", "c"])
    'a, b and c'
    """
    each = list(dict.fromkeys(names))  # type: ignore[call-overload]
    return str(each[0]) if len(each) == 1 else f"{', '.join(each[:-1])} and {each[-1]}"


def _s(count: str) -> str:
    return "" if count == "1" else "s"
