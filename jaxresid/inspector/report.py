"""Answer a question with a report: trace the function, and report on the trace."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jaxresid import jax_compat
from jaxresid.crashes import Crash
from jaxresid.errors import InputsError, JaxresidError
from jaxresid.inspector.call.arguments import Arguments, arguments, without_changed
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.checkpoints.function import check_policies
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
from jaxresid.inspector.program.build import Program, value_and_gradients
from jaxresid.inspector.residuals.offloading import (
    KeptResidual,
    kept_by,
    kept_of,
    offloading,
    total_offloading,
)
from jaxresid.inspector.subject.base import Inspection, Subject, dead_gradients, gc_paused
from jaxresid.inspector.subject.function import FunctionSubject
from jaxresid.inspector.subject.step import StepSubject
from jaxresid.inspector.trace import meshes
from jaxresid.inspector.trace import step as steps
from jaxresid.inspector.trace.changes import changes, changes_by_function, drops_gradients
from jaxresid.inspector.trace.failures import needs_static, trace_error
from jaxresid.inspector.trace.function import Trace, primal_trace, trace
from jaxresid.inspector.trace.lost import LostGradients, lost_gradients
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
    mode, has_aux = question.mode, question.has_aux
    may_be_step = mode != "function" and not has_aux and question.argnums is None
    step, given_call = None, call
    if mode == "step":
        step = _step_of(fun, call, name, frames, required=True)
    elif call.is_mutable:
        # What is changed in place is no parameter of a function, and may make it a step.
        step, call = _with_changes(fun, call, may_be_step, frames)
    is_asked = False
    if step is None and may_be_step and steps.is_jitted(fun):
        # Training steps mostly are, and the derivative of a whole step takes long.
        step, is_asked = _step_of(fun, given_call, name, frames, required=False), True
    if step is None:
        if call.changing is None:
            call = replace(call, changing=frozenset())
        try:
            call, traced, more = _traced(fun, call, has_aux, name, frames)
        except JaxresidError:
            # Of many a step no derivative can be taken, of integers or through a kernel of its own.
            if may_be_step and not is_asked:
                step = _step_of(fun, given_call, name, frames, required=False)
            if step is None:
                raise
        else:
            # Of a jitted function that is differentiated JAX drops what nothing depends on.
            if steps.may_be_step(traced) or steps.is_jitted(fun):
                if may_be_step:
                    if not is_asked:
                        step = _step_of(fun, given_call, name, frames, required=False)
                elif _drops_gradients(traced):
                    more = (*more, dead_gradients(name))
    jaxpr = traced.written if step is None else step.jaxpr
    remark = meshes.unused_mesh_warning(call, leaves, jaxpr, question.words)
    if remark := remark or meshes.unsharded_warning(call, leaves):
        warnings = (*warnings, remark)
    if step is not None:
        if not steps.holds_gradient(step.jaxpr):
            raise InputsError(
                f"{name} takes no gradient itself, so it is not a training step; leave out --mode"
                " step to differentiate it as a function"
            )
        found = StepSubject(fun, name, step, place, warnings)
        if found.is_dead:
            more = (dead_gradients(name),)
        else:
            more = tuple(_partly_dead(name, each) for each in lost_gradients(step))
        return replace(found, warnings=(*warnings, *more))
    return FunctionSubject(fun, name, traced, place, (*warnings, *more))


_EARLY_REMAT3 = (
    "JAX 0.10's jax_remat3 is an early version, with which some checkpoints are not found and"
    " modules cannot be told apart; turn it off, or use JAX 0.11 or newer"
)


def _drops_gradients(traced: Trace) -> bool:
    """Return whether a function takes gradients itself and does nothing with them."""
    primal = traced.written
    return steps.holds_gradient(primal) and drops_gradients(primal)


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


def _step_of(
    fun: Callable[..., Any], call: Arguments, name: str, frames: Frames, *, required: bool
) -> StepTrace | None:
    """Return the function as a training step; without `required`, None if it is none or fails."""
    try:
        primal, call = steps.step_trace_with_changes(fun, call)
    except JaxresidError:
        raise
    except Exception as e:
        if required:
            raise trace_error(e, name, frames, call) from e
        return None
    if not required and not steps.is_step(primal, call):
        return None
    return steps.step_trace(primal, call, frames)


def _with_changes(
    fun: Callable[..., Any], call: Arguments, may_be_step: bool, frames: Frames
) -> tuple[StepTrace | None, Arguments]:
    """Return the function as a training step, if it is one, and its arguments.

    Of the arguments no gradient is taken of what the function changes itself, such as running
    means. Those of a function that fails to trace are as they were.
    """
    try:
        primal, call = steps.step_trace_with_changes(fun, call)
    except Exception:  # differentiating it says what is wrong
        return None, call
    if may_be_step and steps.is_step(primal, call):
        return steps.step_trace(primal, call, frames), call
    return None, without_changed(call, [c.path for c in changes_by_function(changes(primal, call))])


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
    if isinstance(plain, int):
        return total_offloading(program, kept, plain, without_effect=without_effect)
    return offloading(
        program,
        lambda: kept,
        lambda: kept if plain is None else _kept_by(plain()),
        without_effect=without_effect,
    )


def _kept_by(traced: Trace) -> tuple[KeptResidual, ...]:
    return kept_by(traced, value_and_gradients(traced))


def _traced(
    fun: Callable[..., Any],
    call: Arguments,
    has_aux: bool,
    name: str,
    frames: Frames,
) -> tuple[Arguments, Trace, tuple[str, ...]]:
    """Trace the function; Python floats whose value it needs are held static.

    A warning names those that are held static.
    """
    try:
        return call, trace(fun, call, has_aux, frames), ()
    except JaxresidError:
        raise
    except Exception as e:
        held = _floats_held(call)
        if needs_static(e) and held != call and held.having("differentiated"):
            which = [
                p for p, a, b in zip(call.paths, call.roles, held.roles, strict=True) if a != b
            ]
            warning = f"kept static, as the function needs the value: {', '.join(which)}"
            try:
                return held, trace(fun, held, has_aux, frames), (warning,)
            except JaxresidError:
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
