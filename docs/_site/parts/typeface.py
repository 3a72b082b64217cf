"""The typeface of formulas, inside the site: without a mathematical one a browser sets exponents too high, sums too small.

STIX Two Math (SIL Open Font License 1.1) comes with the package ziamath, of which we take no more. The site gets the signs
of its formulas, in a style sheet: as data, since Firefox reads no typeface from a file for a page that was opened as a file.
"""

import base64
import html
import io
import re
import unicodedata
from importlib.util import find_spec
from pathlib import Path

from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont
from sphinx.application import Sphinx

FAMILY = "Formulas of this site"
SHEET = "formulas.css"
FORMULA = re.compile(r"<math\b.*?</math>", re.DOTALL)
ROOT = "√"  # drawn by the browser, for an element
HEIGHTS = 2  # of roots: Chromium leaves room behind each for the widest that the typeface has
LICENCE = (
    "/* STIX Two Math, reduced to the signs of this site. Copyright 2001-2020 The STIX Fonts Project Authors\n"
    "   (https://github.com/stipub/stixfonts). SIL Open Font License 1.1: https://scripts.sil.org/OFL */\n"
)


def signs(page: str) -> set[str]:
    """The characters of the formulas of a page.

    >>> sorted(signs('<p>x</p><math display="inline"><mi>a</mi><mo>&#x2264;</mo></math>'))
    ['a', '≤']
    """
    return {sign for formula in FORMULA.findall(page) for sign in html.unescape(re.sub(r"<[^>]*>", "", formula))}


def slanted(known: set[str], wanted: set[str]) -> set[str]:
    """Of the known signs, those in which a browser shows a wanted letter that stands alone.

    >>> sorted(slanted({"ℎ", "\N{MATHEMATICAL ITALIC SMALL A}", "\N{MATHEMATICAL BOLD SMALL A}"}, {"a"}))
    ['𝑎']
    """
    named = {sign for sign in known if unicodedata.name(sign, "").startswith("MATHEMATICAL ITALIC") or sign == "ℎ"}
    return {sign for sign in named if unicodedata.normalize("NFKC", sign) in wanted}


def keep_low_roots(font: TTFont) -> None:
    """A root is as high as a line or a fraction, no higher."""
    variants = font["MATH"].table.MathVariants
    root = variants.VertGlyphConstruction[variants.VertGlyphCoverage.glyphs.index(font.getBestCmap()[ord(ROOT)])]
    root.MathGlyphVariantRecord = root.MathGlyphVariantRecord[:HEIGHTS]
    root.GlyphAssembly = None


def reduced(wanted: set[str]) -> bytes:
    """The typeface with these signs and all their sizes, as WOFF."""
    package = find_spec("ziamath")
    assert package is not None  # make.py asked
    assert package.origin is not None
    file = Path(package.origin).parent / "fonts" / "STIXTwoMath-Regular.ttf"
    font = TTFont(file, recalcTimestamp=False)  # the same site from the same pages
    keep_low_roots(font)
    subsetter = Subsetter(Options(hinting=False, name_IDs=["*"], layout_features=[]))
    subsetter.populate(text="".join(sorted(wanted | slanted(set(map(chr, font.getBestCmap())), wanted))))
    subsetter.subset(font)
    font.flavor = "woff"
    made = io.BytesIO()
    font.save(made)
    return made.getvalue()


def sheet(wanted: set[str]) -> str:
    data = base64.b64encode(reduced(wanted)).decode()
    return f'{LICENCE}@font-face {{ font-family: "{FAMILY}"; src: url("data:font/woff;base64,{data}") format("woff"); }}\n'


def write(app: Sphinx, error: Exception | None) -> None:
    """The style sheet, once all pages are written."""
    if error is None and app.builder.name == "html":
        pages = (page.read_text(encoding="utf-8") for page in sorted(Path(app.outdir).rglob("*.html")))
        found = set().union(*map(signs, pages), ROOT)
        (Path(app.outdir) / "_static" / SHEET).write_text(sheet(found), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_css_file(SHEET)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
