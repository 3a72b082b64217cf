"""A link that a forge shows as `choosing.md` shows the title of that page on the site, where files have no names."""

import posixpath
import re

from docutils import nodes
from sphinx.application import Sphinx

FILE = re.compile(r"(\.\./)*[\w/-]+\.md")


def entitle(app: Sphinx, doctree: nodes.document, page: str) -> None:
    for link in doctree.findall(nodes.reference):
        if link.get("internal") and "refuri" in link and FILE.fullmatch(link.astext()):
            path = posixpath.join(posixpath.dirname(page), link["refuri"].partition("#")[0].removesuffix(".html") or page)
            title = app.env.titles.get(posixpath.normpath(path))
            if title is not None:
                link.children = []
                link += [child.deepcopy() for child in title.children]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-resolved", entitle)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
