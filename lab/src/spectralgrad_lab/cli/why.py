"""Why the demo's SVD fails: gaps between eigenvalues, the coefficient 1/gap, gradients, and the step where it dies."""

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

import spectralgrad as sg
from spectralgrad_lab.artifacts.spec import Spec
from spectralgrad_lab.records.results import Axes, Computed, Curve, Scale
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.style_network.workplace import Workplace
from spectralgrad_lab.training.train import run_trial

from .demo import BASE, SEEDS, SIZES

GAPS, COEFFICIENTS = "gaps between neighbouring eigenvalues", "the coefficient of each gap"
NORMS, DEATHS = "gradient at the layer's input", "how far the analytic gradient comes"
SHOWN = {"SVD": "svd", "SVD-Taylor": "taylor", "Exact": "exact"}  # methods whose gradients are compared
RULES = {"SVD: 1/gap": sg.Analytic(), "SVD-Clip": sg.Clip(100.0), "SVD-Taylor": sg.Taylor(9)}


class Seen(NamedTuple):
    """What a training shows at its whitening layer, step by step."""

    eigenvalues: list[Tensor]  # (groups, d) of covariance + eps I, ascending, in float32 as the layer has them
    norms: list[float]  # of the gradient with respect to its input


def why(scale: Scale, place: Workplace) -> Computed:
    """Train SVD at the largest d again, up to where its record ends, beside Taylor and Exact, and look at the layer."""
    store, size = Store(place.folder), SIZES[-1]
    trials = [replace(BASE, layer="zca", method="svd", d=size, seed=seed) for seed in range(SEEDS)]
    trial = next((trial for trial in trials if _step(store, trial)[1]), trials[0])
    epochs = math.ceil(_step(store, trial)[0] / _steps_of_an_epoch(store, trial)) or 1
    with _threads_of(store, trial):
        seen = {name: _watch(replace(trial, method=method, epochs=epochs)) for name, method in SHOWN.items()}
        small = _watch(replace(trial, d=SIZES[0], epochs=1))
    spectrum, first = seen["SVD"].eigenvalues[-1][0], small.eigenvalues[-1][0]
    curves = [
        *_lines(GAPS, {f"d = {size}": _gaps(spectrum), f"d = {SIZES[0]}": _gaps(first)}),
        *_lines(COEFFICIENTS, {name: _neighbours(rule.coefficients(spectrum)) for name, rule in RULES.items()}),
        *_lines(COEFFICIENTS, {"Exact: slope of 1/sqrt": _slopes(spectrum)}),
        *_lines(NORMS, {name: some.norms for name, some in seen.items()}),
        *_end(seen),
        *_deaths(store),
    ]
    axes = (
        Axes(GAPS, "pair of neighbours, smallest eigenvalues first", "gap", "y"),
        Axes(COEFFICIENTS, "pair of neighbours, smallest eigenvalues first", "size of the coefficient", "y"),
        Axes(NORMS, "step", "norm of the gradient", "y"),
        Axes(DEATHS, "d", "steps until it is not finite, or all"),
    )
    return Computed(curves=tuple(curves), axes=axes, remarks=_words(seen, spectrum, size))


WHY = Spec(
    id="demo-why",
    paper="Ours",
    shows="why the analytic gradient fails at large d: gaps, coefficients, gradients, the step where it dies",
    kind="computed",
    make=why,
    judged=True,
    says={"smoke": f"The demo's training of SVD at d = {SIZES[-1]}, again, with Taylor and Exact on the same batches."},
)


