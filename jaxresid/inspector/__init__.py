"""What a function's backward pass keeps, from abstract inputs. jax lives here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from jaxresid.errors import JaxresidError
from jaxresid.inspector import _jax
from jaxresid.inspector.avals import aval_of
from jaxresid.inspector.callsites import CallSites, contains_remat, is_inlined
from jaxresid.inspector.consumers import consumers
from jaxresid.inspector.failures import needs_static, summary, trace_error
from jaxresid.inspector.frames import Frames
from jaxresid.inspector.levels import Level, Levels
from jaxresid.inspector.provenance import provenance
from jaxresid.inspector.tracing import Arguments, Trace, arguments, trace
from jaxresid.inspector.values import Free, Numbering
from jaxresid.model import Computed, JaxInfo, Mark, Report, Residual, Target


@dataclass(frozen=True, slots=True)
class Inspection:
    """A report together with the function and the jaxprs that it was made from."""

    fun: Callable[..., Any]
    report: Report
    trace: Trace
    frames: Frames


def inspect(
    fun: Callable[..., Any],
    *args: Any,
    argnums: int | Sequence[int] | None = None,
    has_aux: bool = False,
    **kwargs: Any,
) -> Report:
    """What the backward pass of `fun(*args, **kwargs)` keeps.

    Nothing is computed and nothing allocated. Bools, integers, strings, None and callables are
    static; arrays and floats are traced.

    Args:
      fun: a function that JAX can differentiate.
      *args: its positional arguments: arrays or `jax.ShapeDtypeStruct`s, in any pytree.
      argnums: positional arguments to differentiate; None: every float or complex leaf of all
        arguments, as `jax.ad_checkpoint.print_saved_residuals` does.
      has_aux: `fun` returns `(output, auxiliary data)`.
      **kwargs: its keyword arguments.

    Raises:
      InputsError: the arguments do not fit, or nothing can be differentiated.
      TraceError: the function fails to trace.
      MissingJaxError: jax is missing or older than 0.7.
    """
    return inspection(fun, args, kwargs, argnums=argnums, has_aux=has_aux).report


def inspection(
    fun: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    argnums: int | Sequence[int] | None = None,
    has_aux: bool = False,
    name: str | None = None,
    warnings: Sequence[str] = (),
) -> Inspection:
    """As `inspect`, keeping the jaxprs. `name` is the target as the user wrote it."""
    _jax.import_jax()
    if isinstance(argnums, int):
        argnums = (argnums,)
    name = name or _name_of(fun)
    frames = Frames(own=own_code(fun))
    call, traced, more = _traced(fun, arguments(fun, args, kwargs, argnums), has_aux, name, frames)
    paths = call.paths
    report = Report(
        target=Target(name, tuple(paths[i] for i in call.having("differentiated"))),
        jax=JaxInfo(_jax.jax_version(), _jax.flags()),
        residuals=residuals(traced, frames),
        warnings=(*warnings, *more),
    )
    return Inspection(fun, report, traced, frames)


def residuals(traced: Trace, frames: Frames) -> tuple[Residual, ...]:
    """The residuals of a trace, in the order of the vjp function's leaves."""
    forward, backward = traced.forward, traced.backward
    sites, primal = None, None
    has_remat3 = _jax.flags().get("jax_remat3", False)
    if contains_remat(backward) or (has_remat3 and is_inlined(forward, frames)):
        sites, primal = CallSites(frames), traced.primal()
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


def _traced(
    fun: Callable[..., Any], call: Arguments, has_aux: bool, name: str, frames: Frames
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
        raise trace_error(e, name, frames, call) from e


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
