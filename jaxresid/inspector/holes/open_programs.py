"""Programs of which the holes are known, so that these can be filled with something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from jaxresid import jax_compat
from jaxresid.base.errors import RetraceError, TraceError
from jaxresid.inspector.holes.apart import Loss, tracing_losses, trips_of
from jaxresid.inspector.holes.holes import Hole
from jaxresid.inspector.holes.splicing import (
    Gradients,
    UnjoinableError,
    gradients_in,
    joined,
    leaving_out,
)
from jaxresid.inspector.jaxpr.bindings import intercept_bind, strip_trace_context
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.trace.retracing import retracing
from jaxresid.inspector.trace.step import StepTrace, step_primal, step_trace
from jaxresid.jax_compat.jaxpr_types import ClosedJaxpr, Jaxpr

_CHANGES = (
    "the program takes other gradients each time it is traced, so no change can be made in them"
)


class OpenProgram(Protocol):
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


class Deferred:
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
        """Return the program with other jaxprs in holes; no user code runs."""

        def change(number: int, closed: ClosedJaxpr) -> ClosedJaxpr:
            jaxpr = changed.get(number)
            return closed if jaxpr is None else jax_compat.with_jaxpr(closed, jaxpr)

        return joined(self._left, self._gradients, change)


class TracedAgain:
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
        """Return the program with other jaxprs in holes."""

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


def opened(fun: Callable[..., Any], step: StepTrace) -> OpenProgram:
    """Return a program taken apart; where that cannot be done, one to be traced again.

    Args:
      fun: the program itself.
      step: its trace.

    Raises:
      RetraceError: neither can be done.
    """
    found: OpenProgram
    try:
        with retracing("the program without its gradients"):
            found = Deferred(fun, step)
    except RetraceError:
        try:
            with retracing("the program with its losses apart"):
                found = TracedAgain(fun, step)
        except RetraceError as e:
            reason = str(e).partition("\n")[0]
            if "leaked" in reason:
                reason = "a loss has to return what is used outside of it"
            raise RetraceError(
                f"what the program differentiates cannot be told from the rest: {reason}"
            ) from e
    if _checkpoints(found.whole.jaxpr) != _checkpoints(step.jaxpr):
        raise RetraceError("the program makes other checkpoints each time it is traced")
    return found


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
