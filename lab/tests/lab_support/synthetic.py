"""Records that were never trained: an artifact of each form, filled with made-up numbers for the tests of the page."""

import io
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from spectralgrad_lab.artifacts.spec import Entry, Form, Spec
from spectralgrad_lab.records.results import Computed, Curve, GalleryPicture, Printed, Scale, Surface
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.records.trial import Trial
from spectralgrad_lab.style_network.workplace import Workplace

METHODS = {"BN": "exact", "SVD": "svd", "PI": "pi", "SVD-Clip": "clip", "SVD-PI": "svd-pi", "SVD-Taylor": "taylor"}
SIZES = (4, 8, 16, 32, 64)
HOSTILE = "<script>alert('x')</script> & \"quoted\" <img src=x onerror=alert(1)>"
DIVERGED = "the loss is NaN at step 17"


def grid(methods: tuple[str, ...], sizes: tuple[int, ...], seeds: int, **changes: object) -> tuple[Entry, ...]:
    base = replace(Trial(epochs=6), **changes)  # type: ignore[arg-type]
    return tuple(
        Entry(
            row,
            f"d = {d}",
            tuple(
                replace(base, layer="bn" if row == "BN" else "zca", method=METHODS[row], d=d, seed=seed)
                for seed in range(seeds)
            ),
        )
        for row in methods
        for d in sizes
    )


def train(store: Store, trial: Trial, *, fails_at: int | None = None, reason: str = DIVERGED, ends: bool = True) -> None:
    """A record as a training leaves it: a loss that falls, or one that breaks off in an epoch."""
    wobble = 0.2 * math.sin(1 + trial.seed + (trial.d or 0))
    error = 100.0
    with store.recording(trial) as recording:
        for epoch in range(trial.epochs if fails_at is None else fails_at):
            loss = (2.3 + wobble) * 0.7**epoch
            error = 90 * 0.7**epoch + wobble
            recording.append(
                "epoch",
                epoch=epoch,
                step=10 * (epoch + 1),
                train_loss=loss,
                train_error=0.8 * error,
                test_loss=loss,
                test_error=error,
                seconds=1.5,
                monitor={"condition": 10.0 ** (3 + epoch % 3)},
            )
        if ends and fails_at is None:
            recording.append("end", status="finished", reason="", step=60, epoch=5, test_error=error, best_error=error)
        elif ends:
            recording.append(
                "end", status="failed", reason=reason, step=17, epoch=fails_at, test_error=None, best_error=None
            )


def always(entries: tuple[Entry, ...]) -> Callable[[Scale], tuple[Entry, ...]]:
    def at(scale: Scale) -> tuple[Entry, ...]:
        return entries

    return at


TABLE = grid(tuple(METHODS), SIZES, 3)
PRINTED = Printed(
    tuple(f"d = {d}" for d in SIZES),
    {
        "SVD: success rate": ("46.7%", "0%", "0%", "0%", "0%"),
        "SVD: min": ("4.59", "-", "-", "-", "-"),
        "SVD: mean": ("4.54 ± 0.08", "-", "-", "-", "-"),
        "SVD-Taylor: success rate": ("100%",) * 5,
        "SVD-Taylor: min": ("4.33", "4.34", None, "4.40", "4.40"),
        "SVD-Taylor: mean": ("4.52 ± 0.09", "4.55 ± 0.12", "4.52 ± 0.14", "4.57 ± 0.16", "4.50 ± 0.08"),
    },
    "PAMI Table 4: errors (%) and success rates of ResNet-18 on CIFAR-10.",
    ("SVD at d = 4: the minimum, 4.59, is above the mean, 4.54.",),
)


def curves_of(id: str, form: Form, **changes: object) -> Spec:
    entries = grid(("BN", "SVD", "SVD-PI", "SVD-Taylor"), (4, 64), 2, **changes)
    return Spec(
        id, "ECCV22", f"a figure of the form {form}", "training", form, entries=always(entries), claim="It converges."
    )


SURFACE = Surface(
    x=tuple(i / 20 for i in range(21)),
    y=tuple(float(k) for k in range(1, 21)),
    z=tuple(tuple((i / 20) ** k for i in range(21)) for k in range(1, 21)),
    levels=(0.05, 0.2),
    points=(("A", 0.6, 9.0), ("B", 0.85, 19.0)),
    x_label="ratio",
    y_label="k",
)
PROBABILITY = Computed(
    curves=tuple(
        Curve(f"2^-{k}", (6.0, 60.0, 600.0), (0.0 if k == 14 else 2.0 ** (1 - k), 0.1, min(1.0, 2.0 ** (12 - k))))
        for k in range(10, 15)
    ),
    x_label="d",
    y_label="probability of two close eigenvalues",
    log="xy",
)
DIRECTION = Computed(
    curves=(
        Curve("original", (0.0, 1.0), (0.0, 4.0)),
        Curve("clipping", (0.0, 1.0), (0.0, 1.0)),
        Curve("Taylor", (0.0, 0.8), (0.0, 2.6)),
    ),
    x_label="K13",
    y_label="K23",
    agrees=True,
    remarks=("The direction is kept by Taylor.",),
)
COMPUTED_TABLE = Computed(tables=(Printed(("0.8", "0.9"), {"k": ("14", "29")}, "Ours: the smallest k"),), agrees=False)


