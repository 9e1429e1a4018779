"""Match the arguments and constants among the residuals of two reports."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from jaxresid.base.text.layer_paths import pattern
from jaxresid.results import Argument, Aval, Constant, Report, ValueDifference


@dataclass(frozen=True, slots=True)
class _Input:
    path: str | None  # None: a constant
    aval: Aval


def input_differences(before: Report, after: Report) -> tuple[ValueDifference, ...]:
    """Return the arguments and constants that one backward pass reads and the other does not.

    Those of repeated layers are one row. What only has another name is the same.
    """
    earlier, later = _inputs(before), _inputs(after)
    found = []
    for key in (lambda each: each, _but_for_path, _but_for_aval):
        found += _matched(earlier, later, key)
    found += [
        ValueDifference("added", count, None, None, each.path, None, each.aval)
        for each, count in (+later).items()
    ]
    found += [
        ValueDifference("removed", count, None, None, each.path, each.aval, None)
        for each, count in (+earlier).items()
    ]
    return tuple(sorted(found, key=lambda value: -abs(value.growth_nbytes)))


def _inputs(report: Report) -> Counter[_Input]:
    found: Counter[_Input] = Counter()
    for residual in report.residuals:
        if isinstance(residual.origin, Argument):
            found[_Input(pattern(residual.origin.path), residual.aval)] += 1
        elif isinstance(residual.origin, Constant):
            found[_Input(None, residual.aval)] += 1
    return found


def _matched(
    earlier: Counter[_Input], later: Counter[_Input], key: Callable[[_Input], Hashable]
) -> list[ValueDifference]:
    """Take away what a key says is the same, and return what of that takes other memory."""
    theirs: dict[Hashable, list[_Input]] = defaultdict(list)
    for other in later:
        theirs[key(other)].append(other)
    found = []
    for each in earlier:
        for other in theirs.get(key(each), ()):
            count = min(earlier[each], later[other])
            if count <= 0:
                continue
            earlier[each] -= count
            later[other] -= count
            if each.aval.nbytes != other.aval.nbytes or each.aval.memory != other.aval.memory:
                found.append(
                    ValueDifference("changed", count, None, None, other.path, each.aval, other.aval)
                )
    return found


def _but_for_path(each: _Input) -> Hashable:
    return each.path is None, each.aval


def _but_for_aval(each: _Input) -> Hashable:
    return each.path
