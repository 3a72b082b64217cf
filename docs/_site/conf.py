"""Sphinx's settings for the site: `make docs` builds it from the Markdown of docs/ and the docstrings. See make.py."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "src")]  # our parts, and the library of this tree, installed or not

import spectralgrad  # noqa: E402

project = author = "spectralgrad"
release = version = spectralgrad.__version__
html_title = f"spectralgrad {release}"
root_doc = "index"
exclude_patterns = ["_site"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "parts.navigation",
    "parts.reference",
    "parts.docstrings",
    "parts.examples",
    "parts.sources",
    "parts.titles",
    "parts.formulas",
    "parts.typeface",
]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3  # links to headings, as a forge makes them
nitpick_ignore_regex = [("py:.*", ".*")]  # types of torch and of Python have no page here

autodoc_typehints = "none"  # Args say what an argument is, with its shape
maximum_signature_line_length = 90
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False  # the forge shows it
html_show_copyright = html_show_sphinx = False
pygments_style, pygments_dark_style = "tango", "monokai"
