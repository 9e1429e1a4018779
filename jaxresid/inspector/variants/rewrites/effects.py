"""Rewrite what is differentiated, differentiate it again, and tell what the program then takes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from jaxresid import jax_compat
from jaxresid.errors import RetraceError
from jaxresid.inspector.cost.jaxpr_cost import Costs, passes_cost
from jaxresid.inspector.few_layers import can_leave_out_layers, few_layers, whole_figures
from jaxresid.inspector.jaxpr.alike.repeats import shortened
from jaxresid.inspector.jaxpr.alike.shared_layers import with_shared_layers
from jaxresid.inspector.jaxpr.bindings import intercept_bind, strip_trace_context
from jaxresid.inspector.jaxpr.while_loops.trips import WhileTrips
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.program.build import JaxprReader, Program, value_and_gradients
from jaxresid.inspector.program.step import step_program
from jaxresid.inspector.program.step_roles import Roles
from jaxresid.inspector.residuals.offloading import kept_by, kept_nbytes
from jaxresid.inspector.residuals.step import step_kept_nbytes
from jaxresid.inspector.trace.function import Trace, retrace
from jaxresid.inspector.trace.retracing import retracing
from jaxresid.inspector.trace.step import StepTrace, step_primal, step_trace
from jaxresid.inspector.trace.traced import Traced
from jaxresid.inspector.variants.joined import Gradients, joined, leaving_out
from jaxresid.jaxpr_types import ClosedJaxpr, Jaxpr
from jaxresid.model import Cost

_log = logging.getLogger(__name__)
_REWRITE = "a rewrite"


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a program.

    Attributes:
      peak_nbytes: its estimated peak.
      kept_nbytes: what the backward pass keeps in device memory.
      cost: the cost of its passes.
    """

    peak_nbytes: int
    kept_nbytes: int
    cost: Cost


def figures_of(
    traced: Traced, program: Program, profile: Profile, costs: Costs | None = None
) -> Figures:
    """Return the figures of a program.

    Args:
      traced: the trace of a function or of a step.
      program: its program.
      profile: the profile of the compiler.
      costs: what counts the cost of a step, if there is one already.
    """
    peak = peak_nbytes(lower(program, profile))
    if isinstance(traced, Trace):
        kept, _ = kept_nbytes(kept_by(traced, program))
    else:
        assert isinstance(traced, StepTrace)
        kept, _ = step_kept_nbytes(traced, program)
    return Figures(peak, kept, cost_of(traced, costs))


def cost_of(traced: Traced, costs: Costs | None = None) -> Cost:
    """Return the cost of all passes of a function, or of a step; see `figures_of`."""
    if isinstance(traced, Trace):
        return sum(passes_cost(traced), Cost())
    assert isinstance(traced, StepTrace)
    return (costs or Costs(WhileTrips(traced.arguments.trips))).of_program(traced.jaxpr)


class Rewrites(Protocol):
    """What is differentiated in a program, and the program with one of these rewritten.

    Attributes:
      jaxprs: the open jaxprs that are differentiated; that of all of a program without a gradient.
      are_differentiated: whether they are.
    """

    jaxprs: tuple[Jaxpr, ...]
    are_differentiated: ClassVar[bool]

    def cost(self) -> Cost:
        """Return the cost of the program's passes as it is."""

    def figures(self, number: int, jaxpr: Jaxpr) -> Figures | None:
        """Return the figures with another jaxpr in the place of one that is differentiated.

        None where JAX cannot differentiate that: there is nothing to say of such a program.

        Args:
          number: the number of the one.
          jaxpr: the other, an open jaxpr of the same inputs and outputs.
        """

    def program(self, number: int, jaxpr: Jaxpr) -> tuple[Traced, Program]:
        """Return the trace and the whole program with another jaxpr, as for `figures`.

        Raises:
          RetraceError: JAX cannot differentiate that.
        """


class FunctionRewrites:
    """The rewrites of a function; see `Rewrites`."""

    are_differentiated: ClassVar[bool] = True

    def __init__(self, traced: Trace, profile: Profile) -> None:
        self._traced, self._profile = traced, profile
        self.jaxprs: tuple[Jaxpr, ...] = (traced.written,)

    def cost(self) -> Cost:
        """Return the cost of the function's passes as it is."""
        return cost_of(self._traced)

    def figures(self, number: int, jaxpr: Jaxpr) -> Figures | None:
        """Return the figures with another primal jaxpr; see `Rewrites.figures`."""
        return _tried(number, lambda: self._figures(number, jaxpr))

    def _figures(self, number: int, jaxpr: Jaxpr) -> Figures:
        short = shortened(jaxpr) if can_leave_out_layers(self._traced) else None
        if short is not None:
            with retracing(_REWRITE):
                made_of_few = few_layers(self._traced, short)
            few = whole_figures(made_of_few, self._profile)
            if few is not None:
                return Figures(few.peak_nbytes, few.kept_nbytes, sum(few.passes, Cost()))
        return figures_of(*self.program(number, with_shared_layers(jaxpr)), self._profile)

    def program(self, number: int, jaxpr: Jaxpr) -> tuple[Trace, Program]:
        """Return the trace and the whole program; see `Rewrites.program`."""
        made = self.trace(number, jaxpr)
        return made, value_and_gradients(made)

    def trace(self, number: int, jaxpr: Jaxpr) -> Trace:
        """Return the trace with another primal jaxpr."""
        primal = jax_compat.with_jaxpr(self._traced.primal().jaxpr, jaxpr)
        with retracing(_REWRITE):
            return retrace(self._traced, primal)


