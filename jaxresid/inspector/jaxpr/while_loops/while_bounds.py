"""Read from a while loop's condition and body how many trips it takes at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.nesting import Nest, nests
from jaxresid.inspector.jaxpr.while_loops.ranges import SAME, SELECTIONS, UNKNOWN, Range, literal
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

# A comparison as `smaller < larger`: which operand is the smaller one, and what to add to the
# larger.
_COMPARISONS = {"lt": (0, 0), "le": (0, 1), "gt": (1, 0), "ge": (1, 1), "lt_to": (0, 0)}


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound of a while loop's trips.

    Attributes:
      most: the most trips.
      is_exact: whether they are always as many.
    """

    most: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """A value in a jaxpr that is called, with the place of each of its operands.

    Attributes:
      scope: the jaxpr.
      var: the value.
    """

    scope: Scope
    var: Var


class Scope:
    """The eqns of a jaxpr by what they make, and what its invars are outside of it.

    Args:
      jaxpr: the open jaxpr.
      outside: what its invars are where it is called; None for a loop's body or condition.
    """

    def __init__(self, jaxpr: Jaxpr, outside: Mapping[Var, _Place] | None = None) -> None:
        self.jaxpr = jaxpr
        self.makers = {v: (eqn, i) for eqn in jaxpr.eqns for i, v in enumerate(eqn.outvars)}
        self._outside = outside or {}
        self._inside: dict[int, Scope] = {}

    def source(self, var: Var) -> _Place:
        """Return where a value comes from: through calls, and what only moves or selects it."""
        at = _Place(self, var)
        while not jax_compat.is_literal(at.var):
            made = at.scope.makers.get(at.var)
            if made is None:
                outer = at.scope._outside.get(at.var)
                if outer is None:
                    return at
                at = outer
                continue
            eqn, i = made
            if jax_compat.primitive_name(eqn) in SAME:
                at = _Place(at.scope, eqn.invars[0])
                continue
            found = nests(eqn)
            if len(found) != 1 or found[0].kind != "call":
                return at
            at = at.scope._called(eqn, found[0], i)
        return at

    def eqn_of(self, var: Var) -> tuple[Scope, Eqn] | None:
        """Return the eqn that a value comes from, and its scope; None: an input or a literal."""
        at = self.source(var)
        made = None if jax_compat.is_literal(at.var) else at.scope.makers.get(at.var)
        return None if made is None else (at.scope, made[0])

    def _called(self, eqn: Eqn, nest: Nest, result: int) -> _Place:
        inner = self._inside.get(id(eqn))
        if inner is None:
            operands = (_Place(self, eqn.invars[i]) for i in nest.operands)
            outside = dict(zip(nest.jaxpr.invars, operands, strict=True))
            inner = self._inside[id(eqn)] = Scope(nest.jaxpr, outside)
        return _Place(inner, nest.jaxpr.outvars[nest.outvar(result)])


def counters(nest: Nest) -> dict[int, int]:
    """Return the carries that are counted up, by outvar: by how much in a trip, at most.

    Those that stay as they are count up by 0.
    """
    scope = Scope(nest.jaxpr)
    found = {}
    for into, out in nest.carries.items():
        step = _step(scope, nest.jaxpr.outvars[out], nest.jaxpr.invars[into])
        if step is not None:
            found[out] = step
    return found


def _step(scope: Scope, var: Var, carry: Var) -> int | None:
    """Return by how much a value is more than a carry, at most; None where that is not known."""
    at = scope.source(var)
    if jax_compat.is_literal(at.var):
        return None
    if at.var is carry:
        return 0
    made = at.scope.makers.get(at.var)
    if made is None:
        return None
    eqn = made[0]
    name = jax_compat.primitive_name(eqn)
    if name == "add":
        for i in (0, 1):
            by = at.scope.source(eqn.invars[i]).var
            more = literal(by).high if jax_compat.is_literal(by) else None
            if more is not None and more >= 0:
                start = _step(at.scope, eqn.invars[1 - i], carry)
                return None if start is None else start + more
    if name in SELECTIONS:
        each = [_step(at.scope, v, carry) for v in eqn.invars[1:]]
        return None if None in each else max(step for step in each if step is not None)
    return None


