"""What makes up the peak, as one bar and its legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.sparkline import can_encode
from jaxresid.render.style.words import kinds_text, percent
from jaxresid.render.style.wrapping import FlowingParts
from jaxresid.results import Compiled, Report

# Parts of less than this share are one part.
_SMALL = 0.01
_OTHERS = "other"
_FILLS = {  # of each kind: in blocks, in ASCII, and its colour
    "residual": ("█", "#", "cyan"),
    "parameters": ("▓", "=", "blue"),
    "argument": ("▞", "~", "blue"),
    "optimizer-state": ("▒", "%", "magenta"),
    "frozen-weights": ("▧", "*", "blue"),
    "gradient": ("░", "-", "green"),
    "temporary": ("▚", "+", "yellow"),
    "output": ("▤", "o", "white"),
    "batch": ("▥", ":", "white"),
    "state": ("▒", "%", "magenta"),
    "constant": ("▦", "c", "white"),
    _OTHERS: ("·", ".", "dim"),
}


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the peak: its kind, as in `Peak.breakdown` or `other`, and its bytes."""

    kind: str
    nbytes: int


def parts_of(report: Report) -> tuple[Part, ...]:
    """Return the parts of the peak, the biggest first; they add up to it.

    They are those of the estimate, or XLA's where there is none; none where neither is known.
    """
    breakdown: tuple[tuple[str, int], ...] = ()
    if report.peak is not None:
        breakdown = report.peak.breakdown
    elif report.compiled:
        breakdown = _of_compiled(report.compiled[0])
    each = [Part(kind, nbytes) for kind, nbytes in breakdown if nbytes]
    total = sum(part.nbytes for part in each)
    small = [part for part in each if part.nbytes < _SMALL * total]
    if len(small) > 1:
        each = [part for part in each if part not in small]
        each.append(Part(_OTHERS, sum(part.nbytes for part in small)))
    return tuple(each)


def _of_compiled(compiled: Compiled) -> tuple[tuple[str, int], ...]:
    if compiled.peak_nbytes is None or compiled.temp_nbytes is None:
        return ()
    outputs = (compiled.output_nbytes or 0) - (compiled.alias_nbytes or 0)
    rest = compiled.peak_nbytes - compiled.temp_nbytes - outputs
    found = (("argument", rest), ("output", outputs), ("temporary", compiled.temp_nbytes))
    return tuple(sorted(found, key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class PartsBar:
    """A bar as wide as the terminal, and the legend under it.

    Attributes:
      parts: the parts, the biggest first.
      encoding: the encoding of the stream that the text is for.
    """

    parts: Sequence[Part]
    encoding: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        blocks = can_encode("".join(fill[0] for fill in _FILLS.values()), self.encoding)
        bar = Text(no_wrap=True)
        total = sum(part.nbytes for part in self.parts)
        widths = columns_of([part.nbytes for part in self.parts], options.max_width)
        shown: list[Text] = []
        for part, width in zip(self.parts, widths, strict=True):
            block, plain, style = _FILLS[part.kind]
            fill = block if blocks else plain
            bar.append(fill * width, style=style)
            name = _OTHERS if part.kind == _OTHERS else kinds_text(part.kind)
            figures = f"{format_bytes(part.nbytes)} ({percent(part.nbytes, total)})"
            shown.append(Text.assemble((fill, style), f" {name} {figures}"))
        yield bar
        yield FlowingParts(shown, separator="  ")


def columns_of(values: Sequence[int], width: int) -> list[int]:
    """Return how many of `width` columns each value gets, by its share: those of the most rest."""
    total = sum(values)
    if not total:
        return [0] * len(values)
    found = [value * width // total for value in values]
    rest = sorted(range(len(values)), key=lambda i: -(values[i] * width % total))
    for i in rest[: width - sum(found)]:
        found[i] += 1
    return found
