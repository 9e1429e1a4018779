"""Axes: round numbers of bytes or percent, and where they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxresid.render.style.columns import bytes_unit
from jaxresid.render.svg.canvas import element, written

_MOST = 6


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers from `low` to `high`, along the pixels from `start` to `stop`."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a number."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        return self.start + share * (self.stop - self.start)


def ticks(low: float, high: float, unit: float = 1.0) -> tuple[float, ...]:
    """Return round numbers between two, at most seven, which are multiples of 1, 2 or 5 units."""
    span = (high - low) / unit
    if span <= 0:
        return (low,)
    step = 10.0 ** math.floor(math.log10(span / _MOST))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (factor * step) <= _MOST)
    first, last = math.ceil(low / unit / step - 1e-9), math.floor(high / unit / step + 1e-9)
    return tuple(number * step * unit for number in range(first, last + 1))


def bytes_axis(scale: Scale, left: float, right: float) -> str:
    """Return the lines and numbers of an axis of bytes, at the left of a chart."""
    unit = bytes_unit([round(scale.high)])
    values = ticks(scale.low, scale.high, unit.scale)
    return _lines(
        scale, [(value, f"{value / unit.scale:.6g} {unit.name}") for value in values], left, right
    )


def _lines(scale: Scale, marks: Sequence[tuple[float, str]], left: float, right: float) -> str:
    parts = []
    for value, words in marks:
        y = scale(value)
        parts.append(element("line", class_="grid", x1=left, x2=right, y1=y, y2=y))
        parts.append(written(left - 8, y + 4, words, kind="tick", anchor="end"))
    return "".join(parts)


def share_axis(scale: Scale, bottom: float) -> str:
    """Return the numbers of an axis of shares, in percent, under a chart."""
    parts = []
    for value in ticks(scale.low, scale.high, 0.01):
        x = scale(value)
        parts.append(element("line", class_="axis", x1=x, x2=x, y1=bottom, y2=bottom + 5))
        words = f"{100 * value:.6g}%"
        parts.append(written(x, bottom + 18, words, kind="tick", anchor="middle"))
    return "".join(parts)


def limit(scale: Scale, nbytes: int, words: str, left: float, right: float) -> str:
    """Return a dashed line at a number of bytes, with words above its right end."""
    y = scale(nbytes)
    line = element("line", class_="limit", x1=left, x2=right, y1=y, y2=y)
    return line + written(right - 4, y - 5, words, kind="small limit", anchor="end")
