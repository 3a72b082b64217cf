"""PAMI section 5.3 in numbers and pictures: Tables 8, 9 and 10, Figures 9 and 10."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

import spectralgrad as sg
from spectralgrad_lab.models.wct_blocks import Roots
from spectralgrad_lab.records.machine import circumstances, disturbance, machine_name
from spectralgrad_lab.records.results import Computed, Printed, Scale
from spectralgrad_lab.style_network.classifier import Classifier, train_classifier
from spectralgrad_lab.style_network.measures import Features, content_distance, milliseconds, sharpness, style_distance
from spectralgrad_lab.style_network.studio import BATCH, METHODS, NAMES, Studio, gallery_of, next_rows, studio
from spectralgrad_lab.style_network.workplace import Workplace
from spectralgrad_lab.training.timing import now

DASH = "–"  # the training failed
CONTENT, COLOURS, PAINTINGS = "photographs as they are", "colour transfer alone", "real paintings"
JUDGE = (
    "The losses of the trainings look at VGG-19 as well: classifier and distances are no independent judges. They are "
    "fair between the methods that decompose, whose losses are the same."
)
CLASSIFIER_STEPS = {"smoke": 60, "short": 400, "paper": 400}
ROUNDS = {"smoke": 5, "short": 50, "paper": 200}
FIGURE_9, FIGURE_10 = ("GD-WCT", "SVD-WCT"), tuple(METHODS)
EACH = {"smoke": 1, "short": 2, "paper": 3}  # photographs for each style in a figure


def table8(scale: Scale, place: Workplace) -> Computed:
    """Which domain a classifier takes the stylised pictures for. It is judged first, on real pictures it has not seen."""
    where = studio(scale, place)
    encoder = where.encoder()
    place.say("training the classifier of the domains")
    judge = train_classifier(where.artworks, encoder, where.device, steps=CLASSIFIER_STEPS[scale])
    rows: dict[str, tuple[str | None, ...]] = {"Original": _accuracy_row(judge, judge.accuracy)}
    for name, get in _baselines(where).items():
        rows[name] = _accuracy_row(judge, {domain: judge.score(get(domain), domain).percent for domain in where.styles})
    for method in METHODS:
        place.say(f"classifying what {method} painted")
        found = {domain: where.painted(method, domain) for domain in where.styles}
        right = {domain: judge.score(x, domain).percent for domain, x in found.items() if x is not None}
        rows[method] = _accuracy_row(judge, right)
    names = [NAMES[domain] for domain in NAMES if domain in judge.domains]
    columns = tuple(f"{name}: {what}" for name in (*names, "Mean") for what in ("Acc.", "Δ Acc."))
    tables = [Printed(columns, rows, "Ours: accuracy (%), and how much less than on real pictures")]
    if encoder is not None:
        tables.append(_distances(where, encoder))
    counts = ", ".join(f"{NAMES[name]} {len(some)}" for name, some in where.artworks.test.items())
    remarks = (
        f"The classifier is {judge.about}; the paper fine-tuned an Inception-v3. Real pictures held out: {counts}.",
        f"Controls: «{CONTENT}» is what the classifier makes of the contents themselves, «{COLOURS}» of their colours moved "
        "to the exemplar's (`color_transfer`), with no network at all.",
        "Real Photo is not stylised: the same for every method, as in the paper.",
        *([JUDGE] if encoder is not None else []),
    )
    return Computed(tables=tuple(tables), remarks=(*remarks, *where.remarks(*METHODS)))


def table9(scale: Scale, place: Workplace) -> Computed:
    """Sharpness of the stylised pictures: the mean norm of the intensity's gradient, in 8-bit units."""
    where = studio(scale, place)
    rows: dict[str, tuple[str | None, ...]] = {
        PAINTINGS: tuple(_mean(sharpness(where.artworks.test[domain].float() / 255)) for domain in where.styles)
    }
    for name, get in _baselines(where).items():
        rows[name] = tuple(_mean(sharpness(get(domain))) for domain in where.styles)
    for method in METHODS:
        found = [where.painted(method, domain) for domain in where.styles]
        rows[method] = tuple(DASH if x is None else _mean(sharpness(x)) for x in found)
    columns = tuple(NAMES[domain] for domain in where.styles)
    size = where.artworks.test["photo"].shape[-1]
    return Computed(
        tables=(Printed(columns, rows, f"Ours: sharpness, pictures of {size} x {size}"),),
        remarks=(
            "Sharpness counts noise and edges alike: the rows of real pictures say what a natural value is.",
            *where.remarks(*METHODS),
        ),
    )


def table10(scale: Scale, place: Workplace) -> Computed:
    """Time for one picture, and the share of the decompositions in it."""
    where = studio(scale, place)
    about = circumstances("", gpu=where.device.type == "cuda")
    domain, content = where.styles[0], where.contents()[:1].to(where.device)
    exemplar = where.exemplars(domain)[:1].to(where.device)
    runs: dict[str, Callable[[], object]] = {}
    shares = {}
    for method in METHODS:
        net = where.network(method, domain).network
        if net is not None:
            runs[method] = _call(net, content, exemplar, domain)
            shares[method] = decomposition_share(net, runs[method], where.device, ROUNDS[scale])
    times = milliseconds(runs, where.device, ROUNDS[scale])
    rows: dict[str, tuple[str | None, ...]] = {
        "Reference time (ms)": tuple(f"{times[method]:.3g}" if method in times else DASH for method in METHODS),
        "of which decompositions": tuple(f"{shares[method]:.0%}" if method in shares else DASH for method in METHODS),
    }
    size = content.shape[-1]
    machine = f"{machine_name(about)}, torch {torch.__version__}"
    if where.device.type == "cpu":
        machine += f", {torch.get_num_threads()} torch threads"
    remarks = [
        f"{machine}; medians of {ROUNDS[scale]} rounds, one picture of {size} x {size} in the style of another.",
        "The share is that of the roots of covariances, timed one by one with waits between them; GD-WCT has none. PI-WCT "
        "runs its deflation, as printed.",
        disturbance(about),
    ]
    caption = "Ours: one picture, batch 1"
    return Computed(
        tables=(Printed(tuple(METHODS), rows, caption),),
        remarks=(*(text for text in remarks if text), *where.remarks(*METHODS)),
    )


