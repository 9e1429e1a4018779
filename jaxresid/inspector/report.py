"""Answer a question with a report: trace the function, and report on the trace."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jaxresid import jax_compat
from jaxresid.base.crashes import Crash
from jaxresid.base.errors import JaxresidError
from jaxresid.inspector.call.arguments import arguments
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.checkpoints.judging import EvaluatedCheckpoints
from jaxresid.inspector.conclusions import concluded, kept_beyond_peak
from jaxresid.inspector.findings.collect import collected
from jaxresid.inspector.findings.host_memory import WITHOUT_EFFECT, host_searches
from jaxresid.inspector.jaxpr.flows import Flows
from jaxresid.inspector.jaxpr.frames import Frames
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
from jaxresid.inspector.subject.traced_target import traced_target
from jaxresid.inspector.trace import meshes
from jaxresid.inspector.trace import step as steps
from jaxresid.inspector.trace.function import is_real_scalar
from jaxresid.inspector.trace.lost import LostGradients, lost_gradients
from jaxresid.inspector.trace.taken_gradients import in_words
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
      cache: of what is compiled for a mesh.
    """
    if question.lifetimes:
        check_lifetimes(choose(question.on))
    with gc_paused():
        traced = _traced_subject(question)
        with traced.tracing():
            inspected = _inspected(traced, cache)
            if question.lifetimes:
                inspected = with_lifetimes(inspected)
            return concluded(inspected, question.words)


def subject(question: Question) -> Subject:
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
    target = traced_target(question, call, frames)
    call = target.trace.arguments
    # The primal jaxpr of a loss is another trace.
    remark = meshes.unused_mesh_warning(call, leaves, lambda: target.trace.written, question.words)
    if remark := remark or meshes.unsharded_warning(call, leaves):
        warnings = (*warnings, remark)
    traced = Subject(fun, name, target.on_own_mesh(), place, (*warnings, *target.warnings))
    if traced.is_dead:
        more: tuple[str, ...] = (dead_gradients(name),)
    elif traced.step is not None:
        more = tuple(_partly_dead(name, lost) for lost in lost_gradients(traced.step))
    else:
        more = _taken_for_a_loss(question, traced)
    return replace(traced, warnings=(*traced.warnings, *more))


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


_EARLY_REMAT3 = (
    "JAX 0.10's jax_remat3 is an early version, with which some checkpoints are not found and"
    " modules cannot be told apart; turn it off, or use JAX 0.11 or newer"
)


def _partly_dead(name: str, lost: LostGradients) -> str:
    what = f"gradients of {', '.join(lost.inputs[:5])}" if lost.inputs else "gradients"
    more = f" and {len(lost.inputs) - 5} more" if len(lost.inputs) > 5 else ""
    line = lost.location
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
    program, residuals, estimate = subject.program, subject.residuals, subject.peak
    inputs, outputs = subject.arrays
    evaluated = subject.evaluate_checkpoints()
    places = OpSources(subject.trace)
    nbytes = None if estimate is None else estimate.nbytes
    crashes: list[Crash] = []
    searches = host_searches(residuals, program, evaluated.offers, places, nbytes)
    offload_findings = tuple(collected(searches, crashes))
    report = Report(
        target=subject.target,
        jax=subject.jax,
        place=subject.place_info,
        residuals=residuals,
        cost=evaluated.cost,
        peak=estimate,
        checkpoints=tuple(judged.checkpoint for judged in evaluated.judged),
        warnings=(
            *subject.warnings,
            *map(_untold, subject.gradients.untold),
            *(untraced(program) if estimate is not None and estimate.uncounted else ()),
        ),
        offloading=_offloading(residuals, evaluated, program, offload_findings),
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
    return Inspection(subject, report, evaluated.judged, offload_findings).with_crashes(crashes)


def _offloading(
    residuals: tuple[Residual, ...],
    evaluated: EvaluatedCheckpoints,
    program: Program,
    findings: Sequence[Finding],
) -> Offloading | None:
    """Return where the residuals are; None where nothing is in host memory, nor meant to be."""
    kept, plain = kept_of(residuals), evaluated.plain
    if not evaluated.is_known:
        return None
    without_effect = any(finding.name == WITHOUT_EFFECT for finding in findings)
    return offloading(program, lambda: kept, plain or (lambda: kept), without_effect=without_effect)


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
