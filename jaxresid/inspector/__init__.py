"""What a function's backward pass keeps, from abstract inputs. jax lives here."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from jaxresid.errors import InputsError, JaxresidError
from jaxresid.inspector import _jax, steps
from jaxresid.inspector.avals import aval_of
from jaxresid.inspector.callsites import CallSites, contains_remat, is_inlined
from jaxresid.inspector.checkpoints import Worth, check_policies, worth
from jaxresid.inspector.consumers import consumers
from jaxresid.inspector.cost import jaxpr_cost
from jaxresid.inspector.failures import needs_static, summary, trace_error
from jaxresid.inspector.frames import Frames
from jaxresid.inspector.levels import Level, Levels
from jaxresid.inspector.peak import PROFILES, Places, peak, profile_named
from jaxresid.inspector.program import value_and_gradients
from jaxresid.inspector.provenance import provenance
from jaxresid.inspector.step_checkpoints import step_worth
from jaxresid.inspector.step_program import step_program
from jaxresid.inspector.step_residuals import step_residuals
from jaxresid.inspector.steps import StepTrace
from jaxresid.inspector.storage import Profile
from jaxresid.inspector.tracing import Arguments, Trace, arguments, primal_trace, trace
from jaxresid.inspector.values import Free, Numbering
from jaxresid.model import (
    Computed,
    Cost,
    JaxInfo,
    Mark,
    Phases,
    Report,
    Residual,
    Target,
)

MODES = ("auto", "function", "step")


@dataclass(frozen=True, slots=True)
class Inspection:
    """A report together with the function and the jaxprs that it was made from."""

    fun: Callable[..., Any]
    report: Report
    trace: Trace | StepTrace
    frames: Frames


def inspect(
    fun: Callable[..., Any],
    *args: Any,
    argnums: int | Sequence[int] | None = None,
    has_aux: bool = False,
    profile: str = PROFILES[0],
    mode: str = MODES[0],
    **kwargs: Any,
) -> Report:
    """What the backward pass of `fun(*args, **kwargs)` keeps, costs and takes.

    Nothing is computed and nothing allocated. Bools, integers, strings, None and callables are
    static; arrays and floats are traced.

    Args:
      fun: a function that JAX can differentiate.
      *args: its positional arguments: arrays or `jax.ShapeDtypeStruct`s, in any pytree.
      argnums: positional arguments to differentiate; None: every float or complex leaf of all
        arguments, as `jax.ad_checkpoint.print_saved_residuals` does.
      has_aux: `fun` returns `(output, auxiliary data)`.
      profile: whose compiler the peak is estimated for: `accelerator` or `cpu`.
      mode: `function` differentiates `fun`; `step` takes it for a training step and reports the
        gradients that it computes itself; `auto` tells from what it does.
      **kwargs: its keyword arguments.

    Raises:
      InputsError: the arguments do not fit, or nothing can be differentiated.
      TraceError: the function fails to trace.
      MissingJaxError: jax is missing or older than 0.7.
    """
    return inspection(
        fun, args, kwargs, argnums=argnums, has_aux=has_aux, profile=profile, mode=mode
    ).report


def inspection(
    fun: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    argnums: int | Sequence[int] | None = None,
    has_aux: bool = False,
    profile: str = PROFILES[0],
    mode: str = MODES[0],
    name: str | None = None,
    warnings: Sequence[str] = (),
) -> Inspection:
    """As `inspect`, keeping the jaxprs. `name` is the target as the user wrote it."""
    _jax.import_jax()
    with _uncollected():
        return _inspected(fun, args, kwargs, argnums, has_aux, profile, mode, name, warnings)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Pauses the garbage collector: of 48 layers it took two thirds of the time, going again and
    again over hundreds of thousands of objects that all stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _inspected(
    fun: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    argnums: int | Sequence[int] | None,
    has_aux: bool,
    profile: str,
    mode: str,
    name: str | None,
    warnings: Sequence[str],
) -> Inspection:
    if isinstance(argnums, int):
        argnums = (argnums,)
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    chosen = profile_named(profile)
    name = name or _name_of(fun)
    frames = Frames(own=own_code(fun))
    call = arguments(fun, args, kwargs, argnums)
    if mode == "step" and (has_aux or argnums is not None):
        given = "has_aux" if has_aux else "argnums"
        raise InputsError(f"a training step differentiates by itself: {given} goes with functions")
    may_be_step = mode != "function" and not has_aux and argnums is None
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
        return _step(fun, step, name, frames, chosen, warnings)
    found = residuals(traced, frames)
    program = value_and_gradients(traced)
    estimate = peak(program, chosen, Places(frames))
    if has_checkpoints(traced, frames):
        worths = worth(traced, frames, chosen, found, program, estimate)
    else:
        cost = Phases(jaxpr_cost(traced.forward), jaxpr_cost(traced.backward), Cost())
        worths = Worth((), cost)
    differentiated = tuple(call.paths[i] for i in call.having("differentiated"))
    report = Report(
        target=Target(name, differentiated),
        jax=JaxInfo(_jax.jax_version(), _jax.flags()),
        residuals=found,
        cost=worths.cost,
        peak=estimate,
        checkpoints=worths.checkpoints,
        warnings=(*warnings, *more),
    )
    return Inspection(fun, report, traced, frames)


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


def _step(
    fun: Callable[..., Any],
    step: StepTrace,
    name: str,
    frames: Frames,
    profile: Profile,
    warnings: Sequence[str],
) -> Inspection:
    """The inspection of a training step."""
    if not steps.holds_gradient(step.jaxpr):
        raise InputsError(
            f"{name} holds no gradient of its own, so it is no training step; without --mode step"
            " it is differentiated as a function"
        )
    found = step_residuals(step, frames)
    program = step_program(step)
    estimate = peak(program, profile, Places(frames))
    worths = step_worth(step, frames, profile, found, program, estimate)
    differentiated = tuple(r.path or "" for r in program.inputs if r.kind == "parameters")
    report = Report(
        target=Target(name, differentiated, "step"),
        jax=JaxInfo(_jax.jax_version(), _jax.flags()),
        residuals=found,
        cost=worths.cost,
        peak=estimate,
        checkpoints=worths.checkpoints,
        warnings=tuple(warnings),
    )
    return Inspection(fun, report, step, frames)


def residuals(traced: Trace, frames: Frames) -> tuple[Residual, ...]:
    """The residuals of a trace, in the order of the vjp function's leaves."""
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
        aval = aval_of(var)
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


def _name_of(fun: Any) -> str:
    owner = getattr(fun, "__self__", None)
    if owner is not None and not isinstance(owner, type | ModuleType):
        return f"{type(owner).__name__}.{fun.__name__}"
    return getattr(fun, "__qualname__", None) or type(fun).__name__


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


__all__ = ["Inspection", "inspect", "inspection", "own_code", "residuals", "summary"]
