"""Answer a question with a report: trace the function, and report on the trace."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jaxresid import jax_compat
from jaxresid.crashes import Crash
from jaxresid.errors import JaxresidError
from jaxresid.inspector.call.arguments import Arguments, arguments, without_changed
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.checkpoints.evaluate import check_policies
from jaxresid.inspector.checkpoints.judging import EvaluatedCheckpoints
from jaxresid.inspector.conclusions import concluded, kept_beyond_peak
from jaxresid.inspector.findings.collect import collected
from jaxresid.inspector.findings.host_memory import WITHOUT_EFFECT, host_searches
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.lifetimes import with_lifetimes
from jaxresid.inspector.memory.compilers import check_lifetimes
from jaxresid.inspector.memory.peak import OpSources
from jaxresid.inspector.modules import modules
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.residuals.offloading import (
    kept_of,
    offloading,
)
from jaxresid.inspector.subject.base import Inspection, Subject, dead_gradients, gc_paused
from jaxresid.inspector.subject.function import FunctionSubject
from jaxresid.inspector.subject.step import StepSubject
from jaxresid.inspector.trace import meshes
from jaxresid.inspector.trace import step as steps
from jaxresid.inspector.trace.changes import changes, changes_by_function
from jaxresid.inspector.trace.failures import needs_static, trace_error
from jaxresid.inspector.trace.function import (
    NoScalarError,
    Trace,
    TracedFunction,
    primal_trace,
    trace,
)
from jaxresid.inspector.trace.lost import LostGradients, lost_gradients
from jaxresid.inspector.trace.reading import reading
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.model import (
    Finding,
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
        trace=found.trace.tracing_in(jax_compat.assuming_gpu()),
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
    remark = meshes.unused_mesh_warning(read.call, leaves, read.trace.written, question.words)
    if remark := remark or meshes.unsharded_warning(read.call, leaves):
        warnings = (*warnings, remark)
    if isinstance(read.trace, Trace):
        return FunctionSubject(fun, name, read.trace, place, (*warnings, *read.warnings))
    found = StepSubject(fun, name, read.trace, place, warnings)
    if found.is_dead:
        more: tuple[str, ...] = (dead_gradients(name),)
    else:
        more = tuple(_partly_dead(name, each) for each in lost_gradients(read.trace))
    return replace(found, warnings=(*warnings, *more))


@dataclass(frozen=True, slots=True)
class _Read:
    """A target as it was traced: a loss with its gradient, or a program as it is.

    Attributes:
      trace: the trace.
      call: the arguments that it was traced with.
      warnings: what is to be said of a loss.
    """

    trace: Trace | StepTrace
    call: Arguments
    warnings: tuple[str, ...] = ()

    @property
    def may_be_program(self) -> bool:
        """Whether a loss takes gradients itself, as a training step does."""
        return isinstance(self.trace, Trace) and steps.may_be_program(self.trace)


def _read(question: Question, call: Arguments, frames: Frames) -> _Read:
    """Trace a target as its mode says; where none is chosen, as what it turns out to be.

    What may be either is differentiated up to its return, which shows most programs; a jitted
    function is traced as it is first, since the derivative of a whole training step takes long.
    """
    fun, name, has_aux = question.fun, question.called, question.has_aux
    if question.mode == "program":
        return _program(*_as_it_is(fun, call, name, frames), frames)
    is_open, is_read = not question.is_loss, False
    as_given = call
    if call.is_mutable or (is_open and (steps.is_jitted(fun) or not call.having("differentiated"))):
        try:
            primal, call = _as_it_is(fun, call, name, frames)
        except JaxresidError:
            if not call.having("differentiated"):
                raise
        else:
            is_read = is_open
            if is_open:
                how = reading(primal, call)
                if not how.is_loss:
                    return _program(primal, call, frames)
                has_aux = how.has_aux
            if call.is_mutable:
                # What is changed in place, such as running means, is no parameter of a function.
                changed = changes_by_function(changes(primal, call))
                call = without_changed(call, [c.path for c in changed])
    if call.changing is None:
        call = replace(call, changing=frozenset())
    if is_read or not is_open:
        return _loss(fun, call, has_aux, name, frames)
    differentiated: _Read | None = None
    failed: JaxresidError | None = None
    try:
        differentiated = _loss(fun, call, has_aux, name, frames, must_be_scalar=True)
        if not differentiated.may_be_program:
            return differentiated
    except NoScalarError:
        pass
    except JaxresidError as e:
        # Of many a program no derivative can be taken, of integers or through a kernel of its own.
        failed = e
    try:
        primal, as_program = _as_it_is(fun, as_given, name, frames)
    except JaxresidError:
        if failed is not None:
            raise failed from failed.__cause__
        raise
    how = reading(primal, as_program)
    if not how.is_loss:
        return _program(primal, as_program, frames)
    if failed is not None:
        raise failed from failed.__cause__
    return differentiated or _loss(fun, call, how.has_aux, name, frames)


def _program(primal: TracedFunction, call: Arguments, frames: Frames) -> _Read:
    return _Read(steps.step_trace(primal, call, frames), call)


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


def _inspected(subject: Subject, cache: CompileCache | None) -> Inspection:
    subject = subject.split_by_compiler(cache)
    program, found, estimate = subject.program, subject.residuals, subject.peak
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
        warnings=subject.warnings,
        offloading=_offloading(found, evaluated, program, said),
        mesh=subject.mesh,
    )
    report = replace(
        report,
        modules=modules(report, program, subject.live),
        beyond_peak=kept_beyond_peak(report),
    )
    return Inspection(subject, report, evaluated.judged, said).with_crashes(crashes)


def _as_it_is(
    fun: Callable[..., Any], call: Arguments, name: str, frames: Frames
) -> tuple[TracedFunction, Arguments]:
    """Return a function traced as it is, and the arguments that it turns out to have.

    Raises:
      JaxresidError: it fails.
    """
    try:
        return steps.step_trace_with_changes(fun, call)
    except JaxresidError:
        raise
    except Exception as e:
        raise trace_error(e, name, frames, call) from e


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
    must_be_scalar: bool = False,
) -> _Read:
    """Differentiate a function; Python floats whose value it needs are held static.

    A warning names those that are held static.
    """

    def traced(call: Arguments) -> Trace:
        return trace(fun, call, has_aux, frames, must_be_scalar=must_be_scalar)

    def read(call: Arguments, *more: str) -> _Read:
        found = traced(call)
        dead = (dead_gradients(name),) if steps.ignores_gradients(fun, found) else ()
        return _Read(found, call, (*more, *dead))

    try:
        return read(call)
    except (JaxresidError, NoScalarError):
        raise
    except Exception as e:
        held = _floats_held(call)
        if needs_static(e) and held != call and held.having("differentiated"):
            which = [
                p for p, a, b in zip(call.paths, call.roles, held.roles, strict=True) if a != b
            ]
            warning = f"kept static, as the function needs the value: {', '.join(which)}"
            try:
                return read(held, warning)
            except (JaxresidError, NoScalarError):
                raise
            except Exception as again:
                raise trace_error(again, name, frames, held) from again
        _blame_policy(fun, call, has_aux, frames)
        raise trace_error(e, name, frames, call) from e


def _blame_policy(fun: Callable[..., Any], call: Arguments, has_aux: bool, frames: Frames) -> None:
    """Raise the error of a checkpoint's policy that fails.

    Differentiation asks the policies, and one that fails does so deep in JAX.
    """
    try:
        primal = primal_trace(fun, call, has_aux)
    except Exception:  # then it is not the policy
        return
    check_policies(primal, Levels(frames))


def _floats_held(call: Arguments) -> Arguments:
    roles = tuple(
        "static" if isinstance(leaf, float | complex) else role
        for leaf, role in zip(call.leaves, call.roles, strict=True)
    )
    return replace(call, roles=roles)


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
