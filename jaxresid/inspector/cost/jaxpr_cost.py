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
from jaxresid.inspector.jaxpr.primitives import COLLECTIVES
from jaxresid.inspector.jaxpr.while_loops.trips import TRIPS_UNKNOWN, Trips, WhileTrips
from jaxresid.inspector.trace.function import Trace
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr
from jaxresid.results import Cost

# How often the eqn applies the inner jaxprs of these params, each to single elements.
_APPLIED = {
    "reduce": ("jaxpr",),
    "reduce_window": ("jaxpr",),
    "select_and_scatter": ("select_jaxpr", "scatter_jaxpr"),
}

# Of several inner jaxprs the one that runs.
_RUNS = {"linear_call": "callee", "remat_opt": "fwd_jaxpr"}


# The numbers of those results that are read; None: all of them.
Wanted = frozenset[int] | None


@dataclass(frozen=True, slots=True)
class _NeededPart:
    """What the wanted results of a jaxpr need of it.

    Attributes:
      jaxpr: the jaxpr.
      eqns: the eqns that are needed, each with those of its own results that are read.
      invars: the numbers of the invars that are needed.
    """

    jaxpr: Jaxpr
    eqns: tuple[tuple[Eqn, Wanted], ...]
    invars: frozenset[int]


def jaxpr_cost(jaxpr: Jaxpr, trips: WhileTrips | None = None) -> Cost:
    """Return what one run of a jaxpr costs.

    Args:
      jaxpr: the jaxpr.
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
      traced: the trace.
      chosen: which of the eqns of the two jaxprs count; None: all.
      opened: the ids of calls of which some eqns count.
    """
    costs = Costs(traced.trips)
    needed = {traced.backward.invars[i] for i in costs.read(traced.backward)}
    read = (traced.num_outputs + i for i, v in enumerate(traced.read) if v in needed)
    wanted = frozenset([*range(traced.num_outputs), *read])
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
        cost = cost if cost.nbytes else _with_traffic(cost, eqn)
        return replace(cost, collectives=_exchanged(eqn)) if name in COLLECTIVES else cost
    return Cost() if nests(eqn) or _holds_known(eqn) else None


