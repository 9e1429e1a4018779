"""The build of the documentation: `sphinx-build -W --keep-going docs docs/_build`.

What is generated from the code is generated here, at each build.
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import drawing  # noqa: E402
import generate  # noqa: E402
from notebook import NotebookParser  # noqa: E402
from pygments import lexer, token  # noqa: E402

import jaxresid  # noqa: E402
from jaxresid.base.urls import DOCUMENTATION, REPOSITORY  # noqa: E402

project = "jaxresid"
author = "The jaxresid authors"
copyright = author
version = release = jaxresid.__version__
html_title = f"jaxresid {release}"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
smartquotes = False  # quotes in help texts are to be typed
html_baseurl = "" if DOCUMENTATION is None else f"{DOCUMENTATION}/"
if REPOSITORY is not None:
    html_theme_options = {
        "source_repository": REPOSITORY,
        "source_branch": "main",
        "source_directory": "docs/",
    }

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_use_ivar = True
# A single backquote in a docstring is code, as in Markdown.
default_role = "code"


class ConsoleLexer(lexer.RegexLexer):
    """Commands behind `$ `; all else is output, in whatever language."""

    name, aliases = "Console", ["console"]
    tokens = {  # noqa: RUF012
        "root": [
            (r"^(\$ )(.*\n)", lexer.bygroups(token.Generic.Prompt, token.Generic.Strong)),
            (r".*\n", token.Generic.Output),
        ]
    }


def _inflected(app, what, name, obj, options, lines):
    """Let a plural follow code, as in `Report`s: reStructuredText wants it escaped."""
    lines[:] = [re.sub(r"(`[^`]+`)(\w?)", _escaped, line) for line in lines]


def _escaped(match):
    return f"{match[1]}\\ {match[2]}" if match[2] else match[1]


def _published(app, docname, source):
    """Name the repository where a page has the placeholder, once it has an address."""
    if REPOSITORY is not None:
        source[0] = source[0].replace("<this repository's URL>", REPOSITORY)


def setup(app):
    """Generate the reference, draw the gallery, and read notebooks."""
    generate.write(HERE)
    drawing.draw(HERE / "gallery")
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    app.add_lexer("console", ConsoleLexer)
    app.connect("autodoc-process-docstring", _inflected)
    app.connect("source-read", _published)
