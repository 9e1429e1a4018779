"""A difference as text: what changed in one sentence, then the figures, lines and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from jaxresid.base.text.safe_text import safe_value
from jaxresid.render.diff import words
from jaxresid.render.style.wrapping import FlowingParts
from jaxresid.results import Difference, LineDifference

_ROWS = 24  # of a screen
# How many lines of code and how many checkpoints are shown; the first that fit are taken.
_SIZES = ((5, 3), (4, 3), (4, 2), (3, 2), (2, 2), (2, 1), (1, 1))
_VALUES = 1  # of a line
_INDENT = 13
_LEAST_CODE = 20  # columns


def print_difference(difference: Difference, *, all: bool = False) -> None:
    """Print a difference to stdout."""
    Console(highlight=False).print(render_difference(difference, all=all))


def render_differences(differences: Sequence[Difference], *, all: bool = False) -> RenderableType:
    """Return differences one below the other, an empty line between them."""
    parts: list[RenderableType] = []
    for difference in differences:
        parts += [Text(""), render_difference(difference, all=all)]
    return Group(*parts[1:])


def render_difference(difference: Difference, *, all: bool = False) -> RenderableType:
    """Return a difference as text of a screen, as far as its sentences have room there.

    Args:
      difference: the difference.
      all: whether to show every line and checkpoint that differs, however long that is.
    """
    safe = safe_value(difference)
    return Group(*_parts(safe, None, None)) if all else _Screen(safe)


@dataclass(frozen=True, slots=True)
class _Screen:
    """As much of a difference as a screen has room for."""

    difference: Difference

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for lines, checkpoints in _SIZES:
            group = Group(*_parts(self.difference, lines, checkpoints))
            if len(console.render_lines(group, options, pad=False)) <= _ROWS:
                break
        yield group


def _parts(
    difference: Difference, lines: int | None, checkpoints: int | None
) -> Iterator[RenderableType]:
    """Yield the parts of a difference.

    Args:
      difference: the difference.
      lines: how many lines of code to show; None: all.
      checkpoints: how many checkpoints to show; None: all.
    """
    yield Text(words.headline(difference), style="bold")
    yield FlowingParts(words.sides_parts(difference), style="dim")
    yield from (Text(note, style="dim") for note in difference.notes)
    if difference.is_same:
        return
    if figures := list(words.figures(difference)):
        yield Text("")
        yield from _figures(figures)
    yield from _lines(difference, lines)
    yield from _checkpoints(difference, checkpoints)
    yield from _others(difference, lines)


def _figures(rows: Sequence[tuple[str, str, str, str]]) -> Iterator[Text]:
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for name, was, now, growth in rows:
        figures = f"{was.rjust(widths[1])} → {now.rjust(widths[2])}"
        yield Text(f"{name.ljust(widths[0])}  {figures}  {growth}")


def _lines(difference: Difference, most: int | None) -> Iterator[RenderableType]:
    if not difference.lines:
        return
    yield Text("lines that differ most", style="dim")
    ordered = words.by_size(difference.lines)
    for line in ordered[:most]:
        yield _LineRows(line, words.is_information(difference), is_short=most is not None)
    if rest := ordered[len(ordered) if most is None else most :]:
        yield Text(f"{words.lines_summary(rest)}: --all shows them", style="dim")


@dataclass(frozen=True, slots=True)
class _LineRows:
    """A line of code: its figure, place and code; below them its values.

    Attributes:
      line: the line.
      is_information: whether keeping more does no harm.
      is_short: whether each of the two rows is cut where the console ends.
    """

    line: LineDifference
    is_information: bool
    is_short: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = self.line
        growth = words.line_growth(line)
        more = "" if self.is_information else "red"
        style = "green" if growth.startswith(words.MINUS) else more
        head = Text.assemble(
            (growth.rjust(_INDENT - 2), style),
            "  ",
            words.where_text(line.location, line.scope),
            (f"  {words.EARLIER}" if words.is_gone(line) else "", "dim"),
        )
        code = Text(line.location.code if line.location else "", style="green")
        room = options.max_width - head.cell_len - 2
        if code.cell_len <= room or (self.is_short and room >= _LEAST_CODE):
            yield Text.assemble(head, "  ", _cut(code, room))
        else:
            yield head
            below = options.max_width - _INDENT
            yield Padding(_cut(code, below) if self.is_short else code, (0, 0, 0, _INDENT))
        notes = words.line_notes(line, _VALUES if self.is_short else None)
        if not notes:
            return
        if self.is_short:
            text = Text(" · ".join(notes), style="dim")
            yield Padding(_cut(text, options.max_width - _INDENT), (0, 0, 0, _INDENT))
        else:
            yield Padding(FlowingParts(notes, style="dim"), (0, 0, 0, _INDENT))


def _cut(text: Text, width: int) -> Text:
    """Return a text of at most a width, which ends in an ellipsis where it is cut."""
    cut = text.copy()
    cut.truncate(max(width, 1), overflow="ellipsis")
    return cut


def _checkpoints(difference: Difference, most: int | None) -> Iterator[RenderableType]:
    if not difference.checkpoints:
        return
    yield Text("checkpoints", style="dim")
    for each in difference.checkpoints[:most]:
        parts = [words.checkpoint_heading(each), *words.checkpoint_notes(each)]
        yield FlowingParts(parts, indent=2)
    rest = len(difference.checkpoints) - len(difference.checkpoints[:most])
    if rest:
        yield Text(f"{rest} more: --all shows them", style="dim")


def _others(difference: Difference, most: int | None) -> Iterator[RenderableType]:
    """Yield the arguments, where there is room or nothing else, and the findings."""
    if difference.inputs and (most is None or not difference.lines):
        yield Text("arguments that the backward pass reads, in memory anyway", style="dim")
        yield FlowingParts([words.value_text(value) for value in difference.inputs[:most]])
    for word, findings in (("new", difference.found), ("gone", difference.gone)):
        for finding in findings:
            at = f" at {words.where_text(finding.location)}" if finding.location else ""
            yield Text(f"{word} finding: {finding.name}{at}")
