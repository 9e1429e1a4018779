"""Answer a question with a report: trace the function, and report on the trace."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from jaxresid import jax_compat
from jaxresid.base.crashes import Crash
from jaxresid.base.errors import InputsError, JaxresidError, TraceError
from jaxresid.inspector.call.arguments import Arguments, arguments, without_changed
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.checkpoints.evaluate import check_policies
from jaxresid.inspector.checkpoints.judging import EvaluatedCheckpoints
from jaxresid.inspector.conclusions import concluded, kept_beyond_peak
from jaxresid.inspector.findings.collect import collected
from jaxresid.inspector.findings.host_memory import WITHOUT_EFFECT, host_searches
from jaxresid.inspector.holes.holes import Holes
from jaxresid.inspector.holes.loss import LossHole
from jaxresid.inspector.holes.program import ProgramHoles
from jaxresid.inspector.jaxpr.flows import Flows
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.lifetimes import with_lifetimes
from jaxresid.inspector.memory.compilers import check_lifetimes
from jaxresid.inspector.memory.peak import OpSources, untraced
from jaxresid.inspector.modules import modules
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.residuals.offloading import (
    kept_of,
    offloading,
)
from jaxresid.inspector.subject.base import Inspection, Subject, dead_gradients, gc_paused
from jaxresid.inspector.trace import meshes
from jaxresid.inspector.trace import step as steps
from jaxresid.inspector.trace.changes import changes, changes_by_function
from jaxresid.inspector.trace.failures import AS_PROGRAM, needs_static, numbers_held, trace_error
from jaxresid.inspector.trace.function import (
    StoppedError,
    Trace,
    TracedFunction,
    is_real_scalar,
    is_scalar_with_aux,
    primal_trace,
    trace,
)
from jaxresid.inspector.trace.lost import LostGradients, lost_gradients
from jaxresid.inspector.trace.reading import Reading, reading
from jaxresid.inspector.trace.taken_gradients import in_words
from jaxresid.inspector.trace.traced import Traced
from jaxresid.results import (
    Finding,
    Gradient,
    Offloading,
    Report,
    Residual,
)
from jaxresid.xla.chosen import choose

if TYPE_CHECKING:
    from jaxresid.xla.processes.cache import CompileCache


def inspection(question: Question, *, cache: CompileCache | None = None) -> Inspection:
    """Return the report that answers a question, together with the jaxprs.

    Args:
      question: the function, its call and the options.
      cache: the cache of what is compiled for a mesh.
    """
    if question.lifetimes:
        check_lifetimes(choose(question.on))
    with gc_paused():
        found = _traced_subject(question)
        with found.tracing():
            made = _inspected(found, cache)
            if question.lifetimes:
                made = with_lifetimes(made)
            return concluded(made, question.words)


def subject(question: Question) -> Subject:
    """Trace as `inspection` does, without making a report."""
    with gc_paused():
        return _traced_subject(question)


def _traced_subject(question: Question) -> Subject:
    """Trace the function as it is, or as on a GPU.

    What fails and asked about devices is traced again as on a GPU: that helps code that needs a GPU
    only while it is traced, such as cuDNN's attention.
    """
    jax_compat.import_jax()
    with jax_compat.recording_device_queries() as asked:
        try:
            return _traced_here(question)
        except JaxresidError as e:
            if not asked:
                raise
            failed = e
    try:
        with jax_compat.assuming_gpu():
            found = _traced_here(question)
    except JaxresidError:
        raise failed from failed.__cause__
    assumed = (
        f"traced as if on {jax_compat.ASSUMED_GPU}, as {found.name} asks for a GPU and there is"
        " none here"
    )
    return replace(
        found,
        holes=found.holes.of(found.trace.tracing_in(jax_compat.assuming_gpu())),
        warnings=(*found.warnings, assumed),
        assumes_gpu=True,
    )


def _traced_here(question: Question) -> Subject:
    jax = jax_compat.import_jax()
    fun, name, warnings = question.fun, question.called, tuple(question.warnings)
    place = choose(question.on)
    if jax_compat.flags().get("jax_remat3") and jax_compat.jax_version().startswith("0.10."):
        warnings = (*warnings, _EARLY_REMAT3)
    frames = Frames(own=own_code(fun))
    call = arguments(question, meshes.as_mesh(question.mesh))
    leaves = jax.tree.leaves((tuple(question.args), dict(question.kwargs)))
    read = _read(question, call, frames)
    call = read.trace.arguments
    # The primal jaxpr of a loss is another trace.
    remark = meshes.unused_mesh_warning(call, leaves, lambda: read.trace.written, question.words)
    if remark := remark or meshes.unsharded_warning(call, leaves):
        warnings = (*warnings, remark)
    found = Subject(fun, name, read.on_own_mesh(), place, (*warnings, *read.warnings))
    if found.is_dead:
        more: tuple[str, ...] = (dead_gradients(name),)
    elif found.step is not None:
        more = tuple(_partly_dead(name, each) for each in lost_gradients(found.step))
    else:
        more = _taken_for_a_loss(question, found)
    return replace(found, warnings=(*found.warnings, *more))


def _taken_for_a_loss(question: Question, loss: Subject) -> tuple[str, ...]:
    """Return a warning where what was asked for as a loss looks like a training step.

    It takes gradients itself, and is no scalar that these are part of.
    """
    traced = loss.holes.alone
    if traced is None or not question.is_loss or not loss.target.gradients:
        return ()
    written = traced.written
    if is_real_scalar(traced.primal().out_info[0]) and (
        not steps.holds_gradient(written) or Flows(written).outputs[0].is_after
    ):
        return ()
    options = ["argnums"] * (question.argnums is not None) + ["has_aux"] * question.has_aux
    leave = f"leave out {' and '.join(options)}, and " if options else ""
    return (
        f"{loss.name} takes gradients itself ({in_words(loss.target.gradients)}), and is"
        f" differentiated once more; {leave}use mode program to take it as it is",
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """A target as it was traced: a loss with its gradient, or a program as it is.

    Attributes:
      holes: the trace, as what it differentiates.
      warnings: what is to be said of it.
    """

    holes: Holes[Any]
    warnings: tuple[str, ...] = ()

    @property
    def trace(self) -> Traced:
        """The trace."""
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


def _read(question: Question, call: Arguments, frames: Frames) -> _Read:
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
            found = _as_it_is(fun, as_program, name, frames)
        except JaxresidError:
            if not call.having("differentiated"):
                raise
        else:
            how = (
                reading(found.primal, found.call)
                if reads_aux
                else Reading(is_loss=True, has_aux=has_aux)
            )
            if is_open and not how.is_loss:
                return found.program(fun, name, frames)
            call = found.call if is_jitted else found.call.with_numbers("static")
            if call.is_mutable:
                # What is changed in place, such as running means, is no parameter of a function.
                changed = changes_by_function(changes(found.primal, call))
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
    differentiated: _Read | None = None
    failed: JaxresidError | None = None
    stops_at = _is_no_scalar if is_open else is_scalar_with_aux
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
        found = _as_it_is(fun, as_program, name, frames)
    except JaxresidError:
        if failed is not None:
            raise failed from failed.__cause__
        raise
    how = reading(found.primal, found.call)
    if is_open and not how.is_loss:
        return found.program(fun, name, frames)
    if failed is not None:
        raise _or_as_it_is(failed) from failed.__cause__
    return differentiated or _loss(fun, call, how.has_aux, name, frames)


def _or_as_it_is(error: JaxresidError) -> JaxresidError:
    """Return the error of a function of which no derivative was taken, with what traces it."""
    if not isinstance(error, TraceError) or AS_PROGRAM in str(error):
        return error
    return TraceError(f"{error}\n{AS_PROGRAM}")


def _is_no_scalar(result: Any) -> bool:
    return not is_real_scalar(result)


@dataclass(frozen=True, slots=True)
class _AsItIs:
    """A function traced as it is.

    Attributes:
      primal: the traced function.
      call: the arguments that it turns out to have.
      warnings: what is to be said of it.
    """

    primal: TracedFunction
    call: Arguments
    warnings: tuple[str, ...]

    def program(self, fun: Callable[..., Any], name: str, frames: Frames) -> _Read:
        """Return it as a program.

        Raises:
          InputsError: it returns and changes nothing.
        """
        step = steps.step_trace(self.primal, self.call, frames)
        if not step.jaxpr.outvars and not step.jaxpr.effects and not step.holds_gradient:
            raise InputsError(
                f"{name} returns no array and changes nothing, so compilers remove all that it"
                " computes; return what it is to compute"
            )
        return _Read(ProgramHoles(fun, step), self.warnings)


_EARLY_REMAT3 = (
    "JAX 0.10's jax_remat3 is an early version, with which some checkpoints are not found and"
    " modules cannot be told apart; turn it off, or use JAX 0.11 or newer"
)


def _partly_dead(name: str, found: LostGradients) -> str:
    what = f"gradients of {', '.join(found.inputs[:5])}" if found.inputs else "gradients"
    more = f" and {len(found.inputs) - 5} more" if len(found.inputs) > 5 else ""
    line = found.location
    where = f" (of the code that begins at {line.file}:{line.line})" if line else ""
    return (
        f"{name} computes {what}{more}{where} that nothing it returns or changes depends on;"
        " others are used. Compilers remove that backward pass and the residuals it would keep:"
        " return or use these gradients, or do not compute them"
    )


def _untold(gradient: Gradient) -> str:
    where = "" if gradient.location is None else f" at {gradient.location.place}"
    return (
        f"what the gradient of {gradient.function}{where} keeps is known in bytes alone, as its"
        " backward pass runs apart from its forward pass; no checkpoint is judged"
    )


def _inspected(subject: Subject, cache: CompileCache | None) -> Inspection:
    subject = subject.split_by_compiler(cache)
    program, found, estimate = subject.program, subject.residuals, subject.peak
    inputs, outputs = subject.arrays
    evaluated = subject.evaluate_checkpoints()
    places = OpSources(subject.trace)
    nbytes = None if estimate is None else estimate.nbytes
    crashes: list[Crash] = []
    searches = host_searches(found, program, evaluated.offers, places, nbytes)
    said = tuple(collected(searches, crashes))
    report = Report(
        target=subject.target,
        jax=subject.jax,
        place=subject.place_info,
        residuals=found,
        cost=evaluated.cost,
        peak=estimate,
        checkpoints=tuple(each.checkpoint for each in evaluated.judged),
        warnings=(
            *subject.warnings,
            *map(_untold, subject.gradients.untold),
            *(untraced(program) if estimate is not None and estimate.uncounted else ()),
        ),
        offloading=_offloading(found, evaluated, program, said),
        mesh=subject.mesh,
        arguments=inputs,
        outputs=outputs,
        gradients=subject.gradients.taken,
    )
    report = replace(
        report,
        modules=modules(report, program, subject.live),
        beyond_peak=kept_beyond_peak(report),
    )
    return Inspection(subject, report, evaluated.judged, said).with_crashes(crashes)


def _as_it_is(fun: Callable[..., Any], call: Arguments, name: str, frames: Frames) -> _AsItIs:
    """Return a function traced as it is.

    Raises:
      JaxresidError: it fails.
    """
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
      trace_with: traces the function.
      call: the arguments.
      name: what the target is called.
      frames: finds the user's line.
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


def _offloading(
    found: tuple[Residual, ...],
    evaluated: EvaluatedCheckpoints,
    program: Program,
    said: Sequence[Finding],
) -> Offloading | None:
    """Return where the residuals are; None where nothing is in host memory, nor meant to be."""
    kept, plain = kept_of(found), evaluated.plain
    if not evaluated.is_known:
        return None
    without_effect = any(finding.name == WITHOUT_EFFECT for finding in said)
    return offloading(program, lambda: kept, plain or (lambda: kept), without_effect=without_effect)


def _loss(
    fun: Callable[..., Any],
    call: Arguments,
    has_aux: bool,
    name: str,
    frames: Frames,
    *,
    stops_at: Callable[[Any], bool] | None = None,
) -> _Read:
    """Differentiate a function."""

    def traced(call: Arguments) -> Trace:
        return trace(fun, call, has_aux, frames, stops_at=stops_at)

    found, warnings = _holding_numbers(
        traced,
        call,
        name,
        frames,
        blame=lambda: _blame_policy(fun, call, has_aux, frames),
    )
    dead = (dead_gradients(name),) if steps.ignores_gradients(fun, found) else ()
    return _Read(LossHole(found), (*warnings, *dead))


def _blame_policy(fun: Callable[..., Any], call: Arguments, has_aux: bool, frames: Frames) -> None:
    """Raise the error of a checkpoint's policy that fails.

    Differentiation asks the policies, and one that fails does so deep in JAX.
    """
    try:
        primal = primal_trace(fun, call, has_aux)
    except Exception:  # then it is not the policy
        return
    check_policies(primal, Levels(frames))


def own_code(fun: Any) -> tuple[str, ...]:
    """Return the directories whose code counts as the user's even inside site-packages.

    That is the package that the target is defined in; for a bound method or a callable object, the
    package of its class.
    """
    while isinstance(fun, functools.partial):
        fun = fun.func
    try:
        owner = getattr(fun, "__self__", None)
        home = fun if owner is None or isinstance(owner, ModuleType) else type(owner)
        name = getattr(home, "__module__", None)
    except Exception:  # a callable object may raise what it likes when it is asked
        name = None
    if not isinstance(name, str):
        name = type(fun).__module__
    package = sys.modules.get(name.partition(".")[0])
    if package is None or not hasattr(package, "__path__") or not package.__file__:
        return ()
    return (os.path.dirname(os.path.abspath(package.__file__)),)
