"""Galleries: every picture at its place, none wider than it, originals kept out of what is published."""

import io

import pytest

pytest.importorskip("PIL")

from PIL import Image

from lab_support.synthetic import GALLERY_COLUMNS, GALLERY_ROWS, HOSTILE, gallery_of, picture_file
from spectralgrad_lab.records.results import GalleryPicture
from spectralgrad_lab.report.gallery import GAP, NAMES, SHOWN, TEXT, TILE, gallery, places, sheet, shrunk

PICTURES = gallery_of()
TOP = 2 * TEXT + GAP


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def near(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(abs(a - b) <= 6 for a, b in zip(one, other, strict=True))


def test_rows_and_columns_come_in_their_order() -> None:
    assert places(PICTURES) == (list(GALLERY_ROWS), list(GALLERY_COLUMNS))


def test_a_picture_is_no_wider_than_its_place() -> None:
    small = shrunk(picture_file((10, 200, 30), 512))
    assert opened(small).size == (SHOWN, SHOWN)
    assert near(opened(small).getpixel((9, 9)), (10, 200, 30))  # type: ignore[arg-type]
    tiny = picture_file((1, 2, 3), 64, "PNG")
    assert shrunk(tiny) is tiny  # it is not blown up, nor compressed a second time


def test_every_picture_is_at_its_place_on_the_sheet() -> None:
    whole = opened(sheet(PICTURES))
    assert whole.size == (NAMES + 7 * (TILE + GAP), TOP + 2 * (TILE + GAP))
    for i in range(2):
        for j in range(7):
            middle = NAMES + j * (TILE + GAP) + TILE // 2, TOP + i * (TILE + GAP) + TILE // 2
            assert near(whole.getpixel(middle), (120 * i + 20, 30 * j + 20, 90))  # type: ignore[arg-type]
    names = whole.crop((0, TOP, NAMES, whole.height)).convert("L")
    assert names.getextrema()[0] < 100  # something is written there


def test_originals_are_left_out_of_what_is_published() -> None:
    whole = opened(sheet(PICTURES, originals=False))
    assert whole.width == NAMES + 5 * (TILE + GAP)
    assert near(whole.getpixel((NAMES + TILE // 2, TOP + TILE // 2)), (20, 30 * 2 + 20, 90))  # type: ignore[arg-type]
    assert sheet([picture for picture in PICTURES if picture.original], originals=False) == b""


def test_the_markup_names_everything_and_escapes_it() -> None:
    hostile = GalleryPicture(HOSTILE, HOSTILE, picture_file((0, 0, 0), 8, "PNG"), HOSTILE)
    html = gallery([*PICTURES[:3], hostile], HOSTILE)
    assert "<script" not in html
    assert "onerror=alert(1)&gt;" in html
    assert html.count("<img ") == 4
    assert html.count("not there") == 2 * 4 - 4  # places without a picture say so
    assert html.count("data:image/png") == 1
    assert gallery([], "nothing") == ""


def test_a_picture_without_words_has_its_place_as_words() -> None:
    assert 'alt="Monet: GD-WCT"' in gallery([GalleryPicture("Monet", "GD-WCT", picture_file((0, 0, 0)))], "x")
