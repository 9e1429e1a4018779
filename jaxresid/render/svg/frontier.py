"""The trade of memory for compute: each variant's peak against what it recomputes."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from jaxresid.base.text.safe_text import safe_value
from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.policies import policy_text
from jaxresid.render.svg.axes import Scale, bytes_axis, limit, share_axis, ticks, unit_of
from jaxresid.render.svg.canvas import WIDTH, document, element, hint, written
from jaxresid.render.tables.compare import entries, takeaways
from jaxresid.render.tables.plan import verdict_text
from jaxresid.results import Comparison, FrontRow, Plan

_LEFT, _RIGHT, _TOP, _BOTTOM = 92, 600, 92, 392
_KEYS = 636
_ROW = 40
_MOST = 8  # of a plan's variants have a letter
_NEAR = 0.6  # a limit is shown where the chart grows by at most so much of itself for it


@dataclass(frozen=True, slots=True)
class _Dot:
    """A variant.

    Attributes:
      letter: what the chart calls it; '' for one of many that it does not list.
      name: what it is.
      nbytes: its peak.
      share: what it recomputes, as a share of the FLOPs without checkpoints.
      is_best: whether no other has both less bytes and less to recompute.
      mark: what else is to be said of it: `knee` or `chosen`; '' for nothing.
      low_nbytes: the lower end of the interval around its peak; None where none is known.
      high_nbytes: the upper end.
      host_nbytes: the bytes that it keeps in host memory.
    """

    letter: str
    name: str
    nbytes: int
    share: float
    is_best: bool
    mark: str = ""
    low_nbytes: int | None = None
    high_nbytes: int | None = None
    host_nbytes: int = 0

    @property
    def words(self) -> str:
        """What it has, in words."""
        host = f" + {format_bytes(self.host_nbytes)} host" * bool(self.host_nbytes)
        mark = f" · {self.mark}" * bool(self.mark)
        return f"{format_bytes(self.nbytes)}{host} · {100 * self.share:.1f}% recomputed{mark}"


def comparison_frontier(comparison: Comparison) -> str:
    """Return the policies of a comparison by peak and recomputation, as SVG.

    Raises:
      ValueError: no row has figures; the message is for the user.
    """
    comparison = safe_value(comparison)
    found = entries(comparison)
    dots = [
        _Dot(
            e.letter,
            ", ".join(policy_text(row.policy) for row in e.rows),
            e.row.compared_nbytes,
            e.row.recompute_fraction,
            e.pareto,
            "knee" if e.knee else "",
            *((e.row.low_nbytes, e.row.high_nbytes) if e.row.by == "estimate" else (None, None)),
            e.row.host_nbytes or 0,
        )
        for e in found
        if e.row.compared_nbytes is not None and e.row.recompute_fraction is not None
    ]
    if not dots:
        raise ValueError("no frontier: no policy gave figures")
    by = "XLA's peak" if all(e.row.by == "xla" for e in found) else "peak, estimated"
    said = (*takeaways(comparison), "")[0]
    room = comparison.place.memory_nbytes
    words = f"{format_bytes(room)} of {comparison.place.name}" if room else ""
    title = f"{comparison.target.name} on {comparison.place.name}: memory against compute"
    return _drawn(dots, title, said, by, (room, words))


def plan_frontier(plan: Plan) -> str:
    """Return the plans that no other beats by peak and recomputation, as SVG.

    The function without checkpoints is there too, where the inputs are the same.
    """
    plan = safe_value(plan)
    rows = plan.selection.front
    dots = [_of_plan(row) for row in rows]
    if not any(row.chosen for row in rows):
        dots.append(
            _Dot(
                "",
                "this plan",
                plan.peak_nbytes,
                plan.recompute_fraction,
                plan.is_within,
                "chosen",
                plan.low_nbytes,
                plan.high_nbytes,
            )
        )
    if plan.plain_nbytes is not None and all(
        d.share or d.nbytes != plan.plain_nbytes for d in dots
    ):
        dots.append(_Dot("", "without any checkpoint", plan.plain_nbytes, 0.0, is_best=False))
    title = f"{plan.target.name} on {plan.place.name}: memory against compute"
    budget = f"budget {format_bytes(plan.budget_nbytes)}"
    by = "XLA's peak" if plan.confirmed else "peak, estimated"
    dots.sort(key=lambda dot: (dot.share, -dot.nbytes))
    return _drawn(_lettered(dots), title, verdict_text(plan), by, (plan.budget_nbytes, budget))


def _of_plan(row: FrontRow) -> _Dot:
    name = row.checkpoints
    if (configuration := str(row.configuration)) != "the inputs as they are":
        name = f"{configuration}; {name}"
    mark = "chosen" if row.chosen else ""
    ends = row.low_nbytes, row.high_nbytes
    return _Dot("", name, row.peak_nbytes, row.recompute_fraction, True, mark, *ends)


def _lettered(dots: Sequence[_Dot]) -> list[_Dot]:
    """Return variants with letters for so many as can be listed, spread over all.

    The first, the last and those that have a mark are among them.
    """
    spread = {round(i * (len(dots) - 1) / (_MOST - 1)) for i in range(_MOST)}
    listed = [i for i, dot in enumerate(dots) if dot.mark or i in spread]
    names = dict(zip(listed, string.ascii_uppercase, strict=False))
    return [replace(dot, letter=names.get(i, "")) for i, dot in enumerate(dots)]


def _drawn(
    dots: Sequence[_Dot], title: str, said: str, by: str, room: tuple[int | None, str]
) -> str:
    down, across = _scales(dots, room[0])
    is_shown = room[0] is not None and down.low <= room[0] <= down.high
    told = [f"{dot.letter} {dot.name}: {dot.words}" for dot in dots if dot.letter]
    height = max(_BOTTOM + 52, _TOP + 16 + _ROW * len(told) + 24)
    return document(
        height,
        title,
        f"{said}. {'; '.join(told)}.",
        written(24, 32, title, kind="title", room=WIDTH * 0.7),
        written(24, 54, said, room=WIDTH * 0.88),
        written(_LEFT, _TOP - 12, by, kind="muted"),
        bytes_axis(down, _LEFT, _RIGHT),
        share_axis(across, _BOTTOM),
        element("line", class_="axis", x1=_LEFT, x2=_RIGHT, y1=_BOTTOM, y2=_BOTTOM),
        written(
            _RIGHT, _BOTTOM + 38, "recomputed FLOPs, of those without checkpoints", kind="muted",
            anchor="end",
        ),
        limit(down, room[0], room[1], _LEFT, _RIGHT) if is_shown and room[0] else "",
        _front(dots, down, across),
        *(_range(dot, down, across) for dot in dots),
        *_points(dots, down, across),
        *_listed(dots),
    )  # fmt: skip


def _scales(dots: Sequence[_Dot], room: int | None) -> tuple[Scale, Scale]:
    peaks = [dot.nbytes for dot in dots]
    low, high = min(peaks), max(peaks)
    span = max(high - low, high // 10, 1)
    if room is not None and low - _NEAR * span <= room <= high + _NEAR * span:
        low, high = min(low, room), max(high, room)
    unit, _ = unit_of(high)
    pad = 0.08 * max(high - low, high / 10)
    low = max(int(low - pad), 0)
    found = ticks(low, high + pad, unit)
    low = min(low, int(found[0]))
    most = max(dot.share for dot in dots) or 0.01
    down = Scale(low, high + pad, _BOTTOM, _TOP)
    return down, Scale(-0.04 * most, 1.08 * most, _LEFT, _RIGHT)


def _front(dots: Sequence[_Dot], down: Scale, across: Scale) -> str:
    """Return the steps between the best: what lies below them cannot be had."""
    best = sorted((across(dot.share), down(dot.nbytes)) for dot in dots if dot.is_best)
    if len(best) < 2:
        return ""
    steps = "".join(f"H{x:.1f}V{y:.1f}" for _, (x, y) in pairwise(best))
    return element("path", class_="front", d=f"M{best[0][0]:.1f},{best[0][1]:.1f}{steps}")


def _range(dot: _Dot, down: Scale, across: Scale) -> str:
    if dot.low_nbytes is None or dot.high_nbytes is None or not (dot.is_best and dot.letter):
        return ""
    x = across(dot.share)
    low, high = min(down(dot.low_nbytes), _BOTTOM), max(down(dot.high_nbytes), _TOP)
    return element("line", class_="range", x1=x, x2=x, y1=low, y2=high)


def _points(dots: Sequence[_Dot], down: Scale, across: Scale) -> Iterator[str]:
    """Yield a point and a letter for each; where several are, their letters stand together."""
    places: dict[tuple[int, int], list[_Dot]] = {}
    for dot in dots:
        x, y = across(dot.share), down(dot.nbytes)
        key = next((k for k in places if abs(k[0] - x) < 16 and abs(k[1] - y) < 10), None)
        places.setdefault(key or (round(x), round(y)), []).append(dot)
        kind = "point on" if dot.is_best else "point"
        yield element("circle", hint(f"{dot.name}: {dot.words}"), class_=kind, cx=x, cy=y, r=4.5)
        if dot.mark:
            yield element("circle", class_="front", cx=x, cy=y, r=8.5)
    for (x, y), together in places.items():
        if not any(dot.letter for dot in together):
            continue
        marks = "".join(f" {dot.mark}" for dot in together if dot.mark)
        words = f"{''.join(dot.letter for dot in together)}{marks}"
        # Nothing is below the front and to the left of a point on it.
        is_free = all(dot.is_best for dot in together) and x > _LEFT + 80
        at, anchor = ((x - 9, y + 16), "end") if is_free else ((x + 11, y - 8), None)
        yield written(*at, words, kind="small bold", anchor=anchor)


def _listed(dots: Sequence[_Dot]) -> Iterator[str]:
    yield written(
        _KEYS, _TOP - 12, "filled: no other has less of both, without the host", kind="muted"
    )
    listed = [dot for dot in dots if dot.letter]
    for row, dot in enumerate(listed):
        y = _TOP + 10 + row * _ROW
        kind = "point on" if dot.is_best else "point"
        yield element("circle", class_=kind, cx=_KEYS + 6, cy=y - 4, r=4.5)
        name = f"{dot.letter} · {dot.name}"
        yield written(_KEYS + 18, y, name, kind="small bold", room=WIDTH - _KEYS - 26)
        yield written(_KEYS + 18, y + 15, dot.words, kind="muted", room=WIDTH - _KEYS - 26)
    if len(listed) < len(dots):
        words = f"and {len(dots) - len(listed)} between them"
        yield written(_KEYS + 18, _TOP + 10 + len(listed) * _ROW, words, kind="muted")