class Costs:
    """A counter of the costs of jaxprs and eqns that visits each inner jaxpr once.

    Layers that call the same jitted function share its jaxpr.

    Args:
      trips: the trips of while loops; None: those that a loop says by itself.
    """

    def __init__(self, trips: WhileTrips | None = None) -> None:
        self.trips = WhileTrips() if trips is None else trips
        # By id and wanted results; the jaxpr is kept, or its id could be reused.
        self._costs: dict[tuple[int, Wanted], tuple[Jaxpr, Cost]] = {}
        self._reading: dict[tuple[int, Wanted], _NeededPart] = {}

    def of_jaxpr(self, jaxpr: Jaxpr, wanted: Wanted = None) -> Cost:
        """Return what one run of a jaxpr costs.

        Args:
          jaxpr: the jaxpr, open or closed.
          wanted: the numbers of those of its results that are read; None for all of them.
        """
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
        """Return what one run of some eqns of an open jaxpr costs.

        Args:
          jaxpr: the open jaxpr.
          chosen: which of its eqns count.
          opened: the ids of calls of which some eqns count.
          wanted: the numbers of those of its results that are read; None for all of them.
        """
        read = self._read(jaxpr, wanted).eqns
        total = self._sum(each for each in read if chosen(each[0]))
        for eqn, results in read:
            if id(eqn) in opened:
                (nest,) = nests(eqn)
                total += self.of_some(nest.jaxpr, chosen, opened, self._inside(nest, results))
        return total

    def read(self, jaxpr: Jaxpr) -> frozenset[int]:
        """Return the numbers of the invars that an open jaxpr's results need."""
        return self._read(jaxpr, None).invars

    def of_eqn(self, eqn: Eqn, wanted: Wanted = None) -> Cost:
        """Return what one run of an eqn costs, with everything inside it times its trips.

        Args:
          eqn: the eqn.
          wanted: the numbers of those of its results that are read; None for all of them.
        """
        name = jax_compat.primitive_name(eqn)
        rule = RULES.get(name)
        if rule is not None:
            return flat_cost(eqn) or Cost()
        params = jax_compat.params(eqn)
        if name in _APPLIED:
            return self._applied(eqn, name, params)
        if name in _RUNS:
            return self.of_jaxpr(params[_RUNS[name]])
        if name == "while":
            return self._while(eqn, params)
        found = nests(eqn)
        if not found:
            return _with_traffic(Cost(uncosted=(name,)), eqn)
        costs = [self.of_jaxpr(nest.jaxpr, self._inside(nest, wanted)) for nest in found]
        if found[0].kind == "branch":
            return _most_expensive(costs)
        (nest,), (cost,) = found, costs
        if name == "shard_map":
            return replace(cost * devices_of(params), collectives=cost.collectives)
        return cost if nest.length is None else cost * nest.length

    def _while(self, eqn: Eqn, params: Mapping[str, Any]) -> Cost:
        body = jax_compat.open_jaxpr(params["body_jaxpr"])
        once = self.of_jaxpr(params["cond_jaxpr"]) + self.of_jaxpr(body)
        trips = self.trips.of(eqn)
        branches = {
            id(jax_compat.params(each)["branches"]): [
                self.of_jaxpr(nest.jaxpr, self._inside(nest, results)) for nest in nests(each)
            ]
            for each, results in self._read(body, None).eqns
            if trips is not None and trips.branches and jax_compat.primitive_name(each) == "cond"
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
                found = cost.collectives
            else:
                cost = rule(eqn)
                moved += cost.nbytes or traffic(eqn)
                found = _exchanged(eqn) if name in COLLECTIVES else ()
            for kind, count in found:
                exchanged[kind] = exchanged.get(kind, 0) + count
            matmul += cost.matmul_flops
            conv += cost.conv_flops
            elementwise += cost.elementwise_flops
            transcendentals += cost.transcendentals
            uncosted.update(cost.uncosted)
            notes.update(dict.fromkeys(cost.notes))
        return Cost(
            matmul,
            conv,
            elementwise,
            transcendentals,
            moved,
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
        return _with_traffic(inner, eqn)

    def _read(self, jaxpr: Jaxpr, wanted: Wanted) -> _NeededPart:
        """Return the eqns and invars of a jaxpr that its wanted results need."""
        key = (id(jaxpr), wanted)
        known = self._reading.get(key)
        if known is not None:
            return known
        read = {
            v
            for i, v in enumerate(jaxpr.outvars)
            if (wanted is None or i in wanted) and not jax_compat.is_literal(v)
        }
        eqns: list[tuple[Eqn, Wanted]] = []
        for eqn in reversed(jaxpr.eqns):
            if not eqn.effects and read.isdisjoint(eqn.outvars):
                continue
            results, operands = None, None
            if not eqn.effects and jax_compat.primitive_name(eqn) not in RULES:
                results = frozenset(i for i, v in enumerate(eqn.outvars) if v in read)
                operands = self._operands(eqn, results)
            for i, v in enumerate(eqn.invars):
                if (operands is None or i in operands) and not jax_compat.is_literal(v):
                    read.add(v)
            eqns.append((eqn, results))
        eqns.reverse()
        invars = frozenset(i for i, v in enumerate(jaxpr.invars) if v in read)
        self._reading[key] = _NeededPart(jaxpr, tuple(eqns), invars)
        return self._reading[key]

    def _operands(self, eqn: Eqn, results: frozenset[int]) -> Wanted:
        """Return the operands that these results of a call, scan or cond need; None for all."""
        found = nests(eqn)
        if not found or found[0].kind == "while":
            return None
        passed = {operand for nest in found for operand in nest.operands}
        needed = set(range(len(eqn.invars))) - passed
        for nest in found:
            inner = self._read(nest.jaxpr, self._inside(nest, results))
            needed.update(nest.operands[i] for i in inner.invars)
        return frozenset(needed)

    def _inside(self, nest: Nest, wanted: Wanted) -> Wanted:
        """Return the inner results that the wanted outer ones need, with the carries they read."""
        if wanted is None:
            return None
        inside = frozenset(i for i, result in enumerate(nest.results) if result in wanted)
        while nest.carries:
            read = self._read(nest.jaxpr, inside).invars
            more = inside | {out for into, out in nest.carries.items() if into in read}
            if more == inside:
                break
            inside = more
        return inside


def _holds_known(eqn: Eqn) -> bool:
    name = jax_compat.primitive_name(eqn)
    return name in _APPLIED or name in _RUNS


def _with_traffic(cost: Cost, eqn: Eqn) -> Cost:
    return Cost(
        cost.matmul_flops,
        cost.conv_flops,
        cost.elementwise_flops,
        cost.transcendentals,
        traffic(eqn),
        cost.uncosted,
        cost.notes,
        cost.collectives,
    )


def _exchanged(eqn: Eqn) -> tuple[tuple[str, int], ...]:
    """Return a collective's name with the bytes of its results."""
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
      trips: its trips; None: not known.
      branches: the costs of the branches of the conds in its body, by the id of their tuple.
    """
    if trips is None:
        return once + Cost(notes=(TRIPS_UNKNOWN,))
    total = once * trips.count
    for cond, runs in trips.branches.items():
        if cond in branches:
            each = branches[cond]
            total -= _most_expensive(list(each)) * trips.count
            total += sum((cost * n for cost, n in zip(each, runs, strict=True)), Cost())
    return total + Cost(notes=(trips.note,) * bool(trips.note))


def devices_of(params: Mapping[str, Any]) -> int:
    """Return the number of devices along the axes that a shard_map makes manual.

    The param that lists them was called `manual_axes` until JAX 0.9.
    """
    axes = params.get("newly_manual_axes", params.get("manual_axes"))
    return math.prod(params["mesh"].shape[axis] for axis in axes)
