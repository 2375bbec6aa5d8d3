"""Sphinx: pages in MyST Markdown, the reference from docstrings, executed examples."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "docs"))
# An import inside the examples, which run in this process, must find one thread and no display.
os.environ.setdefault("MPLBACKEND", "Agg")

import gpx  # noqa: E402

project = "gpx"
author = "the gpx authors"
release = gpx.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
    "method_pages",
]
exclude_patterns = ["_build", "examples"]
# ``grid`` names an attribute of several classes: a word in backticks need not be a link
suppress_warnings = ["ref.python"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "groupwise"
autodoc_typehints = "none"  # the docstrings give shapes, which say more than ``Tensor``
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "abort_on_example_error": True,
    "show_memory": False,
    "min_reported_time": 1,
    "remove_config_comments": True,
}

html_theme = "furo"
html_title = f"gpx {release}"


# The docstrings are plain text for the reader of the source: |y - K mu|^2 is a norm there, not a
# substitution of reStructuredText. Everything outside of ``literals`` is therefore escaped.
LITERAL = re.compile(r"(``.*?``)")
FORMULA = re.compile(r"[|*]|_(?!\w)")


def escape_formulas(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Escape bars, asterisks and trailing underscores in the lines of a docstring, in place."""
    inside = False
    for number, line in enumerate(lines):
        pieces = LITERAL.split(line)
        for k, piece in enumerate(pieces):
            if k % 2 == 0:
                before, *after = piece.split("``")
                texts = [before, *after]
                for j, text in enumerate(texts):
                    if not inside:
                        texts[j] = FORMULA.sub(r"\\\g<0>", text)
                    if j < len(texts) - 1:
                        inside = not inside
                pieces[k] = "``".join(texts)
        lines[number] = "".join(pieces)


def setup(app: Any) -> None:
    """Connect ahead of napoleon, which makes field lists of what is escaped by then."""
    app.connect("autodoc-process-docstring", escape_formulas, priority=100)
