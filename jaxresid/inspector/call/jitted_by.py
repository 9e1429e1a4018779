"""Tell what a function is jitted by, where it is defined, and what its options are counted from."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from jaxresid.results import Location

JittedBy = Literal["jax", "pmap", "nnx", "equinox"]
# The attribute of a function that jaxresid made of a model: that model, or its class.
MODEL = "_jaxresid_model"


@dataclass(frozen=True, slots=True)
class JittedFunction:
    """A function under its `functools.partial`s and bound methods.

    Attributes:
      name: what it is called.
      by: what jits it; None: it is not jitted itself.
      is_bound: whether it has been given positional arguments already, so that its arguments have
        other numbers than those of the call.
    """

    name: str
    by: JittedBy | None
    is_bound: bool


def jitted_function(fun: Callable[..., Any]) -> JittedFunction:
    """Return what a callable calls, and what that is jitted by."""
    found: Any = fun
    is_bound = False
    while True:
        if isinstance(found, functools.partial):
            is_bound = is_bound or bool(found.args)
            found = found.func
        elif inspect.ismethod(found):
            is_bound, found = True, found.__func__
        elif type(found).__module__ == "equinox._module._prebuilt":  # a bound method of Equinox's
            is_bound, found = True, found.func
        else:
            break
    try:
        name = getattr(found, "__name__", None)
    except Exception:  # a callable's own __getattr__ may raise anything
        name = None
    return JittedFunction(str(name or type(found).__name__), _jitted_by(found), is_bound)


def _jitted_by(fun: Any) -> JittedBy | None:
    try:
        if not callable(getattr(fun, "lower", None)):
            return None
    except Exception:  # a callable's own __getattr__ may raise anything
        return None
    # `pmap` adds `lower` to a function of its own; until JAX 0.8 it has a type.
    if inspect.isfunction(fun) or type(fun).__name__ == "PmapFunction":
        return "pmap"
    library = type(fun).__module__.partition(".")[0]
    return "nnx" if library == "flax" else "equinox" if library == "equinox" else "jax"


def definition(target: Callable[..., Any]) -> Location | None:
    """Return where a function is defined, by absolute path; None for what is not in Python.

    For a callable object this is where its class is defined, and for a loss or a training step that
    was made of a model where the model is.
    """
    found: Any = target
    while isinstance(found, functools.partial):
        found = found.func
    found = inspect.unwrap(found)
    found = getattr(found, "__func__", found)
    found = getattr(found, MODEL, found) if inspect.isfunction(found) else found
    if not (inspect.isfunction(found) or inspect.isclass(found)):
        found = type(found)
    try:
        file = inspect.getsourcefile(found)
        _, line = inspect.getsourcelines(found)
    except (TypeError, OSError):
        return None
    name = found.__qualname__.replace(".<locals>", "")
    return None if file is None else Location(os.path.abspath(file), line, None, name)
