"""The gallery of the documentation, from drawn pictures and from results alone: no picture of any data is in it.

    python -m spectralgrad_lab.report.gallery_page --docs docs --results results/style-h200

writes docs/gallery.md and docs/figures/gallery-drawn.jpg. Deep transfer needs the weights of `spectralgrad[style]`. The
pictures of the trained networks are those that `spectralgrad_lab.cli.evaluate` left in --results, where there are some.
"""

import argparse
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from spectralgrad.errors import SpectralError
from spectralgrad_lab.data.artworks import embedded_artworks
from spectralgrad_lab.records.results import Picture
from spectralgrad_lab.style_network.studio import NAMES, STYLES, encoded
from spectralgrad_lab.transfer.deep import Networks, load_networks
from spectralgrad_lab.transfer.options import TransferOptions
from spectralgrad_lab.transfer.transfer import Stylist

from .gallery import sheet

SIZE, COUNT = 448, 20  # of the drawn pictures, of which three are held out
TILE = 320  # pixels of a picture on their sheet
WIDTH = 125  # letters of a line
STRENGTHS = (0.6, 1.0)
COMMAND = "python -m spectralgrad_lab.report.gallery_page --docs docs --results results/style-h200"
EXAMPLE = """import torch
from spectralgrad_lab.data.artworks import embedded_artworks
from spectralgrad_lab.transfer import transfer

pictures = embedded_artworks(size=64, count=4)  # drawn by a program: uint8, by domain
content, style = (pictures.test[name][0].float() / 255 for name in ("photo", "vangogh"))
painted = transfer(content, style, level="pixels", clip=False)
assert torch.allclose(painted.mean((1, 2)), style.mean((1, 2)), atol=1e-3)  # its colours are the style's
"""
# What evaluate leaves: file, heading, words.
RESULTS = (
    (
        "drawn-{scale}.jpg",
        "The trained networks, on drawn pictures",
        "PAMI's network (fig. 8) was trained on photographs and paintings, and has never seen a drawn one. GD-WCT learns "
        "its whitening; the others decompose, with different gradients: clipped, power iterations, Taylor (the paper's "
        "SVD-WCT), exact (ours).",
    ),
    (
        "pami-fig10-{scale}.jpg",
        "The trained networks, on held-out photographs",
        "Results alone: the photographs and the paintings belong to a data set that is not ours to publish. They were taken "
        "in turn, not chosen.",
    ),
)


def drawn_pictures(networks: Mapping[str, Networks] | None = None, size: int = SIZE) -> tuple[Picture, ...]:
    """Drawn photographs in drawn styles: colours alone, and deep transfer at two strengths.

    Args:
        networks: in the place of those that come with the package.
        size: pixels a side.
    """
    networks = networks or load_networks(TransferOptions().depth, None, TransferOptions().on)
    held_out = embedded_artworks(size, COUNT).test
    made = []
    for i, domain in enumerate(STYLES):
        content, style = held_out["photo"][i].float() / 255, held_out[domain][i % len(held_out[domain])].float() / 255
        row = {
            "content": content,
            "style": style,
            "colours alone": _painted(content, style, TransferOptions(level="pixels")),
        }
        for strength in STRENGTHS:
            options = TransferOptions(strength=strength)
            row[f"deep, strength {strength:g}"] = _painted(content, style, options, networks)
        name = f"after {NAMES[domain]}"
        made += [Picture(name, column, encoded(picture), f"{column} {name}") for column, picture in row.items()]
    return tuple(made)


def _painted(
    content: Tensor, style: Tensor, options: TransferOptions, networks: Mapping[str, Networks] | None = None
) -> Tensor:
    return Stylist(style, options, networks=networks)(content).colors.clamp(0, 1)


def write_gallery(
    docs: Path,
    results: Path | None = None,
    scale: str = "short",
    networks: Mapping[str, Networks] | None = None,
    size: int = SIZE,
) -> list[Path]:
    """Write the page and its figures.

    Args:
        docs: the folder of the documentation.
        results: what `evaluate` left to be published; None for none.
        scale: of the results.
        networks: in the place of those that come with the package.
        size: pixels a side of the drawn pictures.

    Returns:
        What was written.

    Raises:
        WeightsError: the weights of deep transfer are not there.
    """
    figures = {"gallery-drawn.jpg": sheet(drawn_pictures(networks, size), tile=TILE)}
    parts = [
        _section(
            "Two pictures, one command",
            "figures/gallery-drawn.jpg",
            "drawn photographs in three drawn styles, by colours alone and by deep transfer",
            "`spectralgrad transfer CONTENT STYLE -o OUT`: content and style are drawn by a program; then `--level pixels`, "
            "and deep transfer at its default strength and at 1.",
        )
    ]
    for pattern, heading, words in RESULTS if results is not None else ():
        path = Path(results or "") / pattern.format(scale=scale)
        if path.exists():
            link = Path(os.path.relpath(path, docs)).as_posix()  # there once: not copied
            parts.append(_section(heading, link, f"{heading}: methods in columns", words))
    page = "\n".join([_head(), *parts, _tail(results is not None)])
    (docs / "figures").mkdir(parents=True, exist_ok=True)
    written = []
    for name, content in figures.items():
        written.append(docs / "figures" / name)
        written[-1].write_bytes(content)
    written.append(docs / "gallery.md")
    written[-1].write_text(page, encoding="utf-8")
    return written


def _head() -> str:
    return f"""# Gallery

Pictures side by side, methods in columns. No picture of any data set stands here: contents and styles are drawn by a program
(`data.artworks.embedded_artworks`), or left out. Made by

```sh
{COMMAND}
```
"""


def _section(heading: str, figure: str, alt: str, words: str) -> str:
    return f"## {heading}\n\n{textwrap.fill(words, WIDTH)}\n\n![{alt}]({figure})\n"


def _tail(has_results: bool) -> str:
    where = " The numbers to these pictures stand in `results/`." if has_results else ""
    own = f"With your own data, `spectralgrad report` shows them all, originals too.{where}"
    return f"## In Python\n\n```python\n{EXAMPLE}```\n\n{own}\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the gallery; returns the exit code."""
    parser = argparse.ArgumentParser("python -m spectralgrad_lab.report.gallery_page", description=main.__doc__)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    parser.add_argument("--results", type=Path, help="folder that evaluate has filled")
    parser.add_argument("--scale", default="short")
    options = parser.parse_args(argv)
    try:
        for path in write_gallery(options.docs, options.results, options.scale):
            print(path)
    except SpectralError as error:
        print(f"gallery: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