GALLERY_ROWS = ("photograph 1 to Monet", "photograph 2 to Ukiyo-e")
GALLERY_COLUMNS = ("content", "exemplar", "GD-WCT", "Clip-WCT", "PI-WCT", "SVD-WCT", "Exact-WCT")


def picture_file(colour: tuple[int, int, int], size: int = 256, kind: str = "JPEG") -> bytes:
    """A file of one colour."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(buffer, kind)
    return buffer.getvalue()


def gallery_of(size: int = 256) -> tuple[GalleryPicture, ...]:
    """A picture for each row and method, of a colour of its own."""
    return tuple(
        GalleryPicture(
            row,
            column,
            picture_file((120 * i + 20, 30 * j + 20, 90), size),
            f"{row} by {column}, in one colour",
            original=column in GALLERY_COLUMNS[:2],
        )
        for i, row in enumerate(GALLERY_ROWS)
        for j, column in enumerate(GALLERY_COLUMNS)
    )


CLOUDS = Computed(
    curves=(
        Curve("original: points", (0.0, 1.0, 2.0), (0.0, 1.0, 2.5)),
        Curve("original: marked", (2.0,), (2.5,)),
        Curve("ZCA: points", (-1.0, 0.0, 1.0), (-1.0, 0.2, 1.0)),
    )
)


def _made(scale: Scale, place: Workplace) -> Computed:
    raise AssertionError("the page makes nothing")


def _computed(result: Computed) -> Callable[[Scale], Computed]:
    def compute(scale: Scale) -> Computed:
        raise AssertionError("the page computes nothing")

    return compute


SPECS = {
    spec.id: spec
    for spec in (
        Spec(
            "pami-table4",
            "PAMI",
            "SVD, PI, SVD-Clip, SVD-PI, SVD-Taylor x d: success rate, min, mean ± std",
            "training",
            printed=(PRINTED,),
            entries=always(TABLE),
            says={"short": "CIFAR-10, 12 epochs."},
            claim="SVD-Taylor never fails, and gives the smallest error.",
        ),
        Spec(
            "pami-fig1b",
            "PAMI",
            "rate of failed trainings by d",
            "training",
            "success",
            entries=always(grid(("SVD",), SIZES, 3)),
        ),
        Spec(
            "pami-fig1a",
            "PAMI",
            "probability of close eigenvalues",
            "computed",
            "probability",
            compute=_computed(PROBABILITY),
        ),
        Spec("pami-fig3", "PAMI", "direction of a column", "computed", "direction", compute=_computed(DIRECTION)),
        Spec("pami-fig4", "PAMI", "x^(K+1): surface and contours", "computed", "contour", compute=_computed(Computed())),
        Spec("nips19-table1", "NIPS19", "smallest k", "computed", printed=(PRINTED,), compute=_computed(COMPUTED_TABLE)),
        curves_of("eccv22-fig1", "condition"),
        curves_of("nips19-fig2", "loss", eps=2e-4),
        curves_of("pami-fig5", "error", eps=3e-4),
        curves_of("pami-fig6", "time", eps=4e-4),
        Spec("nips19-table5", "NIPS19", "never run", "training", entries=always(grid(("BN",), (4,), 1, lr=0.5))),
        Spec("pami-table8", "PAMI", "style transfer: classifier accuracy", "style", make=_made),
        Spec("pami-fig2", "PAMI", "points and pictures", "style", "points", make=_made),
        Spec("pami-fig10", "PAMI", "pictures by method", "style", "pictures", make=_made, claim="Ours are sharper."),
    )
}
COMPUTED = {
    "pami-fig1a": PROBABILITY,
    "pami-fig3": DIRECTION,
    "pami-fig4": Computed(surfaces=(SURFACE,)),
    "nips19-table1": COMPUTED_TABLE,
    "pami-fig2": CLOUDS,
    "pami-fig10": Computed(pictures=gallery_of()),
}


def fill(folder: Path, scale: Scale = "short", reason: str = DIVERGED) -> Store:
    """Records of all but two artifacts: SVD fails from d = 8 on, at d = 64 in its first epoch; two go on."""
    store = Store(folder)
    seen: set[Trial] = set()
    for spec in SPECS.values():
        if spec.entries is None or spec.id == "nips19-table5":
            continue
        for entry in spec.entries(scale):
            for trial in entry.trials:
                if trial in seen:
                    continue
                seen.add(trial)
                fails = trial.method == "svd" and trial.layer != "bn" and (trial.d or 0) > 4
                fails_at = (0 if trial.d == 64 else 2) if fails else None
                running = trial.method == "taylor" and trial.seed == 1 and trial.eps == 2e-4
                train(store, trial, fails_at=3 if running else fails_at, reason=reason, ends=not running)
    for id, result in COMPUTED.items():
        store.save_computed(id, scale, result)
    return store
