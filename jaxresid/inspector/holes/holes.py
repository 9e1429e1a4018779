"""A program as what it differentiates, its holes, and the program around these.

A loss is one hole, and nothing is around it. A program takes its gradients itself: it is traced
with these left out, each known by the jaxpr that it differentiates, which still has its
checkpoints. Of both the program is had with something else in a hole: that is differentiated, and
put where the gradient was.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, Generic, Protocol, TypeVar

from jaxresid import jax_compat
from jaxresid.errors import RetraceError, TraceError
from jaxresid.inspector.cost.jaxpr_cost import Costs, passes_cost
from jaxresid.inspector.cost.step import step_cost
from jaxresid.inspector.holes.apart import Loss, tracing_losses, trips_of
from jaxresid.inspector.holes.splicing import (
    Gradients,
    UnjoinableError,
    gradients_in,
    joined,
    leaving_out,
)
from jaxresid.inspector.jaxpr.bindings import intercept_bind, strip_trace_context
from jaxresid.inspector.jaxpr.frames import Frame
from jaxresid.inspector.jaxpr.inline import flattened
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.jaxpr.phases import RECOMPUTE
from jaxresid.inspector.jaxpr.while_loops.trips import WhileTrips
from jaxresid.inspector.memory.peak import OpSources
from jaxresid.inspector.program.build import JaxprReader, Program, value_and_gradients
from jaxresid.inspector.program.op_cost import block_cost
from jaxresid.inspector.program.step import step_program
from jaxresid.inspector.program.step_roles import PARAMETERS, Roles, next_values, roles
from jaxresid.inspector.residuals.function import residuals
from jaxresid.inspector.residuals.offloading import (
    KeptResidual,
    kept_by,
    kept_nbytes,
    kept_of,
)
from jaxresid.inspector.residuals.step import step_kept_nbytes, step_residuals
from jaxresid.inspector.trace.derivatives import lines_of_gradients
from jaxresid.inspector.trace.function import Trace, retrace
from jaxresid.inspector.trace.retracing import retracing
from jaxresid.inspector.trace.step import StepTrace, may_be_program, step_primal, step_trace
from jaxresid.inspector.trace.traced import Traced
from jaxresid.jaxpr_types import ClosedJaxpr, Eqn, Jaxpr, Var
from jaxresid.model import Cost, Location, Phases, Residual, Target

T = TypeVar("T", bound=Traced)
# Puts a function that traces into a context.
Around = Callable[[Callable[[], Any]], Callable[[], Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Hole:
    """What one gradient of a program is of.

    Attributes:
      number: its number among the gradients of the program.
      level: the level of its jaxpr.
      differentiated: the inputs of its jaxpr that the gradient is taken of.
      trips: how often it runs in the program.
      loops: the loop eqns of the program around it, outermost first.
    """

    number: int
    level: Level
    differentiated: tuple[Var, ...]
    trips: int = 1
    loops: tuple[Eqn, ...] = ()

    @property
    def jaxpr(self) -> Jaxpr:
        """The open jaxpr that is differentiated, which shows the checkpoints."""
        return self.level.jaxpr


class Holes(ABC, Generic[T]):
    """What a program differentiates, and the program with something else in its place.

    Attributes:
      traced: the trace of the program as it is.
    """

    traced: T

    @property
    @abstractmethod
    def levels(self) -> Levels:
        """The descent into the jaxprs of the holes."""

    @property
    @abstractmethod
    def holes(self) -> tuple[Hole, ...]:
        """The holes, in program order.

        Raises:
          JaxresidError: they cannot be told from the rest of the program.
        """

    @abstractmethod
    def trace(self, changed: Mapping[int, Jaxpr]) -> T:
        """Return the trace of the program with other open jaxprs in holes; no user code runs.

        Args:
          changed: the others by the number of the hole, of the same inputs and outputs.

        Raises:
          Exception: JAX cannot differentiate one of them.
        """

    @abstractmethod
    def again(self) -> Holes[T]:
        """Return the holes of the program, traced again.

        Raises:
          Exception: whatever the program raises.
        """

    @abstractmethod
    def traced_with(self, around: Around) -> T:
        """Return the trace of the program as it is, of holes that `again` made in a context.

        Args:
          around: puts what is traced later into the context as well.
        """

    @property
    @abstractmethod
    def passes(self) -> tuple[Jaxpr, ...]:
        """The open jaxprs that hold the passes; the last one holds all backward passes."""

    @abstractmethod
    def program(self, traced: T) -> Program:
        """Return the whole program of a trace."""

    @abstractmethod
    def kept_nbytes(self, traced: T, program: Program | None = None) -> tuple[int, int]:
        """Return the bytes of computed residuals of a trace in device and in host memory."""

    @abstractmethod
    def residuals(self, traced: T, program: Program | None = None) -> tuple[Residual, ...]:
        """Return the residuals of a trace."""

    @abstractmethod
    def kept(self, traced: T, program: Program) -> tuple[KeptResidual, ...]:
        """Return the computed residuals of a trace."""

    @abstractmethod
    def types_kept(self, traced: T) -> Hashable:
        """Return something that is equal for traces that keep the same."""

    @abstractmethod
    def phases(self, traced: T) -> Phases:
        """Return the cost of the passes of a trace, recomputation as its tags have it."""

    @abstractmethod
    def cost(self, traced: T) -> Cost:
        """Return what a trace costs."""

    def phases_by_tags(self, program: Program) -> Phases:
        """Return the cost of the passes, where what it costs without checkpoints is not known."""
        return self.phases(self.traced)

    @property
    @abstractmethod
    def recomputing(self) -> Jaxpr:
        """The open jaxpr of the program as it is that holds its backward passes."""

    @abstractmethod
    def spliced(self, written: Program) -> tuple[Program, OpSources]:
        """Return the whole program, of the eqns that the holes have, and the places of its ops.

        Args:
          written: the whole program as it was traced.
        """

    @property
    def alone(self) -> Trace | None:
        """The trace of a loss that nothing is around; None of a program."""
        return None

    @abstractmethod
    def function_of(self, hole: Hole, name: str) -> tuple[str, Location | None] | None:
        """Return the function that a hole is of, and where it is defined.

        None where it is none of the user's that a checkpoint could be put around.

        Args:
          hole: the hole.
          name: the name of the program.
        """

    @abstractmethod
    def losses(self, changed: Mapping[int, Jaxpr]) -> tuple[Loss, ...]:
        """Return what the program differentiates, with other open jaxprs in holes."""

    @abstractmethod
    def of(self, traced: T) -> Holes[T]:
        """Return the holes of another trace of the program."""

    @abstractmethod
    def with_leaves(self, leaves: Sequence[Any]) -> Holes[T]:
        """Return the holes of the program, traced with other leaves in the place of its arguments'.

        Args:
          leaves: as many as `traced.arguments` has.

        Raises:
          Exception: whatever the program raises while JAX traces it.
        """

    def as_step(self, traced: T) -> StepTrace | None:
        """Return a trace as that of a program as it is; None of a loss."""
        return None

    @abstractmethod
    def target(self, name: str) -> Target:
        """Return the target of a report: what is differentiated, or which gradients it takes.

        Args:
          name: the name of the program.
        """


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

    @property
    def recomputing(self) -> Jaxpr:
        """The backward jaxpr."""
        return self.traced.backward

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

    def types_kept(self, traced: Trace) -> Hashable:
        """Return how often each type is among what the forward pass hands over."""
        types = Counter(str(v.aval) for v in traced.forward.outvars[traced.num_outputs :])
        return frozenset(types.items())

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
        # The primal jaxpr may need another trace.
        holds_gradients = may_be_program(self.traced)
        own = lines_of_gradients(self.traced.written, self.traced.frames) if holds_gradients else ()
        paths = tuple(call.paths[i] for i in call.having("differentiated"))
        return Target(name, paths, "loss", own, other_mode="program")


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
    def _open(self) -> _Open:
        """The program taken apart; where that cannot be done, the program to be traced again.

        Raises:
          RetraceError: neither can be done.
        """
        found: _Open
        try:
            with retracing("the program without its gradients"):
                found = _Deferred(self._fun, self.traced)
        except RetraceError:
            try:
                with retracing("the program with its losses apart"):
                    found = _TracedAgain(self._fun, self.traced)
            except RetraceError as e:
                reason = str(e).partition("\n")[0]
                if "leaked" in reason:
                    reason = "a loss has to return what is used outside of it"
                raise RetraceError(
                    f"what the program differentiates cannot be told from the rest: {reason}"
                ) from e
        if _checkpoints(found.whole.jaxpr) != _checkpoints(self.traced.jaxpr):
            raise RetraceError("the program makes other checkpoints each time it is traced")
        return found

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
        return isinstance(self._open, _Deferred)

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
        way = _Deferred if self.is_deferred else _TracedAgain
        made._open = way(self._fun, self.traced)
        return made

    def traced_with(self, around: Around) -> StepTrace:
        """Return the trace of the program; see `Holes.traced_with`."""
        return self._open.whole

    @property
    def passes(self) -> tuple[Jaxpr, ...]:
        """The open jaxprs of the holes, and the whole program."""
        return *(hole.jaxpr for hole in self.holes), self._open.whole.jaxpr

    @property
    def recomputing(self) -> Jaxpr:
        """The program itself."""
        return self.traced.jaxpr

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

    def types_kept(self, traced: StepTrace) -> Hashable:
        """Return the bytes of what is kept on the device and on the host."""
        return step_kept_nbytes(traced)

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
        parameters = tuple(r.path or "" for r in self._roles()[0] if r.kind == PARAMETERS)
        own = lines_of_gradients(step.jaxpr, step.frames)
        if not own:
            found = Target(name, parameters, "program")
            return replace(found, other_mode="loss") if step.is_differentiable else found
        updated = {step.inputs[i] for i in next_values(step, only_of_itself=True)}
        is_step = not step.is_dead and not updated.isdisjoint(parameters)
        return Target(name, parameters, "program", own, is_step)


class _Open(Protocol):
    """A program of which the holes are known.

    Attributes:
      levels: the descent into their jaxprs.
      holes: they themselves.
      losses: all that it differentiates, by number.
      whole: the trace of the program with nothing changed.
    """

    levels: Levels
    holes: tuple[Hole, ...]
    losses: list[Loss]
    whole: StepTrace

    def trace(self, changed: Mapping[int, Jaxpr]) -> StepTrace:
        """Return the program with other jaxprs in holes."""
        ...


class _Deferred:
    """A program that was traced once, with its gradients left out; see `splicing`."""

    def __init__(self, fun: Callable[..., Any], step: StepTrace) -> None:
        self._gradients = Gradients(step.frames)
        # In a context of its own, or a program that is jitted would not be traced again.
        with intercept_bind({}), leaving_out(self._gradients):
            primal = step_primal(fun, step.arguments)
        if self._gradients.is_partial:
            raise UnjoinableError
        self._left = step_trace(primal, step.arguments, step.frames)
        for jaxpr in (self._left.jaxpr, *(each.jaxpr for each in self._gradients.found)):
            strip_trace_context(jaxpr)
        self.levels = self._left.levels
        found: dict[int, Hole] = {}
        for number, level, trips, loops in gradients_in(self.levels, self._left.tops[0]):
            hole = found.setdefault(
                number, Hole(number, level, self._gradients.found[number].leaves, 0, loops)
            )
            found[number] = replace(hole, trips=hole.trips + trips)
        self.holes = tuple(found.values())
        self.losses = [each.loss for each in self._gradients.found]
        self.whole = self.trace({})

    def trace(self, changed: Mapping[int, Jaxpr]) -> StepTrace:
        def change(number: int, closed: ClosedJaxpr) -> ClosedJaxpr:
            jaxpr = changed.get(number)
            return closed if jaxpr is None else jax_compat.with_jaxpr(closed, jaxpr)

        return joined(self._left, self._gradients, change)


class _TracedAgain:
    """A program that is traced again for each change, with its losses apart; see `apart`.

    That is a program of which a gradient is differentiated or batched as a whole, or whose backward
    passes are elsewhere than their forward passes.
    """

    def __init__(self, fun: Callable[..., Any], step: StepTrace) -> None:
        self._fun, self._step = fun, step
        self.levels = Levels(step.frames)
        with intercept_bind({}), tracing_losses(step.frames, marked=True) as losses:
            marked = self._traced()
        runs = trips_of(marked.jaxpr)
        self.losses = losses
        for loss in losses:
            strip_trace_context(loss.jaxpr)
        found = []
        for number in sorted(runs):
            loss = losses[number]
            jaxpr = jax_compat.open_jaxpr(loss.lifted)
            leaves = tuple(jaxpr.invars[len(loss.closed.consts) :])
            found.append(Hole(number, Level(jaxpr), leaves, *runs[number]))
        self.holes = tuple(found)
        self.whole = self.trace({})

    def trace(self, changed: Mapping[int, Jaxpr]) -> StepTrace:
        def change(number: int, closed: ClosedJaxpr) -> ClosedJaxpr:
            jaxpr = changed.get(number)
            if jaxpr is None:
                return closed
            if _kinds(closed) != _kinds(self.losses[number].closed):
                raise TraceError(_CHANGES)
            return jax_compat.with_inputs_as_constants(jaxpr, closed)

        with intercept_bind({}), tracing_losses(self._step.frames, change) as losses:
            made = self._traced()
        if len(losses) != len(self.losses):
            raise TraceError(_CHANGES)
        return made

    def _traced(self) -> StepTrace:
        step = self._step
        made = step_trace(step_primal(self._fun, step.arguments), step.arguments, step.frames)
        strip_trace_context(made.jaxpr)
        return made


_CHANGES = (
    "the program takes other gradients each time it is traced, so no change can be made in them"
)


def _checkpoints(jaxpr: Jaxpr) -> Counter[str | None]:
    """Count the functions of the checkpoints in an open jaxpr."""
    bodies = (
        jax_compat.open_jaxpr(jax_compat.params(eqn)["jaxpr"])
        for eqn in eqns_in(jaxpr)
        if jax_compat.primitive_name(eqn) == "remat"
    )
    return Counter(map(jax_compat.traced_function, bodies))


def _kinds(closed: ClosedJaxpr) -> list[str]:
    """Return the primitives of a loss, and the types of its constants."""
    jaxpr = jax_compat.open_jaxpr(closed)
    return [
        *(str(v.aval) for v in jaxpr.constvars),
        *map(jax_compat.primitive_name, jaxpr.eqns),
    ]