def figure9(scale: Scale, place: Workplace) -> Computed:
    """SVD-WCT beside GD-WCT."""
    return _figure(scale, place, FIGURE_9, first=0)


def figure10(scale: Scale, place: Workplace) -> Computed:
    """All methods side by side, on other photographs than Figure 9's."""
    return _figure(scale, place, FIGURE_10, first=len(studio(scale, place).styles) * EACH[scale])


def _figure(scale: Scale, place: Workplace, methods: tuple[str, ...], first: int) -> Computed:
    where = studio(scale, place)
    chosen = "The photographs are the next of the held-out ones, not chosen by hand."
    rows = next_rows(where, first, EACH[scale])
    pictures = gallery_of(where, methods, where.artworks, rows, original=not where.are_drawn)
    return Computed(pictures=pictures, remarks=(chosen, *where.remarks(*methods)))


def decomposition_share(net: nn.Module, run: Callable[[], object], device: torch.device, rounds: int) -> float:
    """The part of a call's time that its matrix roots take: medians over the rounds, after one call to warm up."""
    shares = []
    with _timed(net, device) as spent:
        for k in range(rounds + 1):
            spent.clear()
            start = now(device)
            run()
            total = now(device) - start
            if k:
                shares.append(sum(spent) / total)
    return statistics.median(shares)


@contextmanager
def _timed(net: nn.Module, device: torch.device) -> Iterator[list[float]]:
    """Seconds of every call of a `Roots` in the network, inside the block."""
    spent: list[float] = []
    begun: list[float] = []

    def before(*_: Any) -> None:
        begun.append(now(device))

    def after(*_: Any) -> None:
        spent.append(now(device) - begun.pop())

    roots = [module for module in net.modules() if isinstance(module, Roots)]
    hooks = [hook for root in roots for hook in (root.register_forward_pre_hook(before), root.register_forward_hook(after))]
    try:
        yield spent
    finally:
        for hook in hooks:
            hook.remove()


def _baselines(where: Studio) -> dict[str, Callable[[str], Tensor]]:
    """Pictures by domain that no network made: the contents, and the contents in other colours."""
    return {
        CONTENT: lambda _: where.contents(),
        COLOURS: lambda domain: sg.nn.functional.color_transfer(where.contents(), where.exemplars(domain)),
    }


def _accuracy_row(judge: Classifier, right: dict[str, float]) -> tuple[str | None, ...]:
    """Accuracy and difference for each domain, and their means; dashes where there are none."""
    full = {**right, "photo": judge.accuracy["photo"]}
    cells: list[str | None] = []
    domains = [domain for domain in NAMES if domain in judge.domains]
    for domain in domains:
        cells += _with_difference(full.get(domain), judge.accuracy[domain])
    whole = all(domain in full for domain in domains)
    mean = sum(full[domain] for domain in domains) / len(domains) if whole else None
    return (*cells, *_with_difference(mean, judge.mean_accuracy))


def _with_difference(found: float | None, real: float) -> list[str | None]:
    return [DASH, DASH] if found is None else [f"{found:.2f}", f"{real - found:.2f}"]


def _distances(where: Studio, encoder: Features) -> Printed:
    """How far what was painted is from its content and from its exemplar, mean over the styles."""
    rows: dict[str, tuple[str | None, ...]] = {}
    makers: dict[str, Callable[[str], Tensor | None]] = dict(_baselines(where))
    for method in METHODS:
        makers[method] = lambda domain, method=method: where.painted(method, domain)  # type: ignore[misc]
    for name, get in makers.items():
        found: list[tuple[float, float]] = []
        for domain in where.styles:
            painted = get(domain)
            if painted is not None:
                found.append(_distance(where, encoder, painted, domain))
        whole = len(found) == len(where.styles)
        rows[name] = tuple(f"{statistics.mean(some):.3f}" for some in zip(*found, strict=True)) if whole else (DASH, DASH)
    return Printed(("content distance", "style distance"), rows, "Ours: distances of VGG-19's features, smaller is nearer")


def _distance(where: Studio, encoder: Features, painted: Tensor, domain: str) -> tuple[float, float]:
    content, style = [], []
    size = BATCH.get(where.device.type, 1)
    parts = (x.split(size) for x in (painted, where.contents(), where.exemplars(domain)))
    for one, plain, exemplar in zip(*parts, strict=True):
        some, there, like = (x.to(where.device) for x in (one, plain, exemplar))
        content.append(content_distance(encoder, some, there))
        style.append(style_distance(encoder, some, like))
    return float(torch.cat(content).mean()), float(torch.cat(style).mean())


def _call(net: Any, content: Tensor, exemplar: Tensor, domain: str) -> Callable[[], object]:
    return lambda: net.stylise(content, exemplar, domain)


def _mean(scores: Tensor) -> str:
    return f"{float(scores.mean()):.2f}"
