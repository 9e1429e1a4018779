"""Turn an exception from tracing into one clear message: error, user's line, what to try."""

from __future__ import annotations

import math
import re
import traceback
import types
from dataclasses import replace

from jaxresid import jax_compat
from jaxresid.base.errors import TraceError, summary
from jaxresid.inspector.call.arguments import CONCRETE, Arguments
from jaxresid.inspector.call.jitted_by import jitted_function
from jaxresid.inspector.call.leaves import is_number
from jaxresid.inspector.jaxpr.frames import Frame, Frames, from_exception
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.trace.function import BackwardError
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import Location

_NEEDS_STATIC = re.compile(r"Concretization|TracerBool|TracerInteger|NonConcrete|TracerArrayConv")
# How JAX names the arguments that a value depends on: as parameters of what it traces, see
# `function.primal_trace`.
_UNBOUND = re.compile(r"unbound axis name:? '?(\w+)")
# What `jax.make_mesh` says where there are too few devices, and `jax.devices()` reshaped to a mesh.
_TOO_FEW_DEVICES = re.compile(
    r"umber of devices \d+ must (?:be >=|equal) the product of mesh_shape \(([\d, ]+)\)"
)
_NOT_RESHAPED = re.compile(r"cannot reshape array of size \d+ into shape \(([\d, ]+)\)")
_DEVICES = re.compile(r"\b(?:local_)?devices\b")
_NAMED = re.compile(r"\b(diff|rest)_leaves\[(\d+)\]")


AS_PROGRAM = "  mode program takes it as it is, without its gradient"


def trace_error(error: Exception, name: str, frames: Frames, arguments: Arguments) -> TraceError:
    """Return the error, with its message, for an exception raised while `name` was traced.

    Args:
      error: the exception.
      name: what the target is called.
      frames: finds the user's line.
      arguments: the arguments that it was traced with.
    """
    if isinstance(error, BackwardError):
        cause = error.__cause__ or error
        lines = [f"{name} cannot be differentiated: {summary(cause)}"]
        lines += _at_lines(_while_loops(error.forward, frames))
        lines.append(AS_PROGRAM)
    else:
        lines = [f"{name} fails to trace: {summary(error)}"]
        lines += user_lines(error, frames)
        count = devices_wanted("\n".join(lines))
        if count is None:
            lines += _hint(error, arguments)
        else:
            need = f"set JAX_PLATFORMS=cpu and JAX_NUM_CPU_DEVICES={count}"
            lines.append(f"  devices need not be present: {need}")
    return TraceError("\n".join(lines))


def devices_wanted(message: str) -> int | None:
    """Return how many devices code asks for, by an error that there are too few; None: it is none.

    Args:
      message: the error, with the line of code where it was raised.
    """
    shape = _TOO_FEW_DEVICES.search(message)
    if shape is None and _DEVICES.search(message):
        shape = _NOT_RESHAPED.search(message)
    return None if shape is None else math.prod(map(int, re.findall(r"\d+", shape[1])))


def needs_static(error: Exception) -> bool:
    """Return whether the function wanted the value of something that was traced."""
    return bool(_NEEDS_STATIC.search(type(error).__name__))


def numbers_held(error: Exception, arguments: Arguments) -> Arguments | None:
    """Return the arguments with Python numbers static whose value a function may have wanted.

    They are those that the error names. Where it names none, they are all; but only bools and
    integers where it does not say that a value was wanted, since a traced one fails in many ways
    where a shape or an index is made of it.

    Args:
      error: what the function raised while it was traced.
      arguments: the arguments that it was traced with.

    Returns:
      the arguments; None if there is no such number.
    """
    is_said = needs_static(error)
    numbers = {
        i
        for i in arguments.dynamic
        if is_number(arguments.leaves[i]) and (is_said or isinstance(arguments.leaves[i], int))
    }
    named = {
        arguments.having("differentiated" if kind == "diff" else "traced")[int(n)]
        for kind, n in _NAMED.findall(str(error))
    }
    static = numbers & named or numbers
    if not static:
        return None
    roles = ("static" if i in static else role for i, role in enumerate(arguments.roles))
    return replace(arguments, roles=tuple(roles))


def user_lines(error: BaseException, frames: Frames | None = None) -> list[str]:
    """Return where in the user's code an exception was raised, as lines of a message."""
    return _at_lines([_user_line(error, frames or Frames())])


def _at_lines(locations: list[Location | None]) -> list[str]:
    found = dict.fromkeys(loc for loc in locations if loc is not None)
    return [f"  at {loc.file}:{loc.line} in {loc.function}: {loc.code}" for loc in found]


def _user_line(error: BaseException, frames: Frames) -> Location | None:
    raw = from_exception(error.__traceback__)
    found: list[Frame] = []
    for code, lasti in raw:
        kind = frames.kind(code.co_filename, code.co_qualname)
        if kind == "root":
            found.clear()  # what lies above is whoever called us
        elif kind in ("user", "library", "jax"):
            found.append(Frame(code, lasti, kind))
    return frames.innermost_user(found)


def _while_loops(forward: Jaxpr, frames: Frames) -> list[Location | None]:
    levels = Levels(frames)
    found = []
    todo = [Level(forward)]
    while todo:
        level = todo.pop()
        for eqn in level.jaxpr.eqns:
            if jax_compat.primitive_name(eqn) == "while":
                found.append(levels.location(level, eqn))
            todo += [levels.enter(level, eqn, i) for i in range(len(levels.nests(eqn)))]
    return found


def _hint(error: Exception, arguments: Arguments) -> list[str]:
    if needs_static(error):
        traced = [arguments.paths[i] for i in arguments.dynamic]
        return [
            "  a traced argument was used where Python needs its value; pass that argument as a"
            f" Python literal, which stays static (traced here: {_abridged(traced)})"
        ]
    if unbound := _UNBOUND.search(str(error)):
        axis = unbound[1]
        name = _mapped_function(error)
        such = f"that is {name}" if name else f"such as jax.pmap(step, axis_name={axis!r})"
        return [
            f"  the axis {axis} is bound by jax.pmap, jax.shard_map or jax.vmap around it: name"
            f" what they return, {such}, with inputs that have the axis"
        ]
    if type(error).__name__ == "UnexpectedTracerError":
        left = "an inputs function may have left traced arrays behind, for example in a global"
        return [f"  {left}; {CONCRETE}"]
    static = [
        f"{arguments.paths[i]} = {arguments.leaves[i]!r:.40}"
        for i in arguments.having("static")
        if arguments.leaves[i] is not None and not callable(arguments.leaves[i])
    ]
    if static and isinstance(error, AttributeError | TypeError):
        return [
            f"  static here: {_abridged(static)}; to trace a number, write it as f32[] or i32[]"
        ]
    return []


def _mapped_function(error: Exception) -> str | None:
    """Return the name of a mapped or jitted function that calls one in which an error was raised.

    It is looked for in the modules of the functions that ran.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    codes = {frame.f_code for frame in frames}
    for frame in frames:
        for name, value in list(frame.f_globals.items()):
            if jitted_function(value).by is not None:
                inner = getattr(value, "__wrapped__", None)
                if isinstance(inner, types.FunctionType) and inner.__code__ in codes:
                    return name
    return None


def _abridged(items: list[str]) -> str:
    return ", ".join(items[:5]) + (f" and {len(items) - 5} more" if len(items) > 5 else "")
