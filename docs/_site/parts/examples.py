"""The examples: `<!-- examples -->` in a page becomes every program of examples/, with its docstring and its picture.

The picture of examples/NAME.py is docs/figures/examples/NAME.svg, if there is one; `make examples` draws it.
"""

import ast
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

MARK = "<!-- examples -->"


def paragraph(text: str) -> str:
    """A paragraph of a docstring: commands as code, the rest as it is, for lines that fit a narrow window."""
    return f"```sh\n{text}\n```" if text.startswith("python ") else text


def section(program: Path, figures: Path) -> str:
    """A program as a section of a page: title, docstring, picture, code."""
    text = program.read_text(encoding="utf-8")
    said = ast.get_docstring(ast.parse(text)) or ""
    picture = figures / "examples" / f"{program.stem}.svg"
    parts = [f"## {program.stem.replace('_', ' ')}", f"`examples/{program.name}`", *map(paragraph, said.split("\n\n"))]
    if picture.exists():
        parts.append(f"![what {program.name} draws](/{figures.name}/examples/{picture.name})")
    code = text.split('"""', 2)[2].strip() if said and text.startswith('"""') else text
    return "\n\n".join(part for part in [*parts, f"````python\n{code}\n````"] if part)


def replace(app: "Sphinx", page: str, source: list[str]) -> None:
    if MARK in source[0]:
        docs = Path(app.srcdir)
        programs = sorted((docs.parent / "examples").glob("*.py"))
        for program in programs:
            app.env.note_dependency(str(program))
        source[0] = source[0].replace(MARK, "\n\n".join(section(program, docs / "figures") for program in programs))


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("source-read", replace)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
