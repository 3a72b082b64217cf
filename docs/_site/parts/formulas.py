"""Formulas as MathML, made when the site is built: browsers draw it themselves. Nothing is fetched, no script runs."""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.writers.html5 import HTML5Translator

BAR = re.compile(
    r"(?<!\\left)(?<!\\right)\\([lr])([vV])ert\b"
)  # as fences they are as high as what they hold, and close to it


def mathml(latex: str, display: str) -> str:
    """A formula as MathML. What cannot be read is an error that shows it."""
    fenced = BAR.sub(lambda bar: rf"\{'left' if bar[1] == 'l' else 'right'}\{bar[1]}{bar[2]}ert", latex.strip())
    try:
        return convert(fenced, display=display)
    except Exception as error:  # latex2mathml raises what it likes
        raise ExtensionError(f"no MathML for the formula {latex!r}: {type(error).__name__}: {error}") from error


def inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{mathml(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