@contextmanager
def _threads_of(store: Store, trial: Trial) -> Iterator[None]:
    """As many of torch's threads as the record names: with others sums round otherwise, and that decides when it dies."""
    before, lines = torch.get_num_threads(), store.lines(trial)
    torch.set_num_threads(lines[0].get("machine", {}).get("torch_threads", before) if lines else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _watch(trial: Trial) -> Seen:
    """Train a trial, into a record that is thrown away, and look at its whitening layer in every step."""
    seen = Seen([], [])
    with tempfile.TemporaryDirectory() as folder, _watching(trial, seen):
        run_trial(trial, Store(Path(folder) / "records"), device="cpu")
    return seen


@contextmanager
def _watching(trial: Trial, seen: Seen) -> Iterator[None]:
    def look(module: Any, inputs: Any) -> None:
        if not (hasattr(module, "last_covariance") and module.training and inputs[0].requires_grad):
            return
        x = inputs[0].detach().float().transpose(0, 1).flatten(1)  # (channels, samples)
        x = (x - x.mean(1, keepdim=True)).view(-1, trial.d or len(x), x.shape[1])
        covariance = x @ x.mT / x.shape[-1] + trial.eps * torch.eye(x.shape[1])
        seen.eigenvalues.append(sg.eigh(covariance)[0])
        inputs[0].register_hook(lambda gradient: seen.norms.append(float(gradient.norm())))

    handle = register_module_forward_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()


def _words(seen: dict[str, Seen], spectrum: Tensor, size: int) -> tuple[str, ...]:
    gaps, largest = spectrum.diff(), float(spectrum[-1])
    close = int((gaps < 1e-6 * largest).sum())
    ties = int((gaps == 0).sum())
    taylor = _top(_neighbours(RULES["SVD-Taylor"].coefficients(spectrum)))
    analytic = _top(_neighbours(RULES["SVD: 1/gap"].coefficients(spectrum)))
    norms, step = seen["SVD"].norms, len(seen["SVD"].norms)
    before = [x for x in norms if math.isfinite(x)]
    died = f"was not finite at step {step}" if not math.isfinite(norms[-1]) else f"was still finite after {step} steps"
    known = f"reached {max(before):.2g} and " if before else ""
    others = ", ".join(f"{max(some.norms):.2g} with {name}" for name, some in seen.items() if name != "SVD")
    return (
        f"Why: at d = {size}, in step {step}, {close} of {len(gaps)} neighbouring eigenvalues are closer than a millionth "
        f"of the largest ({ties} exactly equal), since the first convolution has 9 inputs and {size} outputs.",
        f"There 1/gap reaches {analytic:.2g}{' and infinity' if ties else ''}, Taylor's coefficient {taylor:.2g}.",
        f"The norm of SVD's gradient {known}{died}; at most {others} on the same batches.",
    )


def _gaps(eigenvalues: Tensor) -> list[float]:
    return eigenvalues.diff().tolist()


def _neighbours(coefficients: Tensor) -> list[float]:
    return coefficients.diagonal(1).abs().tolist()


def _slopes(eigenvalues: Tensor) -> list[float]:
    """Of l^(-1/2) between neighbours: 1 / (a b (a + b)) with a, b their roots; what the exact gradient has for 1/gap."""
    a, b = eigenvalues[:-1].sqrt(), eigenvalues[1:].sqrt()
    return (1 / (a * b * (a + b))).tolist()


def _top(values: Sequence[float]) -> float:
    return max((x for x in values if math.isfinite(x)), default=math.nan)


def _lines(title: str, values: dict[str, list[float]]) -> list[Curve]:
    steps = {name: tuple(float(i + 1) for i in range(len(some))) for name, some in values.items()}
    return [Curve(f"{title}: {name}", steps[name], tuple(some)) for name, some in values.items()]


def _end(seen: dict[str, Seen]) -> list[Curve]:
    """A line straight up at the step where SVD's gradient is not finite; none if it lives."""
    norms, others = seen["SVD"].norms, [x for some in seen.values() for x in some.norms if math.isfinite(x)]
    if math.isfinite(norms[-1]):
        return []
    step = float(len(norms))
    return [Curve(f"{NORMS}: step {step:.0f}: SVD's is not finite", (step, step), (min(others), max(others)))]


def _step(store: Store, trial: Trial) -> tuple[int, bool]:
    """The last step of a training, and whether it failed there."""
    lines = store.lines(trial)
    return (int(lines[-1].get("step", 0)), lines[-1].get("status") == "failed") if lines else (0, False)


def _steps_of_an_epoch(store: Store, trial: Trial) -> int:
    """As its first epoch shows; if that did not end, no more than it took."""
    steps = [int(line["step"]) for line in store.lines(trial) if line["kind"] == "epoch"]
    return steps[0] if steps else max(1, _step(store, trial)[0])


def _deaths(store: Store) -> list[Curve]:
    found = []
    for seed in range(SEEDS):
        steps = [_step(store, replace(BASE, layer="zca", method="svd", d=d, seed=seed))[0] for d in SIZES]
        found.append(Curve(f"{DEATHS}: seed {seed}", tuple(map(float, SIZES)), tuple(map(float, steps))))
    return found
