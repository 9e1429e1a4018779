"""The forward and the backward jaxpr for a terminal, side by side where there is room."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from jaxresid.base.text.safe_text import safe_value
from jaxresid.render.style.words import aval_text, line_text
from jaxresid.results import Equation, Listing, Location, Split, Variable

_SIDE_BY_SIDE = 120
_GAP = 3
_RESIDUAL = "bold yellow"


def render_split(split: Split, *, source: bool) -> _Sides:
    """Return the two listings; `source` adds each eqn's line of code."""
    return _Sides(safe_value(split), source)


@dataclass(frozen=True, slots=True)
class _Sides:
    split: Split
    source: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        split = self.split
        heading = Text(split.target.name, style="bold")
        heading.append(f"  jax {split.jax.version}\n", style="dim")
        heading.append("#n", style=_RESIDUAL)
        heading.append(
            f" is residual n of {len(split.residuals)}, numbered as in the JSON of a report;"
            " in a loop's body, one trip of it.\n",
            style="dim",
        )
        yield heading
        sides = [("forward", split.forward), ("backward", split.backward)]
        beside = options.max_width >= _SIDE_BY_SIDE
        width = (options.max_width - _GAP) // 2 if beside else options.max_width
        texts = [
            Text("\n").join(
                piece
                for line in _lines(title, listing, self.source)
                for piece in _hanging(line, console, width)
            )
            for title, listing in sides
        ]
        if beside:
            table = Table.grid(padding=(0, _GAP, 0, 0), expand=True)
            table.add_column(ratio=1, overflow="fold")
            table.add_column(ratio=1, overflow="fold")
            table.add_row(*texts)
            yield table
        else:
            yield texts[0]
            yield Text()
            yield texts[1]


@dataclass(frozen=True, slots=True)
class _Line:
    """A line and how far its continuation is indented."""

    text: Text
    indent: int = 0


def _hanging(line: _Line, console: Console, width: int) -> Iterator[Text]:
    """Yield a line, wrapped under itself."""
    pad = " " * (line.indent + 4)
    first, *rest = line.text.wrap(console, width) or [Text()]
    yield first
    if rest:
        left = Text(" ").join(piece.copy() for piece in rest)
        for piece in left.wrap(console, width - len(pad)):
            yield Text(pad).append_text(piece)


def _lines(title: str, listing: Listing, source: bool) -> Iterator[_Line]:
    count = len(listing.equations) + listing.hidden
    yield _Line(Text(f"{title} pass: {count} eqns", style="bold underline"))
    yield from _body(listing, 0, source)


def _body(listing: Listing, depth: int, source: bool) -> Iterator[_Line]:
    indent = 2 * depth
    pad = " " * indent
    for value in listing.inputs:
        if depth == 0 or value.residual is not None:
            yield _Line(Text.assemble(f"{pad}in  ", _declared(value)), indent)
    place: Location | None = None
    for equation in listing.equations:
        here = equation.location
        if source and here is not None and (place is None or _line_of(place) != _line_of(here)):
            text = Text(f"{pad}{line_text(here)}  ", style="dim")
            yield _Line(text.append(here.code, style="green not dim"), indent)
            place = here
        yield _Line(_equation(equation, pad + "  " * source), indent)
        for i, inner in enumerate(equation.inner):
            if len(equation.inner) > 1:
                yield _Line(Text(f"{pad}  branch {i}", style="dim"), indent)
            yield from _body(inner, depth + 1 + source, source)
            place = None
    if listing.hidden:
        hidden = f"{pad}… {listing.hidden} more eqns (--max-eqns shows them)"
        yield _Line(Text(hidden, style="dim"), indent)
    outputs = Text(" ").join([Text(f"{pad}out"), *(_used(value) for value in listing.outputs)])
    yield _Line(outputs, indent)


def _line_of(location: Location) -> tuple[str, int]:
    return location.file, location.line


def _equation(equation: Equation, pad: str) -> Text:
    line = Text(pad)
    for value in equation.outputs:
        line.append_text(_declared(value)).append(" ")
    if equation.outputs:
        line.append("= ")
    line.append(equation.primitive, style="cyan")
    if equation.params:
        params = " ".join(f"{name}={value}" for name, value in equation.params)
        line.append(f"[{params}]", style="dim")
    for value in equation.inputs:
        line.append(" ").append_text(_used(value))
    if equation.folded:
        line.append(f" {{… {equation.folded} eqns}}", style="dim")
    return line


def _declared(value: Variable) -> Text:
    style = _RESIDUAL if value.residual is not None else ""
    text = Text(value.name, style=style)
    if value.aval is not None and value.name != "_":
        text.append(f":{aval_text(value.aval)}", style=style)
    return text.append_text(_number(value))


def _used(value: Variable) -> Text:
    style = _RESIDUAL if value.residual is not None else ""
    return Text(value.name, style=style).append_text(_number(value))


def _number(value: Variable) -> Text:
    return Text("" if value.residual is None else f"#{value.residual}", style=_RESIDUAL)
