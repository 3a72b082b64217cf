"""Formulas as MathML, made when the site is built: browsers draw it themselves. Nothing is fetched, no script runs."""

import re
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

from parts.mathml import tidied

BAR = re.compile(r"(?<!\\left)(?<!\\right)\\([lr])([vV]ert)(?![A-Za-z])")
NAMESPACE = ' xmlns="http://www.w3.org/1998/Math/MathML"'  # HTML needs none
BESIDE = re.compile(r'([(\[“]*)(<math display="inline">.*?</math>)([.,;:!?)\]”]*)', re.DOTALL)
log = logging.getLogger(__name__)


def mathml(latex: str, display: str) -> str:
    """A formula as MathML. Bars become fences."""
    bars = BAR.sub(lambda bar: f"\\{'left' if bar[1] == 'l' else 'right'}\\{bar[1]}{bar[2]}", latex.strip())
    formula = ElementTree.fromstring(convert(bars, display=display).replace(NAMESPACE, "", 1))
    return ElementTree.tostring(tidied(formula), encoding="unicode")


def kept_together(html: str) -> str:
    """A page whose formulas stay in one line with the brackets and stops beside them, where a browser might end the line."""

    def kept(found: re.Match[str]) -> str:
        return f'<span class="together">{found[0]}</span>' if found[1] or found[3] else found[0]

    return BESIDE.sub(kept, html)


def keep_together(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None) -> None:
    if "body" in context:
        context["body"] = kept_together(context["body"])


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
    app.connect("html-page-context", keep_together)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
