"""Formulas as MathML, made when the site is built: browsers draw it themselves. Nothing is fetched, no script runs."""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

BAR = re.compile(r"(?<!\\left)(?<!\\right)\\([lr])([vV]ert)(?![A-Za-z])")
log = logging.getLogger(__name__)


def mathml(latex: str, display: str) -> str:
    """A formula as MathML. Bars become fences: as high as what they hold, and close to it."""
    return convert(
        BAR.sub(lambda bar: f"\\{'left' if bar[1] == 'l' else 'right'}\\{bar[1]}{bar[2]}", latex.strip()), display=display
    )


def converted(node: nodes.Element, display: str) -> str:
    try:
        found = mathml(node.astext(), display)
    except Exception as error:  # latex2mathml raises what it likes
        log.warning("no MathML for %r: %s %s", node.astext(), type(error).__name__, error, location=node)
        return ""
    if "\\" in found:  # it shows a command that it does not know as it is written
        log.warning("no MathML for a command of %r", node.astext(), location=node)
    return found


def inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(converted(node, "inline"))
    raise nodes.SkipNode


def block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{converted(node, "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
