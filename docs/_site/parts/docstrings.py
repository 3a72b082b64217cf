"""Our docstrings are plain text, to be read in a terminal; Sphinx takes them for reStructuredText. This turns them into it.

Stars, bars and trailing underscores of formulas are only that. A name in backquotes becomes a link if it is public, and a
page of docs/ becomes one too. An indented formula stays as it is written. Sections (Args, Returns, ...) become fields.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from .reference import public, short

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SECTIONS = ("Args:", "Attributes:", "Returns:", "Raises:")
CODE = re.compile(r"(``[^`]+``|`[^`]+`)")
LINK = re.compile(r"docs/([\w/-]+)\.md|\b([A-Z]\w+Error)\b")
SPECIAL = re.compile(r"[*|\\]|_(?!\w)")
ENTRY = re.compile(r"    ([\w*]+(?:, [\w*]+)*): ")  # of a section: one name or several
FORMULA = (".. code-block:: text", "   :class: formula", "")


def escaped(line: str, known: dict[str, str]) -> str:
    """One line as reStructuredText that reads the same.

    >>> escaped("|K| <= 1 of (*B, n), see `eigh`, `n_i` and docs/svd.md", {"eigh": "spectralgrad.eigh"})
    '\\\\|K\\\\| <= 1 of (\\\\*B, n), see :py:obj:`eigh <spectralgrad.eigh>`, ``n_i`` and :doc:`/svd`'
    """
    parts = CODE.split(line)
    return "".join(_code(part.strip("`"), known) if i % 2 else _text(part, known) for i, part in enumerate(parts))


def _text(words: str, known: dict[str, str]) -> str:
    found = LINK.split(words)  # text, page, error, text, ...
    pages = [
        f":doc:`/{page}`" if page else error and _code(error, known)
        for page, error in zip(found[1::3], found[2::3], strict=True)
    ]
    texts = [SPECIAL.sub(r"\\\g<0>", text) for text in found[::3]]
    return texts[0] + "".join(page + text for page, text in zip(pages, texts[1:], strict=True))


def _code(words: str, known: dict[str, str]) -> str:
    name = known.get(words.removesuffix("()"))
    return f":py:obj:`{words} <{name}>`" if name else f"``{words}``"


def field(lines: list[str], known: dict[str, str]) -> Iterator[str]:
    """A section as a field: its header, then entries in a list, each a name and what it is, or prose."""
    header, *body = lines
    yield f":{header}"
    listed = header != "Returns:"
    for line in body:
        new = listed and line.startswith("    ") and line[4:5] != " "
        name = ENTRY.match(line) if new else None
        start = f"**{name[1]}**: ".replace("*B", r"\*B") if name else ""
        words = escaped(line[name.end() :] if name else line.strip(), known)
        if header == "Raises:" and name:
            start = escaped(name[1], known) + ": "
        yield ("   * " if new else "     " if listed else "   ") + start + words
    yield ""


def converted(lines: list[str], known: dict[str, str]) -> Iterator[str]:
    """A docstring as reStructuredText."""
    paragraphs = [list(group) for filled, group in groupby(lines, key=lambda line: bool(line.strip())) if filled]
    for paragraph in paragraphs:
        if paragraph[0].lstrip().startswith(">>>"):
            yield from paragraph
        elif paragraph[0] in SECTIONS:
            yield from field(paragraph, known)
        elif all(line.startswith("    ") for line in paragraph):
            yield from (*FORMULA, *paragraph)
        else:
            yield from (escaped(line, known) for line in paragraph)
        yield ""


def process(app: "Sphinx", what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    lines[:] = list(converted(lines, app.config.public_names))


def setup(app: "Sphinx") -> dict[str, bool]:
    app.add_config_value("public_names", short(public()), "env")
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