class ProgramRewrites:
    """The rewrites of a program without a gradient, of all of it; see `Rewrites`.

    Args:
      step: its trace.
      profile: the profile of the compiler.
      known: the roles of its inputs and outputs.
    """

    are_differentiated: ClassVar[bool] = False

    def __init__(self, step: StepTrace, profile: Profile, known: Roles) -> None:
        self._step, self._profile, self._roles = step, profile, known
        self._reader, self._costs = JaxprReader(), Costs(WhileTrips(step.arguments.trips))
        self.jaxprs: tuple[Jaxpr, ...] = (step.jaxpr,)

    def cost(self) -> Cost:
        """Return the cost of the program as it is."""
        return cost_of(self._step, self._costs)

    def figures(self, number: int, jaxpr: Jaxpr) -> Figures | None:
        """Return the figures with another jaxpr; see `Rewrites.figures`."""
        return figures_of(*self.program(number, jaxpr), self._profile, self._costs)

    def program(self, number: int, jaxpr: Jaxpr) -> tuple[StepTrace, Program]:
        """Return the trace and the whole program; see `Rewrites.program`."""
        closed = jax_compat.with_jaxpr(self._step.closed, jaxpr)
        made = replace(self._step, closed=closed)
        return made, step_program(made, self._roles, self._reader)


class StepRewrites:
    """The rewrites of a training step, which is traced once more; see `Rewrites`.

    Args:
      fun: the step itself.
      step: its trace.
      profile: the profile of the compiler.
      known: the roles of its inputs and outputs.

    Raises:
      RetraceError: its gradients cannot be left out of it.
    """

    are_differentiated: ClassVar[bool] = True

    def __init__(
        self, fun: Callable[..., Any], step: StepTrace, profile: Profile, known: Roles
    ) -> None:
        self._step, self._profile, self._gradients = step, profile, Gradients()
        self._roles, self._reader = known, JaxprReader()
        # In a context of its own, or a step that is jitted would not be traced again.
        with (
            retracing("the step without its gradients"),
            intercept_bind({}),
            leaving_out(self._gradients),
        ):
            primal = step_primal(fun, step.arguments)
        self._left = step_trace(primal, step.arguments, step.frames)
        for jaxpr in (self._left.jaxpr, *(each.jaxpr for each in self._gradients.found)):
            strip_trace_context(jaxpr)
        self.jaxprs = tuple(each.jaxpr for each in self._gradients.found)
        self._costs = Costs(WhileTrips(step.arguments.trips))

    def cost(self) -> Cost:
        """Return the cost of the step as it is."""
        return cost_of(self._step, self._costs)

    def figures(self, number: int, jaxpr: Jaxpr) -> Figures | None:
        """Return the figures with another loss; see `Rewrites.figures`."""
        return _tried(number, lambda: self._figures(number, jaxpr))

    def _figures(self, number: int, jaxpr: Jaxpr) -> Figures:
        made, program = self.program(number, with_shared_layers(jaxpr))
        return figures_of(made, program, self._profile, self._costs)

    def program(self, number: int, jaxpr: Jaxpr) -> tuple[StepTrace, Program]:
        """Return the trace and the whole program; see `Rewrites.program`."""
        made = self.trace(number, jaxpr)
        return made, step_program(made, self._roles_of(made), self._reader)

    def _roles_of(self, made: StepTrace) -> Roles | None:
        """Return the roles of the step as it is written; None where its inputs are others."""

        def signature(step: StepTrace) -> tuple[Hashable, ...]:
            return len(step.jaxpr.constvars), step.inputs, step.outputs, step.donated

        return self._roles if signature(made) == signature(self._step) else None

    def trace(self, number: int, jaxpr: Jaxpr) -> StepTrace:
        """Return the trace with another loss."""

        def change(which: int, closed: ClosedJaxpr) -> ClosedJaxpr:
            return jax_compat.with_jaxpr(closed, jaxpr) if which == number else closed

        with retracing(_REWRITE):
            return joined(self._left, self._gradients, change)


def _tried(number: int, figures: Callable[[], Figures]) -> Figures | None:
    """Return the figures of a rewrite; None where JAX cannot differentiate it."""
    try:
        made = figures()
    except RetraceError:  # which the log has
        return None
    _log.debug("a rewrite of loss %d tried: its peak is %d bytes", number, made.peak_nbytes)
    return made
