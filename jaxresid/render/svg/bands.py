"""What is live, in bands: by kind, and the biggest lines by themselves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from jaxresid.base.text.safe_text import visible
from jaxresid.render.style.words import kinds_text, line_text
from jaxresid.results import Lifetimes, LiveValue

# Bottom to top: what is always there, then what comes and goes.
_ORDER = (
    *("parameters", "frozen-weights", "argument", "optimizer-state", "batch", "state"),
    *("constant", "output", "gradient"),
    *("residual", "temporary"),
)
_LINES = 5  # as many lines have bands of their own
_SMALL = 0.02  # of the peak: a line with less has none
_COLUMNS = 240
_SHADES = 0.85


@dataclass(frozen=True, slots=True)
class Key:
    """What the values of a band have in common.

    Attributes:
      kind: as in `LiveValue`.
      place: the line that makes them, `gpt.py:26 attention`; '' for all other lines.
    """

    kind: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class Band:
    """Values that are drawn as one.

    Attributes:
      key: what they have in common.
      nbytes: the bytes of them that are live at the peak.
      is_rest: whether lines of its kind have bands of their own, and it is that of the others.
      heights: the bytes of them that are live at each column; empty where only the peak is known.
      opacity: how strongly it is coloured, so that bands of a kind differ.
    """

    key: Key
    nbytes: int
    is_rest: bool
    heights: tuple[int, ...] = ()
    opacity: float = 1.0

    @property
    def label(self) -> str:
        """Its name: `gpt.py:26 attention` or `other residuals`."""
        return self.key.place or f"{'other ' * self.is_rest}{kinds_text(self.key.kind)}"


def bands_at_peak(live: Sequence[LiveValue]) -> tuple[Band, ...]:
    """Return what is live at the peak as bands, from the bottom to the top."""
    keys = _keys(live)
    sums: dict[Key, int] = {}
    for value in live:
        key = _key(value, keys)
        sums[key] = sums.get(key, 0) + value.nbytes
    return _ordered({key: (nbytes, ()) for key, nbytes in sums.items()})


def bands_over(lifetimes: Lifetimes) -> tuple[tuple[Band, ...], tuple[int, ...]]:
    """Return what is live over a program as bands, and the point that each column is of.

    A column shows the point of its stretch at which most is live, the peak's column the peak.
    """
    points = lifetimes.points
    columns = _columns([point.nbytes for point in points], lifetimes.at)
    keys = _keys(each.live for each in lifetimes.live_at(lifetimes.at))
    changes: dict[Key, list[int]] = {}
    at_peak: dict[Key, int] = {}
    for each in lifetimes.values:
        key = _key(each.live, keys)
        change = changes.setdefault(key, [0] * (len(columns) + 1))
        change[bisect_left(columns, each.start)] += each.live.nbytes
        change[bisect_left(columns, each.stop)] -= each.live.nbytes
        is_live = each.start <= lifetimes.at < each.stop
        at_peak[key] = at_peak.get(key, 0) + each.live.nbytes * is_live
    found = {key: (at_peak[key], tuple(accumulate(change[:-1]))) for key, change in changes.items()}
    return _ordered(found), columns


def _columns(totals: Sequence[int], at: int) -> tuple[int, ...]:
    """Return the index of the highest total in each of so many stretches."""
    count = min(len(totals), _COLUMNS)
    found = []
    for i in range(count):
        stretch = range(i * len(totals) // count, (i + 1) * len(totals) // count)
        found.append(at if at in stretch else max(stretch, key=totals.__getitem__))
    return tuple(found)


def _keys(live: Iterable[LiveValue]) -> frozenset[Key]:
    """Return the keys of the lines that have most of what is live at the peak."""
    sums: dict[Key, int] = {}
    total = 0
    for value in live:
        total += value.nbytes
        if key := _line(value):
            sums[key] = sums.get(key, 0) + value.nbytes
    biggest = sorted(sums, key=lambda key: -sums[key])[:_LINES]
    return frozenset(key for key in biggest if sums[key] >= _SMALL * total)


def _key(value: LiveValue, keys: frozenset[Key]) -> Key:
    key = _line(value)
    return key if key is not None and key in keys else Key(value.kind)


def _line(value: LiveValue) -> Key | None:
    where = value.location
    if value.primitive is None or where is None:
        return None
    return Key(value.kind, visible(line_text(where)))


def _ordered(found: dict[Key, tuple[int, tuple[int, ...]]]) -> tuple[Band, ...]:
    def place(key: Key) -> tuple[int, bool, int]:
        return _ORDER.index(key.kind), key.place != "", found[key][0]

    own = {key.kind for key in found if key.place}
    shown, of_kind = [], dict[str, int]()
    for key in sorted(found, key=place):
        nbytes, heights = found[key]
        if not nbytes and not any(heights):
            continue
        shade = of_kind.get(key.kind, 0)
        of_kind[key.kind] = shade + 1
        is_rest = not key.place and key.kind in own
        shown.append(Band(key, nbytes, is_rest, heights, _SHADES**shade))
    return tuple(shown)
