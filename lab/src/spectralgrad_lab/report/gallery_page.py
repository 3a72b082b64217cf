"""The gallery of the documentation, from drawn pictures and from results alone: no picture of any data is in it."""

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

from spectralgrad_lab.files import write_whole
from spectralgrad_lab.records.results import GalleryPicture

from .gallery import sheet

TILE = 320  # pixels of a picture on their sheet
WIDTH = 125  # letters of a line
COMMAND = "spectralgrad gallery --docs docs --results results/style-h200"
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
        "its whitening. The others decompose the covariance and differ in the gradient: clipped, power iterations, Taylor "
        "(the paper's SVD-WCT), exact (ours).",
    ),
    (
        "pami-fig10-{scale}.jpg",
        "The trained networks, on held-out photographs",
        "Only results are shown: the photographs and the paintings belong to a data set that is not ours to publish. The "
        "pictures were taken in turn, not chosen.",
    ),
)


def write_gallery(
    docs: Path, drawn: Sequence[GalleryPicture], results: Path | None = None, scale: str = "short"
) -> list[Path]:
    """Write the page and its figures.

    Args:
        docs: the folder of the documentation.
        drawn: drawn photographs in drawn styles.
        results: what `spectralgrad evaluate` left to be published; None for none.
        scale: of the results.

    Returns:
        What was written.
    """
    parts = [
        _section(
            "Two pictures, one command",
            "figures/gallery-drawn.jpg",
            "drawn photographs in three drawn styles, by colours alone and by deep transfer",
            "The command is `spectralgrad transfer CONTENT STYLE -o OUT`. Columns: content and style, drawn by a program; "
            "the result with `--level pixels`; deep transfer at its default strength and at 1.",
        )
    ]
    for pattern, heading, words in RESULTS if results is not None else ():
        path = Path(results or "") / pattern.format(scale=scale)
        if path.exists():
            link = Path(os.path.relpath(path, docs)).as_posix()  # there once: not copied
            parts.append(_section(heading, link, f"{heading}: methods in columns", words))
    page = "\n".join([_head(), *parts, _tail(results is not None)])
    (docs / "figures").mkdir(parents=True, exist_ok=True)
    figure, text = docs / "figures" / "gallery-drawn.jpg", docs / "gallery.md"
    write_whole(figure, sheet(drawn, tile=TILE))
    write_whole(text, page.encode())
    return [figure, text]


def _head() -> str:
    return f"""# Gallery

Pictures side by side, methods in columns. No picture of any data set stands here: contents and styles are drawn by a program
(`spectralgrad_lab.data.artworks.embedded_artworks`), or left out. This command makes the page:

```sh
{COMMAND}
```
"""


def _section(heading: str, figure: str, alt: str, words: str) -> str:
    return f"## {heading}\n\n{textwrap.fill(words, WIDTH)}\n\n![{alt}]({figure})\n"


def _tail(has_results: bool) -> str:
    where = " The numbers that belong to these pictures stand in `results/`." if has_results else ""
    own = f"With your own data, `spectralgrad report` shows all pictures, originals too.{where}"
    return f"## In Python\n\n```python\n{EXAMPLE}```\n\n{own}\n"
