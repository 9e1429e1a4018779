"""Lines that break where a reader would break them: between parts, never within a figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.text import Text

from jaxresid.render.style.words import line_text, source_notes
from jaxresid.results import Location, Source


@dataclass(frozen=True, slots=True)
class FlowingParts:
    """Parts side by side, as many as fit in each line.

    Attributes:
      parts: the texts; none of them is split as long as it fits in a line.
      separator: what is printed between two parts of a line.
      style: the style of the lines.
      indent: how many spaces the further lines start with.
    """

    parts: Sequence[str | Text]
    separator: str = " · "
    style: str = ""
    indent: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        pad = " " * self.indent
        line = Text(style=self.style)
        for part in self.parts:
            text = Text(part) if isinstance(part, str) else part.copy()
            begun = bool(line.plain.strip())
            needed = line.cell_len + len(self.separator) * begun + text.cell_len
            if begun and needed > options.max_width:
                yield from _wrapped(line, console, options.max_width, pad)
                line, begun = Text(pad, style=self.style), False
            line.append(self.separator if begun else "").append_text(text)
        yield from _wrapped(line, console, options.max_width, pad)


def _wrapped(line: Text, console: Console, width: int, pad: str) -> Iterator[Text]:
    """Yield a line, wrapped where it is wider than `width`, further lines after `pad`.

    Only a single part can be too long.
    """
    if line.cell_len <= width:
        yield line
        return
    first, *rest = line.wrap(console, width)
    yield first
    left = Text(" ").join(rest)
    for piece in left.wrap(console, max(width - len(pad), 1)):
        yield Text(pad).append_text(piece)


@dataclass(frozen=True, slots=True)
class LocationLines:
    """A line of source: its code is beside its location where both fit, else under it."""

    location: Location

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        where = Text(line_text(self.location))
        code = Text(self.location.code, style="green")
        if where.cell_len + 2 + code.cell_len <= options.max_width:
            yield Text.assemble(where, "  ", code)
        else:
            yield where
            yield Padding(code, (0, 0, 0, 2))


@dataclass(frozen=True, slots=True)
class SourceLines:
    """The source of something: the user's line, and under it the library's line and the module.

    Attributes:
      source: where it is in the user's code and in a library's.
      before, after: further notes for the line under it, before and after those of the source.
    """

    source: Source
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.source.location is not None:
            yield LocationLines(self.source.location)
        notes = (*self.before, *source_notes(self.source), *self.after)
        if notes:
            yield Text(" · ".join(notes), style="dim")
