"""The bytes that are live over a program, stacked by what they are."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from jaxresid.base.text.safe_text import safe_value
from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.overview.chart import is_one_pass
from jaxresid.render.report.peak import op_text, peak_text, room_text
from jaxresid.render.style.words import kinds_text, line_text, percent
from jaxresid.render.svg.axes import Scale, bytes_axis, limit
from jaxresid.render.svg.bands import Band, bands_at_peak, bands_over
from jaxresid.render.svg.canvas import WIDTH, cut, document, element, hint, written
from jaxresid.results import Lifetimes, Peak, Report

_LEFT, _RIGHT, _TOP, _BOTTOM = 82, 620, 84, 384
_KEYS = 672  # where the list of bands begins
_BAR = 18
_ROW = 36
_TALL = 13  # pixels that a letter needs
_HEADROOM = 1.6  # a limit or an interval is shown up to so many peaks


@dataclass(frozen=True, slots=True)
class _Chart:
    """What is drawn.

    Attributes:
      bands: the bands, from the bottom to the top.
      totals: the bytes of each column.
      at: the column of the peak.
      count: the number of columns of the passes.
    """

    bands: tuple[Band, ...]
    totals: tuple[int, ...]
    at: int


def timeline(report: Report) -> str:
    """Return the bytes over the program of a report as SVG.

    A report with lifetimes shows what they are made of; one without shows how many they are, and
    what those at the peak are made of.

    Raises:
      ValueError: its peak is not estimated; the message is for the user.
    """
    lifetimes = report.lifetimes[:1]  # whose text is made safe as far as it is shown
    report = safe_value(replace(report, residuals=(), lifetimes=()))
    peak = report.peak
    if peak is None or not peak.curve:
        raise ValueError(
            f"no timeline: the peak on {report.place.name} is not estimated, XLA gives it; another"
            ' place has one, as "gpu:h100"'
        )
    chart = _charted(lifetimes[0]) if lifetimes else _thin(peak)
    scale = Scale(0, _highest(report, peak), _BOTTOM, _TOP)
    bars = (*_stacked(chart, scale),) if lifetimes else (*_plain(chart, scale),)
    height = max(_BOTTOM + 44, _TOP + 14 + _ROW * len(chart.bands) + 16)
    title = f"{report.target.name}: bytes live over the program"
    room = room_text(report).plain
    answer = " · ".join(
        part for part in (f"{peak_text(peak)} on {report.place.name}", room) if part
    )
    return document(
        height,
        title,
        _description(answer, peak, chart.bands),
        written(24, 32, title, kind="title", room=WIDTH * 0.7),
        written(24, 54, answer, room=WIDTH * 0.88),
        bytes_axis(scale, _LEFT, _RIGHT),
        *bars,
        *_passes(peak),
        element("line", class_="axis", x1=_LEFT, x2=_RIGHT, y1=_BOTTOM, y2=_BOTTOM),
        *_limits(report, scale),
        *_mark(peak, chart, scale),
        *_listed(chart.bands, peak.nbytes),
    )


def _charted(lifetimes: Lifetimes) -> _Chart:
    bands, columns = bands_over(lifetimes)
    totals = tuple(lifetimes.points[i].nbytes for i in columns)
    return _Chart(bands, totals, columns.index(lifetimes.at))


def _thin(peak: Peak) -> _Chart:
    return _Chart(bands_at_peak(peak.live), peak.curve, peak.curve_at)


def _highest(report: Report, peak: Peak) -> float:
    """Return the bytes at the top of the chart."""
    most = _HEADROOM * peak.nbytes
    others = (report.place.memory_nbytes, peak.high_nbytes)
    return 1.04 * max(peak.nbytes, *(each for each in others if each and each <= most), 1)


def _stacked(chart: _Chart, scale: Scale) -> Iterator[str]:
    """Yield the bands over the program, each with its letter where it is highest."""
    count = len(chart.totals)
    below = [0] * count
    letters = _letters(chart.bands)
    keys = []
    for band, letter in zip(chart.bands, letters, strict=True):
        above = [a + b for a, b in zip(below, band.heights, strict=True)]
        words = f"{letter}: {band.label}, {format_bytes(band.nbytes)} at the peak"
        yield element(
            "path",
            hint(words),
            class_=f"band {band.key.kind}",
            fill_opacity=band.opacity,
            d=_outline(below, above, scale),
        )
        at = max(range(count), key=lambda i: (band.heights[i], -abs(i - chart.at)))
        top, bottom = scale(above[at]), scale(below[at])
        if bottom - top >= _TALL:
            x = _LEFT + (at + 0.5) * (_RIGHT - _LEFT) / count
            x = min(max(x, _LEFT + 8), _RIGHT - 8)
            keys.append(written(x, (top + bottom) / 2 + 4, letter, kind="key"))
        below = above
    yield from keys


def _plain(chart: _Chart, scale: Scale) -> Iterator[str]:
    """Yield the bytes over the program, and a bar of those at the peak."""
    zeros = [0] * len(chart.totals)
    yield element("path", class_="band all", d=_outline(zeros, chart.totals, scale))
    left = _RIGHT + 14
    heights = [band.nbytes for band in chart.bands]
    tops = list(accumulate(heights))
    for band, letter, top in zip(chart.bands, _letters(chart.bands), tops, strict=True):
        y, bottom = scale(top), scale(top - band.nbytes)
        yield element(
            "rect",
            hint(f"{letter}: {band.label}, {format_bytes(band.nbytes)} at the peak"),
            class_=f"band {band.key.kind}",
            fill_opacity=band.opacity,
            **{"x": left, "y": y, "width": _BAR, "height": bottom - y},
        )
        if bottom - y >= _TALL:
            yield written(left + _BAR / 2, (y + bottom) / 2 + 4, letter, kind="key")
    yield written(left + _BAR / 2, _BOTTOM + 18, "at peak", kind="tick", anchor="middle")


def _outline(below: Sequence[int], above: Sequence[int], scale: Scale) -> str:
    """Return the path around what is between two lines of steps."""
    return f"M{_LEFT},{_steps(above, scale)}V{_steps(below, scale, is_back=True)}Z"


def _steps(values: Sequence[int], scale: Scale, *, is_back: bool = False) -> str:
    """Return a line of steps, from left to right or back: the first height, then its corners."""
    width = (_RIGHT - _LEFT) / len(values)
    order = range(len(values) - 1, -1, -1) if is_back else range(len(values))
    steps, last = [], ""
    for i in order:
        y = f"{scale(values[i]):.1f}"
        if y != last:
            x = _LEFT + width * (i + is_back)
            steps.append(f"H{x:.1f}V{y}" if last else y)
            last = y
    return f"{''.join(steps)}H{_LEFT if is_back else _RIGHT}"


def _passes(peak: Peak) -> Iterator[str]:
    """Yield the names of the passes under the chart, and lines between them."""
    if is_one_pass(peak.phases):
        return
    for span in peak.phases:
        left, right = (
            _LEFT + each * (_RIGHT - _LEFT) / len(peak.curve) for each in (span.start, span.stop)
        )
        if span.start:
            yield element("line", class_="pass", x1=left, x2=left, y1=_TOP, y2=_BOTTOM + 22)
        yield written(left + 5, _BOTTOM + 18, span.phase, kind="muted", room=right - left - 8)


def _limits(report: Report, scale: Scale) -> Iterator[str]:
    nbytes = report.place.memory_nbytes
    if nbytes and nbytes <= scale.high:
        words = f"{format_bytes(nbytes)} of {report.place.name}"
        yield limit(scale, nbytes, words, _LEFT, _RIGHT)


def _mark(peak: Peak, chart: _Chart, scale: Scale) -> Iterator[str]:
    """Yield a mark at the peak with its place under the chart, and the interval around it."""
    x = _LEFT + (chart.at + 0.5) * (_RIGHT - _LEFT) / len(chart.totals)
    y = scale(peak.nbytes)
    if peak.low_nbytes is not None and peak.high_nbytes is not None:
        high = max(scale(peak.high_nbytes), _TOP)
        yield element("line", class_="range", x1=x, x2=x, y1=scale(peak.low_nbytes), y2=high)
        for end in {scale(peak.low_nbytes), high} if peak.high_nbytes <= scale.high else ():
            yield element("line", class_="range", x1=x - 4, x2=x + 4, y1=end, y2=end)
    yield element("circle", class_="mark", cx=x, cy=y, r=4)
    where = peak.location
    place = line_text(where) if where else op_text(peak)
    is_right = x > (_LEFT + _RIGHT) / 2
    room = (x - _LEFT if is_right else _RIGHT - x) - 8
    if where:
        which = "in" if where.is_of_loss else "at"
        place = f"{which} {cut(place, room / 1.1 - 60, keeps_end=True)}"
    yield element("path", class_="axis", d=f"M{x:.1f},{_BOTTOM + 1}v28")
    yield written(
        x - 6 if is_right else x + 6,
        _BOTTOM + 36,
        f"peak {place}",
        kind="small bold",
        room=room,
        anchor="end" if is_right else None,
    )


def _listed(bands: Sequence[Band], nbytes: int) -> Iterator[str]:
    """Yield the list of bands at the right, in the order in which they lie."""
    yield written(_KEYS, _TOP - 4, "live at the peak", kind="small bold")
    pairs = list(zip(bands, _letters(bands), strict=True))
    for row, (band, letter) in enumerate(reversed(pairs)):
        y = _TOP + 14 + row * _ROW
        yield element(
            "rect",
            class_=f"band {band.key.kind}",
            fill_opacity=band.opacity,
            **{"x": _KEYS, "y": y - 11, "width": 18, "height": 15},
        )
        yield written(_KEYS + 9, y + 1, letter, kind="key")
        figures = f"{format_bytes(band.nbytes)} · {percent(band.nbytes, nbytes)}"
        if band.key.place:
            figures += f" · {kinds_text(band.key.kind)}"
        yield written(_KEYS + 26, y + 1, figures, kind="bold small", room=WIDTH - _KEYS - 32)
        room = WIDTH - _KEYS - 34
        yield written(_KEYS + 26, y + 15, band.label, kind="muted", room=room, keeps_end=True)


def _letters(bands: Sequence[Band]) -> tuple[str, ...]:
    """Return a letter for each band; the topmost, which is first in the list, has A."""
    return tuple(string.ascii_uppercase[: len(bands)][::-1])


def _description(answer: str, peak: Peak, bands: Sequence[Band]) -> str:
    parts = [f"{band.label} {format_bytes(band.nbytes)}" for band in reversed(bands)]
    return f"{answer}. Live at the peak, {op_text(peak)}: {', '.join(parts)}."
