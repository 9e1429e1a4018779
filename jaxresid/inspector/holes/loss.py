"""A loss as one hole."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import TraceError
from jaxresid.inspector.cost.jaxpr_cost import passes_cost
from jaxresid.inspector.holes.apart import Loss
from jaxresid.inspector.holes.holes import Around, Hole, Holes
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.phases import RECOMPUTE
from jaxresid.inspector.memory.peak import OpSources
from jaxresid.inspector.program.build import Program, value_and_gradients
from jaxresid.inspector.program.op_cost import block_cost
from jaxresid.inspector.residuals.function import residuals
from jaxresid.inspector.residuals.offloading import (
    KeptResidual,
    kept_by,
    kept_nbytes,
)
from jaxresid.inspector.trace.function import Trace, retrace
from jaxresid.inspector.trace.taken_gradients import lines_of_gradients
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import Cost, Location, Phases, Residual, Target


class LossHole(Holes[Trace]):
    """The hole of a loss, which nothing is around."""

    def __init__(self, traced: Trace) -> None:
        self.traced = traced

    @property
    def levels(self) -> Levels:
        """The descent into its jaxprs."""
        return self.traced.levels

    @functools.cached_property
    def holes(self) -> tuple[Hole, ...]:
        """The primal jaxpr."""
        inputs = self.traced.primal_inputs
        level = Level(self.traced.written, inputs=inputs)
        leading = sum(path is None for path in inputs)
        count = len(self.traced.arguments.having("differentiated"))
        return (Hole(0, level, tuple(level.jaxpr.invars[leading : leading + count])),)

    def trace(self, changed: Mapping[int, Jaxpr]) -> Trace:
        """Return the trace with another primal jaxpr; see `Holes.trace`."""
        jaxpr = changed.get(0)
        if jaxpr is None:
            return self.traced
        return retrace(self.traced, jax_compat.with_jaxpr(self.traced.primal().jaxpr, jaxpr))

    def again(self) -> LossHole:
        """Return the loss traced again, and its primal jaxpr; see `Holes.again`."""
        if self.traced.again is None:
            raise TraceError("the function cannot be traced again")
        return LossHole(self.traced.again(self.traced.arguments))

    def traced_with(self, around: Around) -> Trace:
        """Return the trace; its primal jaxpr is traced later; see `Holes.traced_with`."""
        if self.traced.arguments.refs:
            return self.traced  # its primal jaxpr is traced with the passes
        return self.traced.tracing_in(around)

    @property
    def passes(self) -> tuple[Jaxpr, ...]:
        """The forward and the backward jaxpr."""
        return self.traced.forward, self.traced.backward

    def spliced(self, written: Program) -> tuple[Program, OpSources]:
        """Return the program as it was traced."""
        return written, OpSources(self.traced)

    def program(self, traced: Trace) -> Program:
        """Return the program of value and gradients."""
        return value_and_gradients(traced)

    def kept_nbytes(self, traced: Trace, program: Program | None = None) -> tuple[int, int]:
        """Return the bytes of computed residuals; see `Holes.kept_nbytes`."""
        return kept_nbytes(self.kept(traced, program or value_and_gradients(traced)))

    def residuals(self, traced: Trace, program: Program | None = None) -> tuple[Residual, ...]:
        """Return the residuals, in the order of the vjp function's leaves."""
        return residuals(traced, program)

    def kept(self, traced: Trace, program: Program) -> tuple[KeptResidual, ...]:
        """Return the computed residuals, without tracing the primal jaxpr."""
        return kept_by(traced, program)

    def phases(self, traced: Trace) -> Phases:
        """Return the cost of both passes; recomputation is in the backward pass."""
        return Phases(*passes_cost(traced), Cost())

    def cost(self, traced: Trace) -> Cost:
        """Return what both passes cost."""
        return sum(passes_cost(traced), Cost())

    def phases_by_tags(self, program: Program) -> Phases:
        """Return the total cost split by what JAX tags as recomputed."""
        traced = self.traced
        forward, recompute = (
            passes_cost(traced)[0],
            block_cost(program.block, traced.trips, RECOMPUTE),
        )
        return Phases(forward, self.cost(traced) - forward - recompute, recompute)

    @property
    def alone(self) -> Trace:
        """The trace of the loss."""
        return self.traced

    def function_of(self, hole: Hole, name: str) -> tuple[str, Location | None]:
        """Return the name of the loss itself."""
        return name.rpartition(":")[2], None

    def losses(self, changed: Mapping[int, Jaxpr]) -> tuple[Loss, ...]:
        """Return the loss, with another primal jaxpr."""
        closed, jaxpr = self.traced.primal().jaxpr, changed.get(0)
        if jaxpr is not None:
            closed = jax_compat.with_jaxpr(closed, jaxpr)
        return (Loss(closed, frozenset(), self.traced.num_outputs),)

    def of(self, traced: Trace) -> LossHole:
        """Return the hole of another trace of the loss."""
        return LossHole(traced)

    def with_leaves(self, leaves: Sequence[Any]) -> LossHole:
        """Return the loss traced with other leaves; see `Holes.with_leaves`."""
        again = self.traced.again
        if again is None:
            raise TraceError("the function cannot be traced again")
        made = again(replace(self.traced.arguments, leaves=tuple(leaves)))
        return LossHole(replace(made, again=again, has_aux=self.traced.has_aux))

    def target(self, name: str) -> Target:
        """Return the name of the loss, and what it is differentiated by."""
        call = self.traced.arguments
        own = lines_of_gradients(self.traced.taken_gradients)
        paths = tuple(call.paths[i] for i in call.having("differentiated"))
        return Target(name, paths, "loss", own, other_mode="program")
