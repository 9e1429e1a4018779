"""Trace a target as its mode says: a loss with its gradient, or a program as it is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from jaxresid.base.errors import InputsError, JaxresidError, TraceError
from jaxresid.inspector.call.arguments import Arguments, without_changed
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.checkpoints.evaluate import check_policies
from jaxresid.inspector.holes.holes import Holes
from jaxresid.inspector.holes.loss import LossHole
from jaxresid.inspector.holes.program import ProgramHoles
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.subject.base import dead_gradients
from jaxresid.inspector.trace import meshes
from jaxresid.inspector.trace import step as steps
from jaxresid.inspector.trace.changes import changes, changes_by_function
from jaxresid.inspector.trace.failures import AS_PROGRAM, needs_static, numbers_held, trace_error
from jaxresid.inspector.trace.function import Trace, is_real_scalar, is_scalar_with_aux, trace
from jaxresid.inspector.trace.primal import StoppedError, TracedFunction, primal_trace
from jaxresid.inspector.trace.reading import Reading, reading
from jaxresid.inspector.trace.traced import Traced


@dataclass(frozen=True, slots=True)
class TracedTarget:
    """A target as it was traced: a loss with its gradient, or a program as it is."""

    holes: Holes[Any]
    warnings: tuple[str, ...] = ()

    @property
    def trace(self) -> Traced:
        traced: Traced = self.holes.traced
        return traced

    def on_own_mesh(self) -> Holes[Any]:
        """Return it split over the mesh that it brings along, if its arguments are not split."""
        call = meshes.with_own_mesh(self.trace.arguments, self.trace.first)
        if call is self.trace.arguments:
            return self.holes
        return self.holes.of(replace(self.trace, arguments=call))

    @property
    def may_be_program(self) -> bool:
        """Whether a loss takes gradients itself, as a training step does, or has none but zero."""
        loss = self.holes.alone
        return loss is not None and (loss.holds_gradient or loss.is_flat)


def traced_target(question: Question, call: Arguments, frames: Frames) -> TracedTarget:
    """Trace a target as its mode says; where none is chosen, as what it turns out to be.

    What may be either is differentiated up to its return, which shows most programs; a jitted
    function is traced as it is first, since the derivative of a whole training step takes long.
    """
    fun, name, has_aux = question.fun, question.called, question.has_aux
    is_jitted = steps.is_jitted(fun)
    as_program = call.with_numbers("traced")
    if question.mode == "program":
        return _as_it_is(fun, as_program, name, frames).program(fun, name, frames)
    # Whether there is auxiliary data is read even where a loss is asked for.
    is_open, how = not question.is_loss, None
    reads_aux = not has_aux and question.argnums is None
    if is_jitted:
        call = as_program
    if call.is_mutable or (is_open and (is_jitted or not call.having("differentiated"))):
        try:
            plain = _as_it_is(fun, as_program, name, frames)
        except JaxresidError:
            if not call.having("differentiated"):
                raise
        else:
            how = (
                reading(plain.primal, plain.call)
                if reads_aux
                else Reading(is_loss=True, has_aux=has_aux)
            )
            if is_open and not how.is_loss:
                return plain.program(fun, name, frames)
            call = plain.call if is_jitted else plain.call.with_numbers("static")
            if call.is_mutable:
                # What is changed in place, such as running means, is no parameter of a function.
                changed = changes_by_function(changes(plain.primal, call))
                call = without_changed(call, [c.path for c in changed])
    if call.changing is None:
        call = replace(call, changing=frozenset())
    if how is not None:
        try:
            return _loss(fun, call, how.has_aux, name, frames)
        except JaxresidError as e:
            raise _or_as_it_is(e) from e.__cause__
    if not reads_aux:
        return _loss(fun, call, has_aux, name, frames)
    differentiated: TracedTarget | None = None
    failed: JaxresidError | None = None
    stops_at = (lambda result: not is_real_scalar(result)) if is_open else is_scalar_with_aux
    try:
        differentiated = _loss(fun, call, has_aux, name, frames, stops_at=stops_at)
        if not is_open or not differentiated.may_be_program:
            return differentiated
    except StoppedError:
        pass
    except JaxresidError as e:
        if not is_open:
            raise
        # Of many a program no derivative can be taken, of integers or through a kernel of its own.
        failed = e
    try:
        plain = _as_it_is(fun, as_program, name, frames)
    except JaxresidError:
        if failed is not None:
            raise failed from failed.__cause__
        raise
    how = reading(plain.primal, plain.call)
    if is_open and not how.is_loss:
        return plain.program(fun, name, frames)
    if failed is not None:
        raise _or_as_it_is(failed) from failed.__cause__
    return differentiated or _loss(fun, call, how.has_aux, name, frames)


def _or_as_it_is(error: JaxresidError) -> JaxresidError:
    if not isinstance(error, TraceError) or AS_PROGRAM in str(error):
        return error
    return TraceError(f"{error}\n{AS_PROGRAM}")


@dataclass(frozen=True, slots=True)
class _AsItIs:
    primal: TracedFunction
    call: Arguments
    warnings: tuple[str, ...]

    def program(self, fun: Callable[..., Any], name: str, frames: Frames) -> TracedTarget:
        step = steps.step_trace(self.primal, self.call, frames)
        if not step.jaxpr.outvars and not step.jaxpr.effects and not step.holds_gradient:
            raise InputsError(
                f"{name} returns no array and changes nothing, so compilers remove all that it"
                " computes; return what it is to compute"
            )
        return TracedTarget(ProgramHoles(fun, step), self.warnings)


def _as_it_is(fun: Callable[..., Any], call: Arguments, name: str, frames: Frames) -> _AsItIs:
    (primal, used), warnings = _holding_numbers(
        functools.partial(steps.step_trace_with_changes, fun), call, name, frames
    )
    return _AsItIs(primal, used, warnings)


_T = TypeVar("_T")


def _holding_numbers(
    trace_with: Callable[[Arguments], _T],
    call: Arguments,
    name: str,
    frames: Frames,
    *,
    blame: Callable[[], None] | None = None,
) -> tuple[_T, tuple[str, ...]]:
    """Return what traces with the arguments, and warnings.

    Python numbers whose value the function needs are held static; a warning names them.

    Args:
      blame: of a loss, which must keep something to differentiate: raises a better error, if there
        is one. None: it is a program.

    Raises:
      JaxresidError: it fails, whatever is held static.
    """
    used, first = call, None
    while True:
        try:
            result = trace_with(used)
        except (JaxresidError, StoppedError):
            raise
        except Exception as e:
            held = numbers_held(e, used)
            if held is None or (blame is not None and not held.having("differentiated")):
                if first is not None:
                    raise trace_error(first, name, frames, call) from first
                if blame is not None:
                    blame()
                raise trace_error(e, name, frames, used) from e
            if not needs_static(e):
                first = first or e
            used = held
            continue
        if used is call:
            return result, ()
        roles = zip(call.paths, call.roles, used.roles, strict=True)
        static = ", ".join(path for path, before, after in roles if before != after)
        return result, (f"kept static, as the function needs the value: {static}",)


def _loss(
    fun: Callable[..., Any],
    call: Arguments,
    has_aux: bool,
    name: str,
    frames: Frames,
    *,
    stops_at: Callable[[Any], bool] | None = None,
) -> TracedTarget:
    def traced(call: Arguments) -> Trace:
        return trace(fun, call, has_aux, frames, stops_at=stops_at)

    loss_trace, warnings = _holding_numbers(
        traced,
        call,
        name,
        frames,
        blame=lambda: _blame_policy(fun, call, has_aux, frames),
    )
    dead = (dead_gradients(name),) if steps.ignores_gradients(fun, loss_trace) else ()
    return TracedTarget(LossHole(loss_trace), (*warnings, *dead))


def _blame_policy(fun: Callable[..., Any], call: Arguments, has_aux: bool, frames: Frames) -> None:
    """Raise the error of a policy that fails, which differentiation raises deep in JAX."""
    try:
        primal = primal_trace(fun, call, has_aux)
    except Exception:  # then it is not the policy
        return
    check_policies(primal, Levels(frames))
