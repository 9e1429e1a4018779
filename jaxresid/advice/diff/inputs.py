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


# What is the same: all of it, all but the name, all but the array.
_KEYS: tuple[Callable[[_Input], Hashable], ...] = (
    lambda value: value,
    lambda value: (value.path is None, value.aval),
    lambda value: value.path,
)


def input_differences(before: Report, after: Report) -> tuple[ValueDifference, ...]:
    """Return the arguments and constants that one backward pass reads and the other does not.

    Those of repeated layers are one row. What only has another name is the same.
    """
    earlier, later = _inputs(before), _inputs(after)
    differences = []
    for key in _KEYS:
        differences += _matched(earlier, later, key)
    differences += [
        ValueDifference("added", count, None, None, value.path, None, value.aval)
        for value, count in (+later).items()
    ]
    differences += [
        ValueDifference("removed", count, None, None, value.path, value.aval, None)
        for value, count in (+earlier).items()
    ]
    return tuple(sorted(differences, key=lambda value: -abs(value.growth_nbytes)))


def _inputs(report: Report) -> Counter[_Input]:
    counts: Counter[_Input] = Counter()
    for residual in report.residuals:
        if isinstance(residual.origin, Argument):
            counts[_Input(pattern(residual.origin.path), residual.aval)] += 1
        elif isinstance(residual.origin, Constant):
            counts[_Input(None, residual.aval)] += 1
    return counts


def _matched(
    earlier: Counter[_Input], later: Counter[_Input], key: Callable[[_Input], Hashable]
) -> list[ValueDifference]:
    """Take away what a key says is the same, and return what of that takes other memory."""
    theirs: dict[Hashable, list[_Input]] = defaultdict(list)
    for other in later:
        theirs[key(other)].append(other)
    differences = []
    for value in earlier:
        for other in theirs.get(key(value), ()):
            count = min(earlier[value], later[other])
            if count <= 0:
                continue
            earlier[value] -= count
            later[other] -= count
            if value.aval.nbytes != other.aval.nbytes or value.aval.memory != other.aval.memory:
                differences.append(
                    ValueDifference(
                        "changed", count, None, None, other.path, value.aval, other.aval
                    )
                )
    return differences
