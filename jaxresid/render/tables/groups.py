"""The table of residuals that were summed by what they have in common."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from jaxresid.base.text.safe_text import safe_value
from jaxresid.base.text.units import format_bytes
from jaxresid.render.style.columns import bytes_unit
from jaxresid.render.style.words import percent, short_path
from jaxresid.results import ResidualGroup, ResidualGroups

_GAP = 2  # columns between columns
_FIGURES = 3  # columns before those of the keys
_LEAST_CODE = 20  # columns: less of it says nothing
# What stands where residuals have nothing of a key.
_NONE = {
    "line": "(line unknown)",
    "file": "(file unknown)",
    "function": "(function unknown)",
    "module": "(no module)",
    "name": "(unnamed)",
    "primitive": "(not computed)",
    "argument": "(no argument)",
    "phase": "(never read)",
}


def render_groups(groups: ResidualGroups) -> RenderableType:
    """Return the table of groups, biggest first."""
    groups = safe_value(groups)
    total = f"{format_bytes(groups.nbytes)} in all of {groups.target.name}"
    return Group(_Table(groups), Text(total, style="dim"))


class _Table:
    """The groups, with as much of their code as there is room for beside them."""

    def __init__(self, groups: ResidualGroups) -> None:
        unit = bytes_unit(row.nbytes for row in groups.rows)
        self._headings = [unit.name, "share", "values", *groups.by]
        self._code = [row.code for row in groups.rows]
        self._cells = [
            [
                *(unit.text(row.nbytes), percent(row.nbytes, groups.nbytes), str(row.count)),
                *_keys(groups, row),
            ]
            for row in groups.rows
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = zip(self._headings, *self._cells, strict=True)
        left = options.max_width - sum(max(map(cell_len, column)) + _GAP for column in columns)
        has_code = any(self._code) and left >= _LEAST_CODE
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for heading in self._headings[:_FIGURES]:
            table.add_column(heading, justify="right", no_wrap=True)
        for heading in self._headings[_FIGURES:]:
            table.add_column(heading, overflow="fold")
        if has_code:
            table.add_column("code", no_wrap=True, max_width=left, style="dim")
        for cells, code in zip(self._cells, self._code, strict=True):
            table.add_row(*map(Text, [*cells, *[code] * has_code]))
        for line in console.render_lines(table, options, pad=False):
            text = Text.assemble(*((each.text, each.style or "") for each in line))
            text.rstrip()
            yield text


def print_groups(groups: ResidualGroups) -> None:
    """Print the table to stdout, or into the notebook's cell."""
    Console(highlight=False).print(render_groups(groups))


def _keys(groups: ResidualGroups, row: ResidualGroup) -> list[str]:
    found = []
    for key, held in zip(groups.by, row.keys, strict=True):
        shown = _NONE.get(key, "") if held is None else held
        found.append(short_path(shown) if key in ("line", "file") else shown)
    return found
