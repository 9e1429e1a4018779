"""What goes into a program without a gradient, what comes out, and what is given away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from jaxresid.base.text.layer_paths import folded, pattern
from jaxresid.base.text.units import format_bytes
from jaxresid.render.style.words import aval_text
from jaxresid.results import ProgramArray, Report

_TOP = 8
_NAMES = 3


def arrays_text(report: Report) -> str:
    """Return what goes in and comes out, in a sentence; '' where nothing does.

    An example is `arguments 2.01 GiB, of them 2.00 GiB (cache) returned updated and not donated;
    outputs 2.00 GiB`.
    """
    parts = []
    if report.arguments:
        each = [f"arguments {_total(report.arguments)}"]
        for what, is_it in _SHARES:
            those = [a for a in report.arguments if is_it(a) and a.nbytes]
            if those:
                each.append(f"of them {_total(those)} ({_names(those)}) {what}")
        parts.append(", ".join(each))
    if report.outputs:
        host = [a for a in report.outputs if a.aval.memory == "host"]
        more = f", of them {_total(host)} in host memory" if host else ""
        parts.append(f"outputs {_total(report.outputs)}{more}")
    return "; ".join(parts)


def render_arrays(report: Report, most: int | None = _TOP) -> Iterator[RenderableType]:
    """Yield a table of the arguments and one of the outputs, the biggest first.

    Args:
      report: the report.
      most: show at most so many rows of each; None: all.
    """
    for title, arrays, note in (
        ("arguments", report.arguments, _of_argument),
        ("outputs", report.outputs, _of_output),
    ):
        if not arrays:
            continue
        rows = _rows(arrays)
        yield Text.assemble((title, "bold"), f" {_total(arrays)}")
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        for row in rows[:most]:
            figures = Text(format_bytes(sum(a.nbytes for a in row)), style="cyan")
            table.add_row(figures, _row_text(row, note))
        yield table
        if rest := rows[len(rows[:most]) :]:
            nbytes = sum(a.nbytes for row in rest for a in row)
            plural = "row" if len(rest) == 1 else "rows"
            yield Text(f"{len(rest)} smaller {plural}, {format_bytes(nbytes)}", style="dim")


def _is_written(array: ProgramArray) -> bool:
    """Return whether an argument is a Ref, which is written where it stands."""
    return array.is_donated and array.counterpart == array.path


def _is_given(array: ProgramArray) -> bool:
    return array.is_donated and array.counterpart not in (None, array.path)


def _is_kept(array: ProgramArray) -> bool:
    return not array.is_donated and array.counterpart is not None


def _is_on_host(array: ProgramArray) -> bool:
    return array.aval.memory == "host"


_SHARES: tuple[tuple[str, Callable[[ProgramArray], bool]], ...] = (
    ("changed in place", _is_written),
    ("donated and returned updated", _is_given),
    ("returned updated and not donated", _is_kept),
    ("in host memory", _is_on_host),
)


def _total(arrays: Sequence[ProgramArray]) -> str:
    return format_bytes(sum(array.nbytes for array in arrays))


def _names(arrays: Sequence[ProgramArray]) -> str:
    """Return the names of the arguments that arrays are in."""
    names = list(dict.fromkeys(pattern(_root(a.path)) or "constants" for a in arrays))
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more


def _root(path: str) -> str:
    return path.partition("[")[0].partition(".")[0]


def _rows(arrays: Sequence[ProgramArray]) -> list[list[ProgramArray]]:
    """Return arrays that differ in an index alone, as those of repeated layers do, as one row."""
    groups: dict[tuple[object, ...], list[ProgramArray]] = {}
    for array in arrays:
        other = None if array.counterpart is None else pattern(array.counterpart)
        key = (pattern(array.path), array.aval, array.kind, array.is_donated, other)
        groups.setdefault(key, []).append(array)
    return sorted(groups.values(), key=lambda row: -sum(a.nbytes for a in row))


def _row_text(row: Sequence[ProgramArray], note: Callable[[Sequence[ProgramArray]], str]) -> Text:
    first = row[0]
    path = folded(a.path for a in row) or ("constant" if first.kind == "constant" else "")
    text = Text()
    if len(row) > 1:
        text.append(f"×{len(row)} ", style="bold magenta")
    text.append("  ".join(filter(None, (aval_text(first.aval), path))))
    text.append(f"  {noted}" if (noted := note(row)) else "", style="dim")
    return text


def _of_argument(row: Sequence[ProgramArray]) -> str:
    if _is_written(row[0]):
        return "changed in place"
    given = "donated" if row[0].is_donated else "not donated"
    if row[0].counterpart is None:
        return given if row[0].is_donated else ""
    where = folded(a.counterpart or "" for a in row)
    return f"returned updated{f' as {where}' if where else ''}, {given}"


def _of_output(row: Sequence[ProgramArray]) -> str:
    if row[0].counterpart is None:
        return ""
    return f"next value of {folded(a.counterpart or '' for a in row)}"
