"""What a function's backward pass keeps, from abstract inputs. jax lives here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxresid.errors import JaxresidError
from jaxresid.inspector import _jax
from jaxresid.inspector.avals import aval_of
from jaxresid.inspector.callsites import CallSites, contains_remat
from jaxresid.inspector.consumers import consumers
from jaxresid.inspector.failures import needs_static, summary, trace_error
from jaxresid.inspector.frames import Frames
from jaxresid.inspector.levels import Level, Levels
from jaxresid.inspector.provenance import provenance
from jaxresid.inspector.tracing import Arguments, Trace, arguments, trace
from jaxresid.inspector.values import Numbering, is_free
from jaxresid.model import Computed, JaxInfo, Mark, Report, Residual, Target


@dataclass(frozen=True, slots=True)
class Inspection:
    """A report together with the jaxprs that it was made from."""

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
    name = name or getattr(fun, "__qualname__", None) or type(fun).__name__
    frames = Frames(own=own_code(fun))
    call, traced, more = _traced(fun, arguments(fun, args, kwargs, argnums), has_aux, name, frames)
    paths = call.paths
    report = Report(
        target=Target(name, tuple(paths[i] for i in call.having("differentiated"))),
        jax=JaxInfo(_jax.jax_version(), _jax.flags()),
        residuals=residuals(traced, frames),
        warnings=(*warnings, *more),
    )
    return Inspection(report, traced, frames)


def residuals(traced: Trace, frames: Frames) -> tuple[Residual, ...]:
    """The residuals of a trace, in the order of the vjp function's leaves."""
    forward, call = traced.forward, traced.arguments
    sites, primal = None, None
    if contains_remat(traced.backward) or contains_remat(forward):
        sites, primal = CallSites(frames), traced.primal()
    ahead = Levels(frames, sites)
    top = Level(forward, primal=primal)
    back, top_back = Levels(frames), Level(traced.backward)
    paths = [call.paths[i] for i in call.dynamic]
    kept = forward.outvars[traced.num_outputs :]
    numbering = Numbering(ahead)
    numbers = numbering.of(forward)
    outputs = {numbers[v] for v in forward.outvars[: traced.num_outputs] if not _jax.is_literal(v)}
    gradients = {v for v in traced.backward.outvars if not _jax.is_literal(v)}
    seen: set[int] = set()
    found = []
    for var, inside in zip(kept, traced.backward.invars, strict=False):
        origin = provenance(ahead, top, var, paths)
        aval = aval_of(var)
        if origin.memory == "host":
            aval = replace(aval, memory="host")
        marks = list(origin.marks)
        if isinstance(origin.origin, Computed):
            number = numbers[var]
            if number in outputs:
                marks.append(Mark.PRIMAL_OUTPUT)
            if number in seen:
                marks.append(Mark.DUPLICATE)
            seen.add(number)
            if is_free(ahead, top, var):
                marks.append(Mark.FREE)
        if (
            aval.memory == "host"
            and Mark.OFFLOADED not in marks
            and origin.origin.kind == "computed"
        ):
            marks.append(Mark.OFFLOADED)
        read = consumers(back, top_back, inside)
        if not read and inside not in gradients:
            marks.append(Mark.UNREAD)
        found.append(Residual(aval, origin.origin, origin.trips, read, tuple(marks)))
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


def own_code(fun: Any) -> tuple[str, ...]:
    """The directories whose code counts as the user's even inside site-packages: the package that
    the target is defined in."""
    while hasattr(fun, "func"):  # functools.partial
        fun = fun.func
    module = sys.modules.get(getattr(fun, "__module__", None) or "")
    top = sys.modules.get(module.__name__.partition(".")[0]) if module else None
    file = getattr(top, "__file__", None)
    if not file or top is None or top.__name__ in ("jax", "jaxlib", "flax", "equinox", "haiku"):
        return ()
    return (os.path.dirname(os.path.abspath(file)),) if hasattr(top, "__path__") else ()


__all__ = ["Inspection", "inspect", "inspection", "own_code", "residuals", "summary"]
