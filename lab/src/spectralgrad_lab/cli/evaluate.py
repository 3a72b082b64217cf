"""Evaluate trained style-transfer networks and leave what may be published: tables, and pictures without the originals.

    python -m spectralgrad_lab.cli.evaluate --scale short --data DIR --records DIR --device cuda --out results/style-h200

It needs torch, numpy and Pillow alone. Records go to --records as `spectralgrad run` leaves them. Into --out go, for each
artifact, <id>-<scale>.md and .json, and <id>-<scale>.jpg, a sheet of results; and drawn-<scale>.jpg, the networks on
pictures that a program draws, beside these.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from spectralgrad.errors import OptionError, SpectralError
from spectralgrad_lab.artifacts.registry import find
from spectralgrad_lab.data.artworks import embedded_artworks
from spectralgrad_lab.records.machine import circumstances, describe, table, write
from spectralgrad_lab.records.results import SCALES, Computed, Scale
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.report.gallery import sheet
from spectralgrad_lab.style_network.workplace import Workplace

IDS = ("pami-table10", "pami-fig10", "pami-table8", "pami-table9", "pami-fig9", "pami-fig2")  # the important ones first
DRAWN_SIZE, DRAWN_COUNT = 256, 20  # of which three are held out


def evaluate(ids: Sequence[str], scale: Scale, place: Workplace, out: Path, *, again: bool = False) -> list[str]:
    """Run the artifacts, and the networks on drawn pictures, and write what may be published.

    What fails is told, and does not cost the others.

    Args:
        ids: of style artifacts.
        scale: smoke, short or paper.
        place: folders, device, options of the trainings.
        out: folder of what is published, made if it is not there.
        again: also where there is a record.

    Returns:
        What failed: ids, or "drawn".
    """
    store, failed = Store(place.folder), []
    parts: dict[str, Callable[[], object]] = {id: partial(_one, id, scale, place, store, out, again) for id in ids}
    parts["drawn"] = partial(drawn, scale, place, out)
    for name, part in parts.items():
        start = time.perf_counter()
        try:
            part()
        except SpectralError as error:
            failed.append(name)
            place.say(f"{name}: {error}")
        except Exception:  # a fault in one must not cost a rented machine the others
            failed.append(name)
            place.say(f"{name}: {traceback.format_exc(limit=-2)}")
        place.say(f"{name}: {time.perf_counter() - start:.1f} s")
    return failed


def _one(id: str, scale: Scale, place: Workplace, store: Store, out: Path, again: bool) -> None:
    spec = find(id)
    if spec.make is None:
        raise OptionError(f"`evaluate`: {id} is no artifact of style transfer. `spectralgrad run` runs it.")
    gpu = place.device != "cpu" and _cuda()
    found = None if again else store.load_computed(id, scale)
    if found is None:
        found = spec.make(scale, place)
        store.save_computed(id, scale, found, gpu=gpu)
    publish(id, scale, found, out, circumstances(f"python -m spectralgrad_lab.cli.evaluate {id} --scale {scale}", gpu))


def publish(id: str, scale: Scale, found: Computed, out: Path, about: dict[str, Any]) -> None:
    """Write the tables of a result, and its pictures less the originals."""
    rows = [
        {"table": t.caption, "row": row, **dict(zip(t.columns, cells, strict=True))}
        for t in found.tables
        for row, cells in t.rows.items()
    ]
    parts = [f"# {id}, scale {scale}", describe(about)]
    for printed in found.tables:
        lines = [[name, *(cell or "" for cell in cells)] for name, cells in printed.rows.items()]
        parts += [printed.caption, table(["", *printed.columns], lines)]
    parts.append("\n".join(f"- {text}" for text in found.remarks))
    write(out, f"{id}-{scale}", about, rows, "\n\n".join(part for part in parts if part))
    picture = sheet(found.pictures, originals=False)
    if picture:
        (out / f"{id}-{scale}.jpg").write_bytes(picture)


def drawn(scale: Scale, place: Workplace, out: Path) -> Path:
    """The networks on drawn photographs and drawn styles: a sheet that holds no picture of the data."""
    from spectralgrad_lab.style_network.studio import METHODS, STYLES, gallery_of, studio

    pictures = embedded_artworks(DRAWN_SIZE, DRAWN_COUNT)
    rows = [(domain, i) for i, domain in enumerate(STYLES)]
    made = gallery_of(studio(scale, place), tuple(METHODS), pictures, rows, original=False)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"drawn-{scale}.jpg"
    path.write_bytes(sheet([replace(picture, original=False) for picture in made]))
    return path


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _changes(texts: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """Fields of the trainings, as name=value with values in JSON or plain words.

    >>> _changes(["steps=7", "precision=32-true"])
    (('steps', 7), ('precision', '32-true'))
    """
    found = []
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise OptionError(f"`evaluate`: --set takes name=value, got {text!r}.")
        try:
            found.append((name, json.loads(value)))
        except json.JSONDecodeError:
            found.append((name, value))
    return tuple(found)


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate; returns the exit code: 0, 1 if an artifact failed, 2 for wrong use."""
    parser = argparse.ArgumentParser(
        "python -m spectralgrad_lab.cli.evaluate", description="Evaluate style-transfer networks."
    )
    parser.add_argument("ids", nargs="*", default=IDS, metavar="ID", help=f"default: {', '.join(IDS)}")
    parser.add_argument("--scale", default="smoke", choices=SCALES)
    parser.add_argument("--data", type=Path, help="folder of the artworks (or SPECTRALGRAD_DATA)")
    parser.add_argument("--records", type=Path, default=Path("records"), help="where the trainings are, and records go")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--encoder", type=Path, help="file of VGG-19's weights; else the installed one")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a field of the trainings")
    parser.add_argument("--as-is", action="store_true", help="train nothing: also what was stopped counts")
    parser.add_argument("--again", action="store_true", help="also where there is a record")
    parser.add_argument("--out", type=Path, default=Path("published"), help="folder of what may be published")
    options = parser.parse_args(argv)
    try:
        place = Workplace(
            options.records,
            options.data,
            options.device,
            lambda text: print(text, flush=True),
            options.encoder,
            _changes(options.set),
            options.as_is,
        )
        failed = evaluate(options.ids, options.scale, place, options.out, again=options.again)
    except SpectralError as error:
        print(f"evaluate: {error}", file=sys.stderr)
        return 2 if isinstance(error, OptionError) else 1
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
