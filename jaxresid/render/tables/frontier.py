"""The trade of memory for compute: peak against recompute as a plot of characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter

from rich.text import Text

from jaxresid.render.style.encodings import can_encode

HEIGHT = 12
_WIDTH = 60
_NARROWEST = 20


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """An entry of the table as a point; `recompute` is a share of the FLOPs without checkpoints."""

    recompute: float
    peak: int
    letter: str
    pareto: bool = False
    knee: bool = False


@dataclass(frozen=True, slots=True)
class _Strokes:
    """The characters of lines; at `turn` a step that went to the right goes down."""

    along: str
    down: str
    turn: str
    axis: str
    floor: str
    origin: str


_LINES = _Strokes("─", "│", "┐", "┤", "─", "└")
_ASCII = _Strokes("-", "|", "+", "|", "-", "+")


def plotted(points: Sequence[PlotPoint]) -> bool:
    """Return whether there is a trade to draw: at least two peaks and two recomputations."""
    return len({p.peak for p in points}) > 1 and len({p.recompute for p in points}) > 1


def plot(
    points: Sequence[PlotPoint],
    peaks: tuple[str, str],
    recomputes: tuple[str, str],
    width: int,
    encoding: str = "utf-8",
) -> tuple[list[Text], tuple[str, ...]]:
    """Return the lines of the plot, and the letters for which others left no room.

    Peak grows upwards and recompute to the right, each from the lowest to the highest. The steps
    join the Pareto points: what lies below them cannot be had. The knee is in brackets.

    Args:
      points: not all of one peak, nor all of one recompute (see `plotted`).
      peaks: the lowest and the highest peak as text.
      recomputes: the lowest and the highest recompute as text.
    """
    strokes = _LINES if can_encode("─│┐┤└", encoding) else _ASCII
    margin = max(map(len, peaks))
    columns = max(min(_WIDTH, width - margin - 3), _NARROWEST)
    places = _places(points, columns)
    grid: dict[tuple[int, int], tuple[str, str]] = {}
    _draw_steps(grid, [places[p] for p in points if p.pareto], strokes)
    hidden = _draw_points(grid, points, places)
    lines = []
    for y in range(HEIGHT):
        label = {0: peaks[1], HEIGHT - 1: peaks[0]}.get(y, "")
        line = Text.assemble((label.rjust(margin), "cyan"))
        line.append(f" {strokes.axis if label else strokes.down}", style="dim")
        cells = (grid.get((x, y), (" ", "")) for x in range(columns))
        for style, run in groupby(cells, key=itemgetter(1)):
            line.append("".join(character for character, _ in run), style=style)
        line.rstrip()
        lines.append(line)
    floor = f"{' ' * margin} {strokes.origin}{strokes.floor * columns}"
    lines.append(Text(floor, style="dim"))
    left, right = recomputes
    under = " " * (margin + 3) + left + right.rjust(columns - 2 - len(left))
    lines.append(Text(under, style="cyan"))
    return lines, hidden


def _places(points: Sequence[PlotPoint], columns: int) -> dict[PlotPoint, tuple[int, int]]:
    """Return the column and line of each point, with room for brackets left and right."""
    peaks = [p.peak for p in points]
    recomputes = [p.recompute for p in points]
    high, left = max(peaks), min(recomputes)
    across = (columns - 3) / (max(recomputes) - left)
    return {
        p: (
            1 + round((p.recompute - left) * across),
            round((high - p.peak) / (high - min(peaks)) * (HEIGHT - 1)),
        )
        for p in points
    }


def _draw_steps(
    grid: dict[tuple[int, int], tuple[str, str]],
    places: list[tuple[int, int]],
    strokes: _Strokes,
) -> None:
    places = sorted(set(places))
    for (x, y), (to_x, to_y) in pairwise(places):
        for column in range(x, to_x):
            grid[column, y] = strokes.along, "green"
        for line in range(y, to_y):
            grid[to_x, line] = strokes.down, "green"
        if x < to_x and y < to_y:
            grid[to_x, y] = strokes.turn, "green"


def _draw_points(
    grid: dict[tuple[int, int], tuple[str, str]],
    points: Sequence[PlotPoint],
    places: dict[PlotPoint, tuple[int, int]],
) -> tuple[str, ...]:
    """Draw the letters over the lines, and return those that are hidden.

    Where several fall in one place the knee is drawn, else a Pareto point, else the first.
    """
    drawn: set[tuple[int, int]] = set()
    hidden = []
    for p in sorted(points, key=lambda p: (not p.knee, not p.pareto)):
        x, y = places[p]
        if (x, y) in drawn:
            hidden.append(p.letter)
            continue
        drawn.add((x, y))
        grid[x, y] = p.letter, "bold green" if p.pareto else ""
        if p.knee:
            drawn |= {(x - 1, y), (x + 1, y)}
            grid[x - 1, y], grid[x + 1, y] = ("[", "bold green"), ("]", "bold green")
    return tuple(sorted(set(hidden)))
