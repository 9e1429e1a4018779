"""Count what a jaxpr costs: FLOPs, transcendental evaluations and bytes, nested jaxprs included.

A scan counts all its trips, a while loop those that its condition allows or that the user says (one
where neither tells; a note says which), a cond its most expensive branch (with a note), a call what
it calls. A `shard_map` counts all devices
of the axes that it is manual over, so that a program costs the same however it is split; of its
collectives, the results on one device are summed up. What nothing reads costs nothing, inside calls
and scans too, since `jit` drops it. A primitive without a rule is listed in `Cost.uncosted`; its
bytes are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.cost.flops import RULES
from jaxresid.inspector.cost.traffic import traffic
from jaxresid.inspector.jaxpr.extents import nbytes, size
from jaxresid.inspector.jaxpr.nesting import Nest, nests
from jaxresid.inspector.jaxpr.primitives import COLLECTIVES, PRIMITIVES
from jaxresid.inspector.jaxpr.while_loops.trips import TRIPS_UNKNOWN, Trips, WhileTrips
from jaxresid.inspector.trace.function import Trace
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr
from jaxresid.results import Cost

_APPLIED = {row.name: row.applied for row in PRIMITIVES.values() if row.applied}
_RUNS = {row.name: row.runs for row in PRIMITIVES.values() if row.runs is not None}

# The numbers of those results that are read; None: all of them.
Wanted = frozenset[int] | None


@dataclass(frozen=True, slots=True)
class _NeededPart:
    """What the wanted results of a jaxpr need of it.

    Attributes:
      eqns: the eqns that are needed, each with those of its own results that are read.
    """

    jaxpr: Jaxpr
    eqns: tuple[tuple[Eqn, Wanted], ...]
    invars: frozenset[int]


def jaxpr_cost(jaxpr: Jaxpr, trips: WhileTrips | None = None) -> Cost:
    """Return what one run of a jaxpr costs.

    Args:
      trips: the trips of its while loops; None: those that it says itself.
    """
    return Costs().of_program(jaxpr) if trips is None else Costs(trips).of_jaxpr(jaxpr)


def passes_cost(
    traced: Trace,
    chosen: Callable[[Eqn], bool] | None = None,
    opened: Container[int] = frozenset(),
) -> tuple[Cost, Cost]:
    """Return what the forward and the backward pass of a `Trace` cost.

    Residuals that the backward pass does not read are not computed: JAX hands some over that
    nothing reads, and a compiler drops them.

    Args:
      chosen: which of the eqns of the two jaxprs count; None: all.
    """
    costs = Costs(traced.trips)
    needed = {traced.backward.invars[i] for i in costs.read(traced.backward)}
    residuals = (traced.num_outputs + i for i, v in enumerate(traced.read) if v in needed)
    wanted = frozenset([*range(traced.num_outputs), *residuals])
    if chosen is not None:
        ahead = costs.of_some(traced.forward, chosen, opened, wanted)
        return ahead, costs.of_some(traced.backward, chosen, opened)
    return costs.of_jaxpr(traced.forward, wanted), costs.of_jaxpr(traced.backward)


def eqn_cost(eqn: Eqn) -> Cost:
    """Return what one run of an eqn costs, with everything inside it times its trips."""
    return Costs().of_eqn(eqn)


def flat_cost(eqn: Eqn) -> Cost | None:
    """Return what an eqn costs by itself, without the jaxprs inside it; None if it is unknown.

    A loop or a call by itself costs nothing.
    """
    name = jax_compat.primitive_name(eqn)
    rule = RULES.get(name)
    if rule is not None:
        cost = rule(eqn)
        cost = cost if cost.nbytes else replace(cost, nbytes=traffic(eqn))
        return replace(cost, collectives=_exchanged(eqn)) if name in COLLECTIVES else cost
    return Cost() if nests(eqn) or name in _APPLIED or name in _RUNS else None


class Costs:
    """A counter of the costs of jaxprs and eqns that visits each inner jaxpr once.

    Layers that call the same jitted function share its jaxpr.
    """

    def __init__(self, trips: WhileTrips | None = None) -> None:
        self.trips = WhileTrips() if trips is None else trips
        # By id and wanted results; the jaxpr is kept, or its id could be reused.
        self._costs: dict[tuple[int, Wanted], tuple[Jaxpr, Cost]] = {}
        self._reading: dict[tuple[int, Wanted], _NeededPart] = {}

    def of_jaxpr(self, jaxpr: Jaxpr, wanted: Wanted = None) -> Cost:
        """Return what one run of a jaxpr costs."""
        jaxpr = jax_compat.open_jaxpr(jaxpr)
        key = (id(jaxpr), wanted)
        met = self._costs.get(key)
        if met is None:
            met = self._costs[key] = (jaxpr, self._sum(self._read(jaxpr, wanted).eqns))
        return met[1]

    def of_program(self, jaxpr: Jaxpr) -> Cost:
        """Return what one run of a whole program costs, whose loops may bound one another's."""
        self.trips.add(jax_compat.open_jaxpr(jaxpr))
        return self.of_jaxpr(jaxpr)

    def of_some(
        self,
        jaxpr: Jaxpr,
        chosen: Callable[[Eqn], bool],
        opened: Container[int],
        wanted: Wanted = None,
    ) -> Cost:
        """Return what one run of some eqns of an open jaxpr costs."""
        needed = self._read(jaxpr, wanted).eqns
        total = self._sum(pair for pair in needed if chosen(pair[0]))
        for eqn, results in needed:
            if id(eqn) in opened:
                (nest,) = nests(eqn)
                total += self.of_some(nest.jaxpr, chosen, opened, self._inside(nest, results))
        return total

    def read(self, jaxpr: Jaxpr) -> frozenset[int]:
        """Return the numbers of the invars that an open jaxpr's results need."""
        return self._read(jaxpr, None).invars

    def of_eqn(self, eqn: Eqn, wanted: Wanted = None) -> Cost:
        """Return what one run of an eqn costs, with everything inside it times its trips."""
        name = jax_compat.primitive_name(eqn)
        rule = RULES.get(name)
        if rule is not None:
            return flat_cost(eqn) or Cost()
        params = jax_compat.params(eqn)
        if name in _APPLIED:
            return self._applied(eqn, name, params)
        if name in _RUNS:
            return self.of_jaxpr(params[_RUNS[name]])
        inner = nests(eqn)
        if not inner:
            return Cost(uncosted=(name,), nbytes=traffic(eqn))
        if inner[0].condition is not None:
            return self._while(eqn, inner[0].jaxpr, inner[0].condition)
        costs = [self.of_jaxpr(nest.jaxpr, self._inside(nest, wanted)) for nest in inner]
        if inner[0].kind == "branch":
            return _most_expensive(costs)
        (nest,), (cost,) = inner, costs
        if name == "shard_map":
            return replace(cost * devices_of(params), collectives=cost.collectives)
        return cost if nest.length is None else cost * nest.length

    def _while(self, eqn: Eqn, body: Jaxpr, condition: Jaxpr) -> Cost:
        once = self.of_jaxpr(condition) + self.of_jaxpr(body)
        trips = self.trips.of(eqn)
        branches = {
            id(jax_compat.params(inner)["branches"]): [
                self.of_jaxpr(nest.jaxpr, self._inside(nest, results)) for nest in nests(inner)
            ]
            for inner, results in self._read(body, None).eqns
            if trips is not None and trips.branches and jax_compat.primitive_name(inner) == "cond"
        }
        return loop_cost(once, trips, branches)

    def _sum(self, eqns: Iterable[tuple[Eqn, Wanted]]) -> Cost:
        # Sums of plain numbers: a Cost per addition would take longer than all rules together.
        exchanged: dict[str, int] = {}
        matmul = conv = elementwise = transcendentals = moved = 0
        uncosted: set[str] = set()
        notes: dict[str, None] = {}
        for eqn, wanted in eqns:
            name = jax_compat.primitive_name(eqn)
            rule = RULES.get(name)
            if rule is None:
                cost = self.of_eqn(eqn, wanted)
                moved += cost.nbytes
                collectives = cost.collectives
            else:
                cost = rule(eqn)
                moved += cost.nbytes or traffic(eqn)
                collectives = _exchanged(eqn) if name in COLLECTIVES else ()
            for kind, count in collectives:
                exchanged[kind] = exchanged.get(kind, 0) + count
            matmul += cost.matmul_flops
            conv += cost.conv_flops
            elementwise += cost.elementwise_flops
            transcendentals += cost.transcendentals
            uncosted.update(cost.uncosted)
            notes.update(dict.fromkeys(cost.notes))
        return Cost(
            *(matmul, conv, elementwise, transcendentals, moved),
            tuple(sorted(uncosted)),
            (*notes,),
            tuple(sorted(exchanged.items())),
        )

    def _applied(self, eqn: Eqn, name: str, params: Mapping[str, Any]) -> Cost:
        """Return the cost of inner jaxprs applied element by element.

        They move no bytes of their own.
        """
        if name == "reduce":
            times = size(eqn.invars[0]) - size(eqn.outvars[0])
        else:
            window = math.prod(map(int, params["window_dimensions"]))
            times = size(eqn.outvars[0] if name == "reduce_window" else eqn.invars[1])
            times *= window - (name == "reduce_window")
        inner = sum((self.of_jaxpr(params[p]) for p in _APPLIED[name]), Cost()) * times
        return replace(inner, nbytes=traffic(eqn))

    def _read(self, jaxpr: Jaxpr, wanted: Wanted) -> _NeededPart:
        """Return the eqns and invars of a jaxpr that its wanted results need."""
        key = (id(jaxpr), wanted)
        part = self._reading.get(key)
        if part is not None:
            return part
        needed = {
            v
            for i, v in enumerate(jaxpr.outvars)
            if (wanted is None or i in wanted) and not jax_compat.is_literal(v)
        }
        eqns: list[tuple[Eqn, Wanted]] = []
        for eqn in reversed(jaxpr.eqns):
            if not eqn.effects and needed.isdisjoint(eqn.outvars):
                continue
            results, operands = None, None
            if not eqn.effects and jax_compat.primitive_name(eqn) not in RULES:
                results = frozenset(i for i, v in enumerate(eqn.outvars) if v in needed)
                operands = self._operands(eqn, results)
            for i, v in enumerate(eqn.invars):
                if (operands is None or i in operands) and not jax_compat.is_literal(v):
                    needed.add(v)
            eqns.append((eqn, results))
        eqns.reverse()
        invars = frozenset(i for i, v in enumerate(jaxpr.invars) if v in needed)
        self._reading[key] = _NeededPart(jaxpr, tuple(eqns), invars)
        return self._reading[key]

    def _operands(self, eqn: Eqn, results: frozenset[int]) -> Wanted:
        """Return the operands that these results of a call, scan or cond need; None for all."""
        inner_jaxprs = nests(eqn)
        if not inner_jaxprs or inner_jaxprs[0].condition is not None:
            return None
        passed = {operand for nest in inner_jaxprs for operand in nest.operands}
        needed = set(range(len(eqn.invars))) - passed
        for nest in inner_jaxprs:
            inner = self._read(nest.jaxpr, self._inside(nest, results))
            needed.update(nest.operands[i] for i in inner.invars)
        return frozenset(needed)

    def _inside(self, nest: Nest, wanted: Wanted) -> Wanted:
        """Return the inner results that the wanted outer ones need, with the carries they read."""
        if wanted is None:
            return None
        inside = frozenset(i for i, result in enumerate(nest.results) if result in wanted)
        while nest.carries:
            inner_reads = self._read(nest.jaxpr, inside).invars
            more = inside | {out for into, out in nest.carries.items() if into in inner_reads}
            if more == inside:
                break
            inside = more
        return inside


