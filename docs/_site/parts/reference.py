"""The reference: `<!-- reference: eigh nn.fuse -->` in a page becomes signature and docstring of these names.

A forge does not show the comment, and what it stands for is in the source there. Names are those of the package's `__all__`.
"""

import importlib
import inspect
import re
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PACKAGE = "spectralgrad"
MARK = re.compile(r"^<!-- reference: (.+?) -->$", re.MULTILINE | re.DOTALL)
# Of a class: methods and properties of its own that have a docstring, but what torch documents, fields of a tuple, and what
# our own modules ask of a rule, a solver or a treatment, which a user neither calls nor writes.
LEFT_OUT = ("forward", "extra_repr", "train")
INNER = ("act", "check", "in_kernel", "iterate", "require_param", "tolerance", "triplets")
INNER += ("solve_anything", "solve_from", "solve_if_hermitian")
MEMBERS = "   :members:\n   :exclude-members: {}\n"


def names(text: str) -> list[str]:
    """The names that a page documents, in full.

    >>> names("text\\n\\n<!-- reference: eigh nn.fuse -->\\n")
    ['spectralgrad.eigh', 'spectralgrad.nn.fuse']
    """
    return [f"{PACKAGE}.{name}" for found in MARK.findall(text) for name in found.split()]


def public(module: str = PACKAGE) -> list[str]:
    """Every public name in full: `__all__` of the package, and of each public module in it."""
    found = []
    home = importlib.import_module(module)
    for name in home.__all__:
        full = f"{module}.{name}"
        found += public(full) if isinstance(getattr(home, name), ModuleType) else [full]
    return found


def short(names: list[str]) -> dict[str, str]:
    """As docstrings write names -> in full: ``mean``, ``spd.mean`` and ``spectralgrad.spd.mean``."""
    found = {}
    for name in reversed(names):  # of two with one end the first counts
        parts = name.split(".")
        found |= {".".join(parts[i:]): name for i in range(len(parts))}
    return found


def find(name: str) -> Any:
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def directive(name: str) -> str:
    """The directive of autodoc, with a heading above it, so that the name stands in the page's contents."""
    module, _, last = name.rpartition(".")
    found = find(name)
    kind, more = "function", ""
    if inspect.isclass(found):
        kind, more = ("exception", "") if issubclass(found, BaseException) else ("class", _members(found))
    return f"## {last}\n\n```{{eval-rst}}\n.. currentmodule:: {module}\n\n.. auto{kind}:: {last}\n{more}```\n"


def _members(found: type) -> str:
    return MEMBERS.format(", ".join([*LEFT_OUT, *INNER, *getattr(found, "_fields", ())]))


def replace(app: "Sphinx", page: str, source: list[str]) -> None:
    source[0] = MARK.sub(lambda mark: "\n".join(directive(name) for name in names(mark[0])), source[0])


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("source-read", replace)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
