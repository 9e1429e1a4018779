"""What a function's backward pass keeps, from abstract inputs. jax lives here."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jaxresid.errors import InputsError, JaxresidError
from jaxresid.inspector import _jax, meshes, steps, storage
from jaxresid.inspector.avals import aval_on
from jaxresid.inspector.callsites import CallSites, contains_remat, is_inlined
from jaxresid.inspector.checkpoints import Worth, check_policies, worth
from jaxresid.inspector.consumers import consumers
from jaxresid.inspector.cost import jaxpr_cost
from jaxresid.inspector.failures import needs_static, summary, trace_error
from jaxresid.inspector.frames import Frames
from jaxresid.inspector.host_findings import WITHOUT_EFFECT, host_findings
from jaxresid.inspector.levels import Level, Levels
from jaxresid.inspector.offloading import kept_by, kept_of, offloading, total_offloading
from jaxresid.inspector.peak import Places, peak, profile_named
from jaxresid.inspector.program import Program, value_and_gradients
from jaxresid.inspector.provenance import provenance
from jaxresid.inspector.question import Question, in_two_calls
from jaxresid.inspector.step_checkpoints import step_worth
from jaxresid.inspector.step_program import step_program
from jaxresid.inspector.step_residuals import step_residuals
from jaxresid.inspector.steps import StepTrace
from jaxresid.inspector.tracing import Arguments, Trace, arguments, primal_trace, trace
from jaxresid.inspector.values import Free, Numbering
from jaxresid.model import (
    Computed,
    Cost,
    Finding,
    JaxInfo,
    Mark,
    Mesh,
    Offloading,
    Peak,
    Phases,
    Report,
    Residual,
    Target,
)
from jaxresid.words import Mode, Profile

if TYPE_CHECKING:
    from jaxresid.xla.cache import Cache


@dataclass(frozen=True, slots=True)
class Subject:
    """A function as it was traced: what a report is made of, and its variants."""

    fun: Callable[..., Any]
    name: str
    trace: Trace | StepTrace
    frames: Frames
    profile: storage.Profile
    warnings: tuple[str, ...]

    @property
    def mesh(self) -> Mesh | None:
        """What it is split over, before any compiler was asked how; None: it is of one device."""
        return meshes.described(self.trace.arguments.mesh)

    @property
    def target(self) -> Target:
        call = self.trace.arguments
        if isinstance(self.trace, StepTrace):
            return Target(self.name, differentiated_in(step_program(self.trace)), "step")
        return Target(self.name, tuple(call.paths[i] for i in call.having("differentiated")))

    @property
    def jax(self) -> JaxInfo:
        return JaxInfo(_jax.jax_version(), _jax.flags())


@dataclass(frozen=True, slots=True)
class Inspection:
    """A report together with the function and the jaxprs that it was made from."""

    fun: Callable[..., Any]
    report: Report
    trace: Trace | StepTrace
    frames: Frames


@in_two_calls
def inspect(
    fun: Callable[..., Any],
    *,
    argnums: int | Sequence[int] | None = None,
    has_aux: bool = False,
    mode: Mode = "auto",
    profile: Profile = "accelerator",
    mesh: Any = None,
) -> Callable[..., Report]:
    """What the backward pass of `fun` keeps, costs and takes.

    `jaxresid.inspect(fun)(*args, **kwargs)`: as with `jax.make_jaxpr`, options go into the first
    call and the function's own arguments, whatever they are called, into the second. Those are
    arrays or `jax.ShapeDtypeStruct`s, in any pytree; bools, integers, strings, None and callables
    are static; arrays and floats are traced. Nothing is computed and nothing allocated.

    Args:
      fun: a function that JAX can differentiate.
      argnums: positional arguments to differentiate; None: every float or complex leaf of all
        arguments, as `jax.ad_checkpoint.print_saved_residuals` does.
      has_aux: `fun` returns `(output, auxiliary data)`.
      mode: `function` differentiates `fun`; `step` takes it for a training step and reports the
        gradients that it computes itself; `auto` tells from what it does.
      profile: whose compiler the peak is estimated for: `accelerator` or `cpu`.
      mesh: what it is split over: a `jax.sharding.Mesh`, an AbstractMesh, or a dict of axes and
        their sizes, as many of this process's CPU devices; arguments without a sharding are on all
        of it. None: the mesh of the arguments' own shardings. Bytes are then one device's. Where
        the mesh's axes are not explicit, XLA:CPU compiles the forward pass to see how the
        residuals are split.

    Returns:
      a function of the arguments of `fun` that returns a `Report`.

    Raises:
      InputsError: the options or the arguments do not fit, or nothing can be differentiated.
      TraceError: the function fails to trace.
      MissingJaxError: jax is missing or older than 0.7.
    """
    question = Question(
        fun, argnums=argnums, has_aux=has_aux, mode=mode, profile=profile, mesh=mesh
    )

    def inspected(*args: Any, **kwargs: Any) -> Report:
        return inspection(question.of(args, kwargs)).report

    return inspected


def inspection(question: Question, *, cache: Cache | None = None) -> Inspection:
    """As `inspect`, keeping the jaxprs.

    Args:
      cache: of what is compiled for a mesh.
    """
    with uncollected():
        return _inspected(_traced_subject(question), cache)


def subject(question: Question) -> Subject:
    """Traces as `inspection` does, and leaves it at that."""
    with uncollected():
        return _traced_subject(question)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pauses the garbage collector: of 48 layers it took two thirds of the time, going again and
    again over hundreds of thousands of objects that all stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _traced_subject(question: Question) -> Subject:
    jax = _jax.import_jax()
    fun, name, warnings = question.fun, question.called, tuple(question.warnings)
    chosen = profile_named(question.profile)
    frames = Frames(own=own_code(fun))
    call = arguments(question, meshes.meshed(question.mesh))
    given = (tuple(question.args), dict(question.kwargs))
    if remark := meshes.undecided(call, jax.tree.leaves(given)):
        warnings = (*warnings, remark)
    mode, has_aux = question.mode, question.has_aux
    may_be_step = mode != "function" and not has_aux and question.argnums is None
    step = _step_of(fun, call, name, frames, required=True) if mode == "step" else None
    if step is None:
        try:
            call, traced, more = _traced(fun, call, has_aux, name, frames)
        except JaxresidError:
            # Of many a step no derivative can be taken, of integers or through a kernel of its own.
            step = _step_of(fun, call, name, frames, required=False) if may_be_step else None
            if step is None:
                raise
        else:
            if may_be_step and steps.may_be_step(traced):
                step = _step_of(fun, call, name, frames, required=False)
    if step is not None:
        if not steps.holds_gradient(step.jaxpr):
            raise InputsError(
                f"{name} holds no gradient of its own, so it is no training step; without --mode"
                " step it is differentiated as a function"
            )
        return Subject(fun, name, step, frames, chosen, warnings)
    return Subject(fun, name, traced, frames, chosen, (*warnings, *more))


def _inspected(subject: Subject, cache: Cache | None) -> Inspection:
    traced, frames, profile = subject.trace, subject.frames, subject.profile
    if isinstance(traced, StepTrace):
        return _step(subject, traced)
    mesh = subject.mesh
    if mesh is not None and mesh.mode == "auto" and mesh.size > 1:
        traced, reason = meshes.split_by_compiler(traced, cache)
        if reason is None:
            mesh = replace(mesh, source="compiler")
        else:
            subject = replace(subject, warnings=(*subject.warnings, reason))
        subject = replace(subject, trace=traced)
    program = value_and_gradients(traced)
    found = residuals(traced, frames, program)
    estimate = peak(program, profile, Places(frames))
    if has_checkpoints(traced, frames):
        worths = worth(traced, frames, profile, found, program, estimate)
    else:
        cost = Phases(jaxpr_cost(traced.forward), jaxpr_cost(traced.backward), Cost())
        worths = Worth((), cost)
    return _inspection(subject, subject.target, found, worths, program, estimate, mesh)


def _step_of(
    fun: Callable[..., Any], call: Arguments, name: str, frames: Frames, *, required: bool
) -> StepTrace | None:
    """The function as a training step. Without `required`, None if it is none or fails."""
    try:
        primal = steps.step_primal(fun, call)
    except JaxresidError:
        raise
    except Exception as e:
        if required:
            raise trace_error(e, name, frames, call) from e
        return None
    return steps.step_trace(primal, call) if required or steps.is_step(primal) else None


def _step(subject: Subject, step: StepTrace) -> Inspection:
    """The inspection of a training step."""
    program = step_program(step)
    found = step_residuals(step, subject.frames, program)
    estimate = peak(program, subject.profile, Places(subject.frames))
    worths = step_worth(step, subject.frames, subject.profile, found, program, estimate)
    target = Target(subject.name, differentiated_in(program), "step")
    return _inspection(subject, target, found, worths, program, estimate, subject.mesh)


def differentiated_in(step: Program) -> tuple[str, ...]:
    """The arguments of a training step that it takes gradients of, where they can be told."""
    return tuple(r.path or "" for r in step.inputs if r.kind == "parameters")


def _inspection(
    subject: Subject,
    target: Target,
    found: tuple[Residual, ...],
    worths: Worth,
    program: Program,
    estimate: Peak,
    mesh: Mesh | None,
) -> Inspection:
    frames = subject.frames
    said = host_findings(found, program, worths.offers, Places(frames), estimate.nbytes)
    report = Report(
        target=target,
        jax=subject.jax,
        residuals=found,
        cost=worths.cost,
        peak=estimate,
        checkpoints=worths.checkpoints,
        warnings=subject.warnings,
        offloading=_offloading(found, worths, program, frames, said),
        findings=said,
        mesh=mesh,
    )
    return Inspection(subject.fun, report, subject.trace, frames)


def _offloading(
    found: tuple[Residual, ...],
    worths: Worth,
    program: Program,
    frames: Frames,
    said: Sequence[Finding],
) -> Offloading | None:
    """Where the residuals are; None where nothing is in host memory, nor meant to be."""
    kept, plain = kept_of(found), worths.plain
    without_effect = any(finding.name == WITHOUT_EFFECT for finding in said)
    if isinstance(plain, int):
        return total_offloading(program, kept, plain, without_effect=without_effect)
    return offloading(
        program,
        lambda: kept,
        lambda: kept if plain is None else kept_by(plain, frames, value_and_gradients(plain)),
        without_effect=without_effect,
    )


def residuals(
    traced: Trace, frames: Frames, program: Program | None = None
) -> tuple[Residual, ...]:
    """The residuals of a trace, in the order of the vjp function's leaves.

    Args:
      program: that of the trace, where there is one already; it knows what is split over a mesh.
    """
    if program is None and traced.arguments.mesh is not None:
        program = value_and_gradients(traced)
    values = {} if program is None else program.values
    forward, backward = traced.forward, traced.backward
    sites, primal = None, None
    if has_checkpoints(traced, frames):
        sites, primal = CallSites(frames), _jax.open_jaxpr(traced.primal().jaxpr)
    ahead, top = Levels(frames, sites), Level(forward, primal=primal)
    back, top_back = Levels(frames), Level(backward)
    paths = traced.inputs
    numbers, free = Numbering(ahead).of(forward), Free(ahead)
    outputs = {numbers[v] for v in forward.outvars[: traced.num_outputs] if not _jax.is_literal(v)}
    gradients = {v for v in backward.outvars if not _jax.is_literal(v)}
    seen: set[int] = set()
    found = []
    for var, inside in zip(traced.kept, traced.read, strict=True):
        made = provenance(ahead, top, var, paths)
        aval = aval_on(values, var)
        if made.memory == "host":
            aval = replace(aval, memory="host")
        marks = list(made.marks)
        if isinstance(made.origin, Computed):
            number = numbers[var]
            marks += [Mark.PRIMAL_OUTPUT] * (number in outputs)
            marks += [Mark.DUPLICATE] * (number in seen)
            marks += [Mark.FREE] * ((top, var) in free)
            marks += [Mark.OFFLOADED] * (aval.memory == "host")
            seen.add(number)
        read = consumers(back, top_back, inside)
        marks += [Mark.UNREAD] * (not read and inside not in gradients)
        found.append(Residual(aval, made.origin, made.trips, read, tuple(marks)))
    return tuple(found)


def has_checkpoints(traced: Trace, frames: Frames) -> bool:
    """Whether the function may hold checkpoints; the primal jaxpr, which shows them, is another
    trace."""
    if contains_remat(traced.backward) or contains_remat(traced.forward):
        return True
    return _jax.flags().get("jax_remat3", False) and is_inlined(traced.forward, frames)


def _traced(
    fun: Callable[..., Any],
    call: Arguments,
    has_aux: bool,
    name: str,
    frames: Frames,
) -> tuple[Arguments, Trace, tuple[str, ...]]:
    """Traces; Python floats whose value the function needs are held static, which is said."""
    try:
        return call, trace(fun, call, has_aux), ()
    except JaxresidError:
        raise
    except Exception as e:
        held = _floats_held(call)
        if needs_static(e) and held != call and held.having("differentiated"):
            which = [
                p for p, a, b in zip(call.paths, call.roles, held.roles, strict=True) if a != b
            ]
            warning = f"held static, since the function needs its value: {', '.join(which)}"
            try:
                return held, trace(fun, held, has_aux), (warning,)
            except JaxresidError:
                raise
            except Exception as again:
                raise trace_error(again, name, frames, held) from again
        _blame_policy(fun, call, has_aux, frames)
        raise trace_error(e, name, frames, call) from e


def _blame_policy(fun: Callable[..., Any], call: Arguments, has_aux: bool, frames: Frames) -> None:
    """Differentiation asks the checkpoints' policies, and one that fails does so deep in JAX."""
    try:
        primal = primal_trace(fun, call, has_aux)
    except Exception:  # then it is not the policy
        return
    check_policies(primal, frames)


def _floats_held(call: Arguments) -> Arguments:
    roles = tuple(
        "static" if isinstance(leaf, float | complex) else role
        for leaf, role in zip(call.leaves, call.roles, strict=True)
    )
    return replace(call, roles=roles)


def own_code(fun: Any) -> tuple[str, ...]:
    """The directories whose code counts as the user's even inside site-packages: the package that
    the target is defined in, for a bound method or a callable object that of its class."""
    while hasattr(fun, "func"):  # functools.partial
        fun = fun.func
    owner = getattr(fun, "__self__", None)
    home = fun if owner is None or isinstance(owner, ModuleType) else type(owner)
    name = getattr(home, "__module__", None) or type(fun).__module__
    package = sys.modules.get(name.partition(".")[0])
    if package is None or not hasattr(package, "__path__") or not package.__file__:
        return ()
    return (os.path.dirname(os.path.abspath(package.__file__)),)


__all__ = [
    "Inspection",
    "Question",
    "Subject",
    "inspect",
    "inspection",
    "own_code",
    "residuals",
    "subject",
    "summary",
]
