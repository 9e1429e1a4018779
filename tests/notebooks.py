"""The notebooks of docs/, run as Jupyter would run them, without Jupyter.

    python tests/notebooks.py NOTEBOOK    # prints the notebook with the outputs of a run

The second cell is `In[2]`.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from update_readme import DOCS, ROOT, environment

NOTEBOOKS = tuple(
    page for page in sorted(DOCS.rglob("*.ipynb")) if "_build" not in page.relative_to(DOCS).parts
)


def executed(notebook: Path) -> str:
    """Return the text of a notebook with the outputs of a run in a process of its own."""
    return subprocess.run(
        [sys.executable, __file__, str(notebook)],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def run(text: str) -> str:
    """Return the text of a notebook with the outputs of a run in this process."""
    notebook = json.loads(text)
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        source = "".join(cell["source"])
        cell["execution_count"] = number
        cell["outputs"] = list(_outputs(source, number, names))
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _outputs(source: str, number: int, names: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what a cell prints, and the value of its last line."""
    file = f"In[{number}]"  # as a report calls the file of a cell
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, file, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), file, "eval"), names)
    if printed.getvalue():
        yield {"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())}
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data = {"text/html": _lines(value._repr_html_()), "text/plain": ["a report"]}
        yield {
            "data": data,
            "execution_count": number,
            "metadata": {},
            "output_type": "execute_result",
        }


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    sys.stdout.write(run(Path(sys.argv[1]).read_text()))