def bound_of(eqn: Eqn, nest: Nest, operands: Sequence[Range]) -> Bound | None:
    """Return the bound of a while loop's trips; None where none is seen.

    Args:
      eqn: the while eqn.
      nest: its body.
      operands: the ranges of its operands.
    """
    return _Conditions(eqn, nest, operands).bound()


class _Conditions:
    def __init__(self, eqn: Eqn, nest: Nest, operands: Sequence[Range]) -> None:
        params = jax_compat.params(eqn)
        cond = jax_compat.open_jaxpr(params["cond_jaxpr"])
        count = params["cond_nconsts"]
        self._nest, self._body, self._cond = nest, Scope(nest.jaxpr), Scope(cond)
        # What a condition's invars are: constants, or carries by number.
        self._carries = dict(zip(cond.invars[count:], range(len(nest.jaxpr.outvars)), strict=True))
        self._carries |= {nest.jaxpr.invars[i]: out for i, out in nest.carries.items()}
        self._ranges = dict(zip(cond.invars[:count], operands[:count], strict=True))
        self._ranges |= {
            v: operands[outer]
            for i, (v, outer) in enumerate(zip(nest.jaxpr.invars, nest.operands, strict=True))
            if i not in nest.carries
        }
        self._initial = [operands[nest.operands[i]] for i in sorted(nest.carries)]
        self._steps = counters(nest)
        self._met: set[int] = set()

    def bound(self) -> Bound | None:
        each = self._of(self._cond, self._cond.jaxpr.outvars[0], 0)
        known = [bound for bound in each if bound is not None]
        if not known:
            return None
        most = min(bound.most for bound in known)
        return Bound(most, all(bound is not None and bound.is_exact for bound in each))

    def _of(self, scope: Scope, var: Var, late: int) -> list[Bound | None]:
        """Return the bounds of each part of a condition; None for a part that is not read.

        Args:
          scope: where it is.
          var: the condition.
          late: 1 for what is computed in the trip before.
        """
        at = scope.source(var)
        if jax_compat.is_literal(at.var):
            return [] if literal(at.var).low else [None]
        carry = self._carries.get(at.var)
        if carry is not None:
            if carry in self._met:
                return []
            self._met.add(carry)
            first = self._initial[carry]
            made = self._of(self._body, self._nest.jaxpr.outvars[carry], 1)
            # What the first trip depends on.
            return made if first.low else [*made, None]
        found = at.scope.makers.get(at.var)
        if found is None:
            return [None]
        eqn = found[0]
        name = jax_compat.primitive_name(eqn)
        if name == "and":
            return [each for v in eqn.invars for each in self._of(at.scope, v, late)]
        if name in _COMPARISONS:
            return [self._compared(at.scope, eqn, *_COMPARISONS[name], late)]
        return [None]

    def _compared(self, scope: Scope, eqn: Eqn, smaller: int, more: int, late: int) -> Bound | None:
        counted = self._counted(scope, eqn.invars[smaller])
        limit = self._limit(scope, eqn.invars[1 - smaller])
        if counted is None or limit.high is None:
            return None
        carry, ahead = counted
        start, step = self._initial[carry], self._steps[carry]
        if start.low is None or step < 1:
            return None
        trips = late + max(0, -(-(limit.high + more - start.low - ahead) // step))
        return Bound(trips, start.low == start.high and limit.low == limit.high)

    def _counted(self, scope: Scope, var: Var) -> tuple[int, int] | None:
        """Return the counter that a value is, with how much the value is ahead of it."""
        for into, carry in self._carries.items():
            ahead = _step(scope, var, into) if carry in self._steps else None
            if ahead is not None:
                return carry, ahead
        return None

    def _limit(self, scope: Scope, var: Var) -> Range:
        """Return the range of what stays the same in all trips."""
        at = scope.source(var)
        if jax_compat.is_literal(at.var):
            return literal(at.var)
        carry = self._carries.get(at.var)
        if carry is not None:
            return self._initial[carry] if self._steps.get(carry) == 0 else UNKNOWN
        return self._ranges.get(at.var, UNKNOWN)
