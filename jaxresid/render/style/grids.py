"""Tables without lines: figures on the left, what they are of on the right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from jaxresid.base.text.units import format_bytes


def figure_grid(figures: int = 1) -> Table:
    """Return an empty table with so many columns of figures, and one of text."""
    table = Table.grid(padding=(0, 2))
    for _ in range(figures):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def bytes_grid(rows: Iterable[tuple[int, RenderableType]]) -> Table:
    """Return a table of bytes, each with what they are of."""
    table = figure_grid()
    for nbytes, what in rows:
        table.add_row(Text(format_bytes(nbytes), style="cyan"), what)
    return table


def shares_grid(rows: Iterable[tuple[int, str, RenderableType]]) -> Table:
    """Return a table of bytes, each with its share of something and what it is of."""
    table = figure_grid(2)
    for nbytes, share, what in rows:
        figure = Text(format_bytes(nbytes), style="cyan")
        table.add_row(figure, Text(share, style="dim"), what)
    return table


def times_text(count: int) -> Text:
    """Return how many equal things a row is of, to stand before it: `×4 `; '' for one."""
    return Text(f"×{count} " * (count > 1), style="bold magenta")


def smaller_text(sizes: Sequence[int], one: str = "row") -> str:
    """Return how much is not shown, of which these are the bytes: `2 smaller rows, 1.25 GiB`."""
    plural = "s" * (len(sizes) != 1)
    return f"{len(sizes)} smaller {one}{plural}, {format_bytes(sum(sizes))}"
