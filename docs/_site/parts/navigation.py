"""The navigation: docs/README.md is it. Its sections become captions, its links to pages the entries, in that order.

So there is one list of pages, which a forge shows too. It is appended, hidden, to the first page of the site.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

INDEX = "README"  # the list of pages
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
PAGE = re.compile(r"^\| \[[^\]]*\]\(([^)\s]+)\.md\)", re.MULTILINE)  # the first cell of a row


def sections(text: str) -> dict[str, list[str]]:
    """Caption -> pages, of the list of pages.

    >>> sections("## Start\\n\\n| page |\\n|---|\\n| [a](start.md) | see [b](b.md) |\\n| [c](rules/c.md) | |\\n")
    {'Start': ['start', 'rules/c']}
    """
    found = SECTION.split(text)[1:]
    return {caption: PAGE.findall(body) for caption, body in zip(found[::2], found[1::2], strict=True)}


def toctrees(text: str, root: str) -> str:
    """Hidden tables of contents, as MyST writes them."""
    trees = []
    for caption, pages in sections(text).items():
        entries = "\n".join("self" if page == root else page for page in pages)
        trees.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n")
    return "\n".join(trees)


def append(app: "Sphinx", page: str, source: list[str]) -> None:
    if page == app.config.root_doc:
        listed = Path(app.srcdir) / f"{INDEX}.md"
        app.env.note_dependency(str(listed))
        source[0] += "\n\n" + toctrees(listed.read_text(encoding="utf-8"), page)


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("source-read", append)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
