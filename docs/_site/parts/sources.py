"""Links that leave docs/, to source, records and examples: they lead to the project's source on the web.

Where that is stands in pyproject.toml, `[project.urls]`, and nowhere else. Without it they are plain text.
"""

import re
from pathlib import Path
from urllib.parse import urlsplit

import tomllib
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

LABELS = ("source", "repository", "sourcecode", "github", "homepage")  # the first that is there, as PyPI spells them
UNDECIDED = re.compile(r"(^|\.)(example(\.(com|org|net))?|invalid|test)$")  # hosts that lead nowhere, by RFC 2606


def source_url(pyproject: str) -> str:
    """Where the source is, without a slash at the end; "" where that is not decided.

    >>> source_url('[project.urls]\\n"Source Code" = "https://forge.net/a/b/"'), source_url("[project]\\nname = 'x'")
    ('https://forge.net/a/b', '')
    """
    told = tomllib.loads(pyproject).get("project", {}).get("urls", {})
    urls = {re.sub(r"[\s_-]", "", label).lower(): url for label, url in told.items()}
    found = next((urls[label] for label in LABELS if label in urls), "")
    return "" if UNDECIDED.search(urlsplit(found).hostname or "invalid") else found.rstrip("/")


def address(url: str, path: str, folder: bool) -> str:
    """The address of a file or folder of the repository."""
    return f"{url}/{'tree' if folder else 'blob'}/main/{path}"


class Sources(SphinxTransform):
    """Takes MyST's links to files outside of docs/ before Sphinx would copy them."""

    default_priority = 5

    def apply(self, **_: object) -> None:
        docs = Path(self.env.srcdir).resolve()
        root = docs.parent
        here = (docs / self.env.docname).parent
        for node in [*self.document.findall(addnodes.download_reference), *self.document.findall(addnodes.pending_xref)]:
            target = (here / node["reftarget"].partition("#")[0]).resolve()
            if not target.exists():
                target = target.with_name(f"{target.name}.md")  # MyST leaves the end of a page off
            if target.is_relative_to(docs) or not target.is_relative_to(root) or not target.exists():
                continue
            inner = node[0] if len(node) == 1 and isinstance(node[0], nodes.inline) else node  # MyST's wrapper
            link: nodes.Element = nodes.inline(classes=["source"])
            if url := self.config.source_url:
                link = nodes.reference(refuri=address(url, target.relative_to(root).as_posix(), target.is_dir()))
            link += [child.deepcopy() for child in inner.children]
            node.replace_self(link)


def setup(app: Sphinx) -> dict[str, bool]:
    pyproject = Path(app.srcdir).parent / "pyproject.toml"
    app.add_config_value("source_url", source_url(pyproject.read_text(encoding="utf-8")), "env")
    app.add_transform(Sources)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
