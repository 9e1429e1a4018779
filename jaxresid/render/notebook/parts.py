"""What every view in a notebook is made of. It is readable where styles are stripped."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape, unescape

from rich.console import Console, RenderableType

_WIDTH = 100  # columns of a text in a notebook
_PRE = '<pre style="line-height: normal; font-family: monospace">{code}</pre>'
_DESCRIBED = re.compile(r"<title id=\"title\">([^<]*+)</title><desc id=\"desc\">([^<]*+)</desc>")


def view(*parts: str) -> str:
    """Return the parts of a view as one."""
    return f"<div class='jaxresid'>{''.join(parts)}</div>"


def plain_lines(renderables: Iterable[RenderableType], width: int = _WIDTH) -> list[str]:
    """Return what rich prints as lines of text."""
    console = _console(width)
    for renderable in renderables:
        console.print(renderable, crop=False)
    return console.export_text().rstrip("\n").split("\n")


def _console(width: int) -> Console:
    """Return a console that keeps what is printed, also where rich would put it into the page."""
    return Console(
        file=io.StringIO(), record=True, highlight=False, width=width, force_jupyter=False
    )


def answered(lines: Sequence[str]) -> str:
    """Return the lines that are the answer, the first one in bold."""
    first, *others = (escape(line.strip()) for line in lines)
    return f"<p>{'<br>'.join([f'<b>{first}</b>', *others])}</p>"


def pictured(svg: str) -> str:
    """Return a picture as an image, which says in words what it shows.

    An image keeps its own colours and font sizes, whatever the page does to its elements, and is
    there where a notebook removes SVG.
    """
    match = _DESCRIBED.search(svg)
    words = ". ".join(map(unescape, match.groups())) if match else ""
    data = base64.b64encode(svg.encode()).decode()
    return (
        f'<p><img alt="{escape(words)}" style="max-width: 100%"'
        f' src="data:image/svg+xml;base64,{data}"></p>'
    )


def folded(summary: str, *parts: str, is_open: bool = False) -> str:
    """Return parts that a click unfolds; nothing where there are none."""
    inside = "".join(parts)
    if not inside:
        return ""
    opened = " open" if is_open else ""
    return f"<details{opened}><summary>{escape(summary)}</summary>{inside}</details>"


def printed(renderable: RenderableType) -> str:
    """Return what rich prints as preformatted text with its colours."""
    console = _console(_WIDTH)
    console.print(renderable, crop=False)
    return console.export_html(code_format=_PRE, inline_styles=True)


def paragraph(text: str) -> str:
    """Return a text as a paragraph."""
    return f"<p>{escape(text)}</p>"


def table(names: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    """Return a table; nothing where it has no rows."""
    head = "".join(_cells("th", names))
    body = "".join(f"<tr>{''.join(_cells('td', row))}</tr>" for row in cells)
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return whole if body else ""


def _cells(tag: str, row: Sequence[str]) -> Iterator[str]:
    """Yield the cells of a row; notebooks would have all of them at the right."""
    for i, cell in enumerate(row):
        style = "text-align: left" if i else "white-space: nowrap"
        yield f'<{tag} style="{style}">{escape(cell)}</{tag}>'
