"""Find how often while loops run: by a counter that their condition bounds, or as a user says.

A loop's condition may hold a bound beside others (`(t < t1) & (steps < max_steps)`), be computed at
the end of the trip before, and be that of a batch, as equinox' loops are: the bound is then the
most trips, not their number. The backward pass of equinox' checkpointed loops counts down, and runs
some steps again; see `online_checkpoints`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.nesting import Nest, nests
from jaxresid.inspector.jaxpr.while_loops import ranges
from jaxresid.inspector.jaxpr.while_loops.checkpointed_loops import (
    CheckpointedBackward,
    backward_of,
)
from jaxresid.inspector.jaxpr.while_loops.online_checkpoints import MOST_STEPS, iterations
from jaxresid.inspector.jaxpr.while_loops.ranges import UNKNOWN, Range
from jaxresid.inspector.jaxpr.while_loops.while_bounds import bound_of, counters
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

TRIPS_UNKNOWN = "while: trips unknown, counted once; --trips says how many"


@dataclass(frozen=True, slots=True)
class Trips:
    """How often a while loop runs its body.

    Attributes:
      count: the trips that are counted.
      note: what was assumed; empty where the number is known.
      branches: of conds in the body, by the id of the tuple of their branches: how often each
        branch runs, in all trips together.
    """

    count: int
    note: str = ""
    branches: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


class WhileTrips:
    """The trips of the while loops in jaxprs that were added.

    Args:
      assumed: the trips of loops whose number is not known; where a bound is known, at most that.
    """

    def __init__(self, assumed: int | None = None) -> None:
        self._assumed = assumed
        # By the id of the body; the jaxprs are kept, or their ids could be reused.
        self._found: dict[int, Trips] = {}
        self._kept: list[Jaxpr] = []
        self._pending: list[tuple[Jaxpr, Jaxpr | None, Mapping[int, int]]] = []
        self._read: dict[tuple[int, tuple[Range, ...]], list[Range]] = {}

    def add(
        self, jaxpr: Jaxpr, then: Jaxpr | None = None, handed: Mapping[int, int] | None = None
    ) -> None:
        """Add an open jaxpr; it is read when a loop is asked about.

        Args:
          jaxpr: the jaxpr.
          then: another one, that runs after it.
          handed: for invars of that other one, by number, the outvars of the first that they are.
        """
        self._pending.append((jaxpr, then, handed or {}))

    def of(self, eqn: Eqn) -> Trips | None:
        """Return the trips of a while eqn; None where nothing tells them."""
        while self._pending:
            jaxpr, then, handed = self._pending.pop()
            made = self._jaxpr(jaxpr, [UNKNOWN] * len(jaxpr.invars))
            if then is not None:
                numbers = map(handed.get, range(len(then.invars)))
                self._jaxpr(then, [UNKNOWN if n is None else made[n] for n in numbers])
        body = jax_compat.open_jaxpr(jax_compat.params(eqn)["body_jaxpr"])
        if id(body) not in self._found:
            self._while(eqn, [_read({}, v) for v in eqn.invars])
        return self._found.get(id(body))

    def _jaxpr(self, jaxpr: Jaxpr, given: Sequence[Range]) -> list[Range]:
        """Return the ranges of the outvars, given those of the invars."""
        key = id(jaxpr), tuple(given)
        if key in self._read:
            return self._read[key]
        self._kept.append(jaxpr)
        known = {v: found for v, found in zip(jaxpr.invars, given, strict=True) if found != UNKNOWN}
        for eqn in jaxpr.eqns:
            operands = [_read(known, v) for v in eqn.invars]
            for v, result in zip(eqn.outvars, self._eqn(eqn, operands), strict=False):
                if result != UNKNOWN:
                    known[v] = result
        made = self._read[key] = [_read(known, v) for v in jaxpr.outvars]
        return made

    def _eqn(self, eqn: Eqn, operands: Sequence[Range]) -> Sequence[Range]:
        found = nests(eqn)
        if not found:
            return [ranges.plain(eqn, operands)]
        if found[0].kind == "while":
            return self._while(eqn, operands)
        results = [UNKNOWN] * len(eqn.outvars)
        for number, nest in enumerate(found):
            given = [
                UNKNOWN if i in nest.carries else operands[outer]
                for i, outer in enumerate(nest.operands)
            ]
            for i, made in enumerate(self._jaxpr(nest.jaxpr, given)):
                result = nest.results[i]
                if result is not None and nest.kind in ("call", "branch"):
                    results[result] = made if number == 0 else results[result].either(made)
        return results

    def _while(self, eqn: Eqn, operands: Sequence[Range]) -> list[Range]:
        """Note the trips of a while eqn, and return the ranges of its results."""
        (nest,) = nests(eqn)
        initial = [operands[outer] for outer in nest.operands]
        steps = counters(nest)
        backward = backward_of(eqn, nest)
        if backward is None:
            found = self._forward(eqn, nest, operands)
        else:
            found = self._backward(backward, initial)
        body = nest.jaxpr
        self._kept.append(body)
        if found is not None:
            before = self._found.get(id(body))
            if before is None or found.count > before.count:
                self._found[id(body)] = found
        inside, results = [], []
        for i, start in enumerate(initial):
            if i not in nest.carries:
                inside.append(start)
                continue
            during = _counted(start, steps.get(nest.carries[i]), found)
            inside.append(during)
            results.append(during)
        self._jaxpr(body, inside)
        return results

    def _forward(self, eqn: Eqn, nest: Nest, operands: Sequence[Range]) -> Trips | None:
        bound = bound_of(eqn, nest, operands)
        if bound is None:
            if self._assumed is None:
                return None
            return Trips(self._assumed, _as_said(self._assumed))
        if bound.is_exact:
            return Trips(bound.most)
        if self._assumed is not None and self._assumed < bound.most:
            return Trips(self._assumed, f"{_as_said(self._assumed)}, of at most {bound.most}")
        return Trips(bound.most, f"while: at most {bound.most} trips, all counted")

    def _backward(self, loop: CheckpointedBackward, initial: Sequence[Range]) -> Trips | None:
        steps = initial[loop.gradient_step].high
        if steps is None and loop.branches is None:
            steps = loop.checkpoints
        if steps is None:
            steps = self._assumed
        if steps is None or steps > MOST_STEPS:
            return None
        if loop.branches is None:
            return Trips(steps)
        total = iterations(steps, loop.checkpoints)
        return Trips(
            total,
            f"while: {steps} steps with checkpoints={loop.checkpoints} run {total} times in the"
            " backward pass",
            {loop.branches: (total - steps, steps)},
        )


def _counted(start: Range, step: int | None, trips: Trips | None) -> Range:
    """Return the range of a carry from its start to the end of the loop.

    Args:
      start: the range of its start.
      step: by how much a trip counts it up, at most; None: it is no counter.
      trips: the trips of the loop; None: not known.
    """
    if step is None:
        return UNKNOWN
    if step == 0:
        return start
    if trips is None or start.high is None:
        return Range(start.low)
    return Range(start.low, start.high + step * trips.count)


def _as_said(trips: int) -> str:
    return f"while: counted with {trips} trips, as --trips says"


def _read(known: Mapping[Var, Range], var: Var) -> Range:
    if jax_compat.is_literal(var):
        return ranges.literal(var)
    return known.get(var, UNKNOWN)
