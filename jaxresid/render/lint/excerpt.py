"""Source with a span underlined, as compilers show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxresid.base.text.safe_text import visible
from jaxresid.base.violations import Span
from jaxresid.render.lint.layout import Paint, char_width
from jaxresid.render.lint.run import last_row

_TAB = 4
_LEAST_ROOM = 20
_CUT = "…"

_Glyphs = list[tuple[str, int]]  # what stands for each code point, and its width


@dataclass(frozen=True, slots=True)
class _Marked:
    """A row whose columns left..right are underlined, with the first `offset` columns cut off."""

    row: int
    left: int
    right: int
    offset: int


def gutter_width(lines: Sequence[str], span: Span) -> int:
    """Return the number of digits of the greatest row that `excerpt` may show."""
    return len(str(min(last_row(span) + 1, max(len(lines), 1))))


def excerpt(lines: Sequence[str], span: Span, width: int, paint: Paint, style: str) -> list[str]:
    """Return the lines of a span, underlined, with one more line before and after.

    Of a span over more than three lines only the first and last are shown. Lines that are too
    long are cut around the span. The result is empty where the lines are not known.
    """
    if not 1 <= span.row <= len(lines):
        return []
    digits = gutter_width(lines, span)
    room = max(_LEAST_ROOM, width - digits - 3)
    bar = paint("gutter", f"{'':{digits}} |")

    def source(row: int, offset: int) -> list[str]:
        text = _cut(_glyphs(lines[row - 1]), offset, room)
        return [f"{paint('gutter', f'{row:{digits}} |')} {text}".rstrip()]

    def context(row: int, offset: int) -> list[str]:
        known = 1 <= row <= len(lines) and lines[row - 1].strip()
        return source(row, offset) if known else []

    marked = _marked(lines, span, room)
    first, last = marked[0], marked[-1]
    shown = context(first.row - 1, first.offset)
    for mark in marked:
        if mark is last and last.row - first.row > len(marked) - 1:
            shown.append(paint("gutter", "..."))
        left, right = max(mark.left - mark.offset, 0), min(mark.right - mark.offset, room)
        carets = paint(style, "^" * max(right - left, 1))
        shown += [*source(mark.row, mark.offset), f"{bar} {' ' * left}{carets}"]
    return [bar, *shown, *context(last.row + 1, last.offset), bar]


def _marked(lines: Sequence[str], span: Span, room: int) -> list[_Marked]:
    first, last = span.row, min(max(last_row(span), span.row), len(lines))
    rows = range(first, last + 1) if last - first <= 2 else (first, last)
    marked = []
    for row in rows:
        line = lines[row - 1]
        # Where the span runs on, neither indentation nor trailing space is underlined.
        start = span.column if row == first else len(line) - len(line.lstrip())
        ends_here = row == last == span.end_row
        glyphs = _glyphs(line)
        left = _columns(glyphs, start)
        right = _columns(glyphs, span.end_column if ends_here else len(line.rstrip()))
        right = max(right, left + 1)
        offset = _offset(_columns(glyphs, len(glyphs)), left, right, room)
        marked.append(_Marked(row, left, right, offset))
    return marked


def _glyphs(line: str) -> _Glyphs:
    """Return what is printed for each code point of a line, with its width in columns.

    Tabs become spaces up to the next stop, whatever the terminal's own stops are.
    """
    glyphs: _Glyphs = []
    column = 0
    for char in line:
        if char == "\t":
            wide = _TAB - column % _TAB
            glyphs.append((" " * wide, wide))
        else:
            shown = visible(char)
            wide = char_width(shown)
            glyphs.append((shown, wide))
        column += wide
    return glyphs


def _columns(glyphs: _Glyphs, count: int) -> int:
    return sum(wide for _, wide in glyphs[:count])


def _offset(total: int, left: int, right: int, room: int) -> int:
    """Return how many columns to hide on the left so that columns left..right show."""
    if total <= room or right < room:
        return 0
    margin = max(4, (room - (right - left)) // 2)
    return max(0, min(left - margin, total - room))


def _cut(glyphs: _Glyphs, offset: int, room: int) -> str:
    """Return columns offset..offset + room, with an ellipsis for what is missing at either end."""
    total = _columns(glyphs, len(glyphs))
    start = offset + 1 if offset else 0
    stop = offset + room - 1 if total > offset + room else total
    text = _CUT if offset else ""
    column, filled = 0, start
    for shown, wide in glyphs:
        if column >= start and column + wide <= stop:
            text += (
                " " * (column - filled) + shown
            )  # the end cut off a wide character shows as space
            filled = column + wide
        column += wide
    return text + (_CUT if stop < total else "")
