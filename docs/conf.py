"""How Sphinx makes the site: the pages of this folder, and a reference out of the docstrings (`make docs`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ingot

ROOT = Path(__file__).parent.parent
FROM_ROOT = {"index": "README.md", "contributing": "CONTRIBUTING.md"}  # pages that begin with a file beside docs/
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)")
OUTSIDE = re.compile(r"(?<!!)\[([^\]\[]+)\]\((\.\./[^)#\s]+)\)")

project = "ingot"
version = release = ingot.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns: list[str] = []
html_theme = "furo"
html_title = f"ingot {release}"
html_copy_source = False
html_show_copyright = False

myst_heading_anchors = 4
highlight_language = "none"  # of blocks that name no language, as on any page of Markdown

default_role = "literal"
add_module_names = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
nitpicky = False  # names of types in signatures are no links where their class has no entry


def as_prose(app: object, what: str, name: str, found: object, options: object, lines: list[str]) -> None:
    """Our docstrings are prose with code in backticks, and indented blocks of code behind an empty line. What else
    reStructuredText would read as markup is text.
    """
    written: list[str] = []
    code = prose_before = False
    for line in lines:
        if line.strip():
            starts = line.startswith("    ") and prose_before and written[-1] == ""
            if starts:
                written += [".. code-block:: python", ""]
            code = starts or (code and line.startswith("    "))
            prose_before = not line.startswith(" ")
        if not code:
            pieces = re.split(r"(`[^`]+`)", line)
            pieces[::2] = [re.sub(r"([\\*|])|(?<=\w)(_)(?!\w)", r"\\\1\2", piece) for piece in pieces[::2]]
            line = "".join(pieces)
        written.append(line)
    lines[:] = written


def from_here(target: str) -> str:
    """A link's path, from docs/ instead of from the root."""
    pages = {name: f"{page}.md" for page, name in FROM_ROOT.items()}
    return target.removeprefix("docs/") if target.startswith("docs/") else pages.get(target, f"../{target}")


def read(app: Any, page: str, source: list[str]) -> None:
    """The files of FROM_ROOT come first in their pages; files outside of docs/ become downloads."""
    text = source[0]
    if page in FROM_ROOT:
        app.env.note_dependency(str(ROOT / FROM_ROOT[page]))
        begin = (ROOT / FROM_ROOT[page]).read_text(encoding="utf-8")
        text = LINK.sub(lambda found: f"]({from_here(found[1])}", begin) + "\n" + text
    source[0] = OUTSIDE.sub(r"{download}`\1 <\2>`", text)


def setup(app: Any) -> None:
    """Docstrings before napoleon, which adds markup of its own."""
    app.connect("source-read", read)
    app.connect("autodoc-process-docstring", as_prose, priority=400)
