"""Pictures side by side, a method in each column: as a part of the page, and as one sheet that stands alone."""

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spectralgrad_lab.drawing import laid_out
from spectralgrad_lab.records.results import GalleryPicture

from .markup import Markup, element

if TYPE_CHECKING:
    from PIL.Image import Image

SHOWN = 224  # pixels across of a picture on the page: enough for its place, and the page stays small
FEW = 4  # columns; their pictures are shown larger
QUALITY = 85  # of JPEG
SHEET_QUALITY = 90
TILE, GAP, NAMES, TEXT = 256, 8, 112, 15  # pixels of a sheet: a picture, between two, left of a row, and of its letters
LINE = 13  # letters of a row's name in a line


def places(pictures: Sequence[GalleryPicture]) -> tuple[list[str], list[str]]:
    """Rows and columns, in the order in which they first appear."""
    return list(dict.fromkeys(p.row for p in pictures)), list(dict.fromkeys(p.column for p in pictures))


def gallery(pictures: Sequence[GalleryPicture], label: str) -> Markup:
    """The pictures as a table that scrolls by itself where the window is narrow.

    Args:
        pictures: each at its row and column; a place without one says so.
        label: what the table is, for those who do not see it.

    Returns:
        The markup; empty without pictures.
    """
    if not pictures:
        return Markup("")
    rows, columns = places(pictures)
    at = {(picture.row, picture.column): picture for picture in pictures}
    head = element("tr", element("td"), *(element("th", name, scope="col") for name in columns))
    body = []
    for row in rows:
        cells = [_cell(at.get((row, column))) for column in columns]
        body.append(element("tr", element("th", row, scope="row"), *cells))
    kind = "gallery few" if len(columns) <= FEW else "gallery"
    drawn = element("table", element("thead", head), element("tbody", *body), class_=kind, aria_label=label)
    box = element("div", drawn, class_="scroll", tabindex=0, role="region", aria_label=f"{label}, scrolls sideways")
    return element("figure", element("figcaption", _caption(pictures), class_="soft"), box)


def _cell(picture: GalleryPicture | None) -> Markup:
    if picture is None:
        return element("td", "not there", class_="lost")
    data = shrunk(picture.data)
    kind = "png" if data.startswith(b"\x89PNG") else "jpeg"
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    words = picture.alt or f"{picture.row}: {picture.column}"
    return element("td", element("img", src=source, alt=words))


def _caption(pictures: Sequence[GalleryPicture]) -> str:
    said = "Pictures: a method in each column."
    if any(picture.original for picture in pictures):
        said += " Content and exemplar are pictures of the data, as they were given."
    return said


def shrunk(data: bytes, across: int = SHOWN) -> bytes:
    """A picture that is not wider than its place; one that is small enough is left as it is."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as picture:
        if picture.width <= across:
            return data
        size = across, max(1, round(picture.height * across / picture.width))
        small = picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=QUALITY, optimize=True)
    return buffer.getvalue()


def sheet(pictures: Sequence[GalleryPicture], *, tile: int = TILE, originals: bool = True) -> bytes:
    """All pictures on one sheet with the names of rows and columns: a JPEG file.

    Args:
        pictures: each at its row and column.
        tile: pixels of each; smaller pictures are enlarged.
        originals: with those of the data; False for a sheet that may be published.

    Returns:
        The bytes of the file; empty if no picture is left.
    """
    kept = [picture for picture in pictures if originals or not picture.original]
    if not kept:
        return b""
    rows, columns = places(kept)
    left = {name: NAMES + j * (tile + GAP) for j, name in enumerate(columns)}
    top = {name: 2 * TEXT + GAP + i * (tile + GAP) for i, name in enumerate(rows)}
    size = NAMES + len(columns) * (tile + GAP), 2 * TEXT + GAP + len(rows) * (tile + GAP)
    words = [((x, GAP), name) for name, x in left.items()] + [((GAP, y), _broken(name)) for name, y in top.items()]
    placed = [((left[picture.column], top[picture.row]), _tile(picture.data, tile)) for picture in kept]
    buffer = io.BytesIO()
    laid_out(size, placed, words, letters=TEXT).save(buffer, "JPEG", quality=SHEET_QUALITY, optimize=True)
    return buffer.getvalue()


def _tile(data: bytes, side: int) -> "Image":
    from PIL import Image

    with Image.open(io.BytesIO(data)) as file:
        return file.convert("RGB").resize((side, side), Image.Resampling.BICUBIC)


def _broken(name: str) -> str:
    """A name in lines that fit left of its row.

    >>> _broken("photograph 3 to Monet")
    'photograph 3\\nto Monet'
    """
    lines = [""]
    for word in name.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > LINE:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
