"""A program that takes its gradients itself, as holes and what is around them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

from jaxresid.inspector.cost.jaxpr_cost import Costs
from jaxresid.inspector.cost.step import step_cost
from jaxresid.inspector.holes.apart import Loss
from jaxresid.inspector.holes.holes import Around, Hole, Holes
from jaxresid.inspector.holes.open_programs import Deferred, OpenProgram, TracedAgain, opened
from jaxresid.inspector.jaxpr.frames import Frame
from jaxresid.inspector.jaxpr.inline import flattened
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.while_loops.trips import WhileTrips
from jaxresid.inspector.memory.peak import OpSources
from jaxresid.inspector.program.build import JaxprReader, Program
from jaxresid.inspector.program.step import step_program
from jaxresid.inspector.program.step_roles import PARAMETERS, Roles, is_training_step, roles
from jaxresid.inspector.residuals.offloading import (
    KeptResidual,
    kept_of,
)
from jaxresid.inspector.residuals.step import step_kept_nbytes, step_residuals
from jaxresid.inspector.trace.step import StepTrace, step_primal, step_trace
from jaxresid.inspector.trace.taken_gradients import lines_of_gradients
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import Cost, Location, Phases, Residual, Target


class ProgramHoles(Holes[StepTrace]):
    """The holes of a program that takes its gradients itself.

    Args:
      fun: the program itself.
      step: its trace.
    """

    def __init__(self, fun: Callable[..., Any], step: StepTrace) -> None:
        self._fun = fun
        self.traced = step
        self._roles = functools.cache(lambda: roles(step))
        # What variants of the program share.
        self._reader, self._costs = JaxprReader(), Costs(WhileTrips(step.arguments.trips))

    @functools.cached_property
    def _open(self) -> OpenProgram:
        return opened(self._fun, self.traced)

    @property
    def levels(self) -> Levels:
        """The descent into the jaxprs of the holes."""
        return self._open.levels

    @property
    def holes(self) -> tuple[Hole, ...]:
        """The losses that the program differentiates."""
        return self._open.holes

    @property
    def is_deferred(self) -> bool:
        """Whether its gradients could be left out, so that no user code runs for a change."""
        return isinstance(self._open, Deferred)

    def trace(self, changed: Mapping[int, Jaxpr]) -> StepTrace:
        """Return the trace of the program with other losses; see `Holes.trace`."""
        if not changed:
            return self._open.whole

        @functools.cache
        def to_compile() -> StepTrace:
            plain = {n: flattened(jaxpr, everywhere=True) for n, jaxpr in changed.items()}
            return self._open.trace(plain)

        return replace(self._open.trace(changed), to_compile=to_compile)

    def again(self) -> ProgramHoles:
        """Return the holes of the program, traced again; see `Holes.again`."""
        made = ProgramHoles(self._fun, self.traced)
        way = Deferred if self.is_deferred else TracedAgain
        made._open = way(self._fun, self.traced)
        return made

    def traced_with(self, around: Around) -> StepTrace:
        """Return the trace of the program; see `Holes.traced_with`."""
        return self._open.whole

    @property
    def passes(self) -> tuple[Jaxpr, ...]:
        """The open jaxprs of the holes, and the whole program."""
        return *(hole.jaxpr for hole in self.holes), self._open.whole.jaxpr

    def spliced(self, written: Program) -> tuple[Program, OpSources]:
        """Return the program that was put together of its holes, nothing in them changed."""
        whole = self._open.whole
        return self.program(whole), OpSources(whole)

    def program(self, traced: StepTrace) -> Program:
        """Return the whole program of a trace."""
        return step_program(traced, self._roles_of(traced), self._reader)

    def _roles_of(self, traced: StepTrace) -> Roles | None:
        """Return the roles of the program as it is written; None where its inputs are others."""

        def signature(step: StepTrace) -> tuple[Hashable, ...]:
            return len(step.jaxpr.constvars), step.inputs, step.outputs, step.donated

        return self._roles() if signature(traced) == signature(self.traced) else None

    def kept_nbytes(self, traced: StepTrace, program: Program | None = None) -> tuple[int, int]:
        """Return the bytes of computed residuals; see `Holes.kept_nbytes`."""
        return step_kept_nbytes(traced, program)

    def residuals(self, traced: StepTrace, program: Program | None = None) -> tuple[Residual, ...]:
        """Return the residuals of all gradients, in program order."""
        return step_residuals(traced, program)

    def kept(self, traced: StepTrace, program: Program) -> tuple[KeptResidual, ...]:
        """Return the computed residuals of all gradients."""
        return kept_of(step_residuals(traced, program))

    def phases(self, traced: StepTrace) -> Phases:
        """Return the cost of the passes; see `step_cost`."""
        return step_cost(traced)

    def cost(self, traced: StepTrace) -> Cost:
        """Return what a run of the program costs."""
        return self._costs.of_program(traced.jaxpr)

    def function_of(self, hole: Hole, name: str) -> tuple[str, Location | None] | None:
        """Return the function of the user's that all eqns of a loss came through."""
        top, loss = Level(hole.jaxpr), self._open.losses[hole.number]
        outermost: dict[CodeType | None, Frame | None] = {}
        for eqn in hole.jaxpr.eqns:
            users = (
                frame
                for frame in self.levels.position(top, eqn).frames
                if frame.kind == "user" and frame.code not in loss.callers
            )
            first = next(users, None)
            outermost.setdefault(first.code if first else None, first)
        (frame, *others) = outermost.values() or [None]
        if frame is None or others or hole.jaxpr.effects:
            return None
        code = frame.code
        function = code.co_qualname.rpartition("<locals>.")[2]
        file = self.levels.frames.location(frame).file
        return function, Location(file, code.co_firstlineno, None, function)

    def losses(self, changed: Mapping[int, Jaxpr]) -> tuple[Loss, ...]:
        """Return all that the program differentiates; see `Holes.losses`."""
        return tuple(
            loss if n not in changed else loss.with_jaxpr(changed[n])
            for n, loss in enumerate(self._open.losses)
        )

    def of(self, traced: StepTrace) -> ProgramHoles:
        """Return the holes of another trace of the program."""
        return ProgramHoles(self._fun, traced)

    def with_leaves(self, leaves: Sequence[Any]) -> ProgramHoles:
        """Return the program traced with other leaves; see `Holes.with_leaves`."""
        call = replace(self.traced.arguments, leaves=tuple(leaves))
        primal = step_primal(self._fun, call)
        return ProgramHoles(self._fun, step_trace(primal, call, self.traced.frames))

    def as_step(self, traced: StepTrace) -> StepTrace:
        """Return the trace."""
        return traced

    def target(self, name: str) -> Target:
        """Return the name of the program, and what it takes gradients of, as far as is known."""
        step = self.traced
        inputs = self._roles()[0]
        parameters = tuple(r.path or "" for r in inputs if r.kind == PARAMETERS)
        own = lines_of_gradients(step.taken_gradients)
        if not own:
            found = Target(name, parameters, "program")
            return replace(found, other_mode="loss") if step.is_differentiable else found
        is_step = not step.is_dead and is_training_step(step, inputs)
        return Target(name, parameters, "program", own, is_step)
