"""Notebooks as pages: a parser that turns cells and their outputs into Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser


class NotebookParser(MystParser):
    """The parser of `.ipynb` files, which shows the outputs that they hold."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Parse the text of a notebook."""
        super().parse("\n\n".join(markdown(json.loads(inputstring))) + "\n", document)


def markdown(notebook: dict[str, Any]) -> Iterator[str]:
    """Yield the cells of a notebook and their outputs as Markdown."""
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source
        elif cell["cell_type"] == "code":
            yield f"```python\n{source}\n```"
            for output in cell["outputs"]:
                yield from _output(output)


def _output(output: dict[str, Any]) -> Iterator[str]:
    data = output.get("data", {})
    if "text/html" in data:
        html = "".join(data["text/html"])
        yield f'```{{raw}} html\n<div class="notebook-output">{html}</div>\n```'
    else:
        text = output.get("text") or data["text/plain"]
        yield f"```text\n{''.join(text).rstrip()}\n```"
