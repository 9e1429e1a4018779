"""Tell between which numbers the elements of integers are, from the eqns that make them.

Only what counts the trips of loops is followed: literals, sums, selections, and what moves elements
without changing them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.primitives import TRANSPARENT
from jaxresid.jax_compat.jaxpr_types import Eqn, Literal

# Results whose elements are among those of the first operand.
SAME = TRANSPARENT | {
    "dynamic_slice",
    "nonbatchable",  # equinox
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "slice",
    "unvmap_any",  # equinox
    "unvmap_max",  # equinox
}
# The predicate, then the cases.
SELECTIONS = frozenset({"select_n", "select_if_vmap"})


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers between which all elements of an integer are; None: not known."""

    low: int | None = None
    high: int | None = None

    def shifted(self, by: Range, sign: int = 1) -> Range:
        """Return the range of the sum (or of the difference) of two integers."""
        other = by if sign > 0 else Range(_negative(by.high), _negative(by.low))
        return Range(_sum(self.low, other.low), _sum(self.high, other.high))

    def either(self, other: Range) -> Range:
        """Return the range of what is one of two integers."""
        lows, highs = (self.low, other.low), (self.high, other.high)
        return Range(
            None if None in lows else min(v for v in lows if v is not None),
            None if None in highs else max(v for v in highs if v is not None),
        )


UNKNOWN = Range()


def literal(var: Literal) -> Range:
    """Return the range of a literal."""
    try:
        value = operator.index(var.val)
    except (TypeError, ValueError):
        return UNKNOWN
    return Range(value, value)


def plain(eqn: Eqn, operands: Sequence[Range]) -> Range:
    """Return the range of the first result of an eqn without inner jaxprs.

    Args:
      eqn: the eqn.
      operands: the ranges of its operands.
    """
    name = jax_compat.primitive_name(eqn)
    if name in SAME:
        return operands[0]
    if name == "add":
        return operands[0].shifted(operands[1])
    if name == "sub":
        return operands[0].shifted(operands[1], -1)
    if name in SELECTIONS:
        first, *others = operands[1:]
        for other in others:
            first = first.either(other)
        return first
    if name == "min":
        highs = [r.high for r in operands if r.high is not None]
        return Range(operands[0].either(operands[1]).low, min(highs, default=None))
    if name == "max":
        lows = [r.low for r in operands if r.low is not None]
        return Range(max(lows, default=None), operands[0].either(operands[1]).high)
    return UNKNOWN


def _negative(value: int | None) -> int | None:
    return None if value is None else -value


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b