def _exchanged(eqn: Eqn) -> tuple[tuple[str, int], ...]:
    return ((jax_compat.primitive_name(eqn), sum(nbytes(v) for v in eqn.outvars)),)


def _most_expensive(branches: list[Cost]) -> Cost:
    """Return the cost of the branch with the most FLOPs.

    The uncosted primitives and the notes are those of all branches.
    """
    most_expensive = max(branches, key=lambda c: (c.flops, c.transcendentals, c.nbytes))
    notes = (
        () if all(b == most_expensive for b in branches) else ("cond: the more expensive branch",)
    )
    return most_expensive + Cost(
        uncosted=tuple(name for b in branches for name in b.uncosted),
        notes=(*notes, *(note for b in branches for note in b.notes)),
    )


def loop_cost(once: Cost, trips: Trips | None, branches: Mapping[int, Sequence[Cost]]) -> Cost:
    """Return what all trips of a while loop cost.

    Args:
      once: the cost of one trip, with the most expensive branch of each cond.
      branches: the costs of the branches of the conds in its body, by the id of their tuple.
    """
    if trips is None:
        return once + Cost(notes=(TRIPS_UNKNOWN,))
    total = once * trips.count
    for cond, runs in trips.branches.items():
        if cond in branches:
            costs = branches[cond]
            total -= _most_expensive(list(costs)) * trips.count
            total += sum((cost * n for cost, n in zip(costs, runs, strict=True)), Cost())
    return total + Cost(notes=(trips.note,) * bool(trips.note))


def devices_of(params: Mapping[str, Any]) -> int:
    """Return the number of devices along the axes that a shard_map makes manual.

    The param that lists them was called `manual_axes` until JAX 0.9.
    """
    axes = params.get("newly_manual_axes", params.get("manual_axes"))
    return math.prod(params["mesh"].shape[axis] for axis in axes)
