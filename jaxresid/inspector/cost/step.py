"""Count what a training step costs, pass by pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxresid import jax_compat
from jaxresid.inspector.cost.jaxpr_cost import Costs, Wanted, devices_of, jaxpr_cost
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.inspector.jaxpr.phases import (
    BACKWARD,
    BOTH,
    FORWARD,
    RECOMPUTE,
    UPDATE,
    Passes,
    phase_of,
)
from jaxresid.inspector.jaxpr.while_loops.trips import WhileTrips
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var
from jaxresid.results import Cost, Phases


def step_cost(step: StepTrace) -> Phases:
    """Return the cost of a training step, in parts that add up to the whole.

    What no derivative has a part in counts as `forward` where a forward pass reads it and it needs
    no gradient (preparing a batch, running a frozen model), otherwise as `update` (clipping, the
    optimizer). `recompute` is what the name stacks tag as such: this is exact for matmuls and
    convolutions. For elementwise work it is too much, since without the checkpoint the forward pass
    would prepare some of it for the backward pass as well (`1 - tanh(x)**2`). A program without a
    gradient is one pass, `program`.
    """
    if not step.holds_gradient:
        return Phases(Cost(), Cost(), Cost(), program=jaxpr_cost(step.jaxpr, step.trips))
    parts = _PassCosts(step.trips)
    parts.add(step.jaxpr, None, "", _RunCount(), frozenset(), frozenset())
    costs = parts.costs
    return Phases(costs[FORWARD], costs[BACKWARD], costs[RECOMPUTE], costs[UPDATE])


@dataclass(frozen=True, slots=True)
class _RunCount:
    """How often a jaxpr runs, and on how many devices each time."""

    trips: int = 1
    devices: int = 1

    def of(self, cost: Cost) -> Cost:
        """Return the cost of that many runs; collectives are those of one device."""
        times = cost * (self.trips * self.devices)
        return replace(times, collectives=(cost * self.trips).collectives)


class _PassCosts(Costs):
    """A counter that adds up costs by pass."""

    def __init__(self, trips: WhileTrips) -> None:
        super().__init__(trips)
        self.costs = dict.fromkeys((FORWARD, RECOMPUTE, BACKWARD, UPDATE), Cost())
        self._passes = Passes()

    def add(
        self,
        jaxpr: Jaxpr,
        wanted: Wanted,
        tags: str,
        times: _RunCount,
        behind: frozenset[int],
        ahead: frozenset[int],
    ) -> frozenset[int]:
        """Add the cost of what computes the wanted results of a jaxpr.

        Args:
          jaxpr: the open jaxpr.
          wanted: the numbers of those of its results that are read; None for all of them.
          tags: the name stacks of the eqns around it.
          times: how often it runs, and on how many devices.
          behind: the invars that a gradient has a part in.
          ahead: the outvars that a forward pass reads.

        Returns:
          The numbers of the outvars that a gradient has a part in.
        """
        eqns = self._read(jaxpr, wanted).eqns
        fed = self._fed(jaxpr, [eqn for eqn, _ in eqns], ahead)
        after = {v for i, v in enumerate(jaxpr.invars) if i in behind}
        for eqn, results in eqns:
            given = [
                i for i, v in enumerate(eqn.invars) if not jax_compat.is_literal(v) and v in after
            ]
            leaving = frozenset(i for i, v in enumerate(eqn.outvars) if v in fed)
            stack = f"{tags}/{jax_compat.name_stack(eqn)}"
            made = self._eqn(eqn, results, stack, times, given, leaving)
            after.update(v for i, v in enumerate(eqn.outvars) if i in made)
        outvars = enumerate(jaxpr.outvars)
        return frozenset(i for i, v in outvars if not jax_compat.is_literal(v) and v in after)

    def _fed(self, jaxpr: Jaxpr, eqns: Sequence[Eqn], ahead: frozenset[int]) -> set[Var]:
        """Return the variables that reach a forward eqn without any derivative on the way.

        Outvars that are `ahead` count as forward eqns do.
        """
        outvars = enumerate(jaxpr.outvars)
        fed = {v for i, v in outvars if i in ahead and not jax_compat.is_literal(v)}
        for eqn in reversed(eqns):
            phase = self._passes.of(eqn)
            if phase in (FORWARD, BOTH) or (phase == UPDATE and not fed.isdisjoint(eqn.outvars)):
                fed.update(v for v in eqn.invars if not jax_compat.is_literal(v))
        return fed

    def _eqn(
        self,
        eqn: Eqn,
        wanted: Wanted,
        tags: str,
        times: _RunCount,
        behind: Sequence[int],
        ahead: frozenset[int],
    ) -> frozenset[int]:
        every = frozenset(range(len(eqn.outvars)))
        phase = phase_of(tags)
        cost = times.of(self.of_eqn(eqn, wanted))
        found = nests(eqn)
        is_plain = not found or (phase == UPDATE and self._passes.of(eqn) == UPDATE)
        trips = self.trips.of(eqn) if found and found[0].kind == "while" else None
        if phase in (FORWARD, RECOMPUTE) or is_plain:
            if phase == UPDATE and ahead and not behind:
                phase = FORWARD
            self.costs[phase] += cost
            return every if behind or phase in (RECOMPUTE, BACKWARD) else frozenset()
        costs = [self.of_jaxpr(nest.jaxpr, self._inside(nest, wanted)) for nest in found]
        which = max(range(len(found)), key=lambda i: (costs[i].flops, costs[i].nbytes))
        nest, once = found[which], costs[which]
        inside = times
        if jax_compat.primitive_name(eqn) == "shard_map":
            inside = replace(times, devices=times.devices * devices_of(jax_compat.params(eqn)))
        elif nest.kind == "scan":
            inside = replace(times, trips=times.trips * (nest.length or 1))
        elif trips is not None:
            inside = replace(times, trips=times.trips * trips.count)
        made = self.add(
            nest.jaxpr,
            self._inside(nest, wanted),
            tags,
            inside,
            frozenset(i for i, operand in enumerate(nest.operands) if operand in behind),
            frozenset(i for i, result in enumerate(nest.results) if result in ahead),
        )
        # What it takes beside that body, such as the condition of a while loop, and its notes.
        self.costs[phase] += cost - inside.of(once)
        if phase == BACKWARD:
            return every
        return frozenset(r for i in made if (r := nest.results[i]) is not None)
