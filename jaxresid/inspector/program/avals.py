"""Turn JAX's avals into `model.Aval`s."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from jaxresid import jax_compat
from jaxresid.inspector.program.ops import Value
from jaxresid.jax_compat.jaxpr_types import Var
from jaxresid.results import Aval


def aval_of(var: Var) -> Aval:
    """Return the aval of a jaxpr variable or literal.

    Extended dtypes (PRNG keys) count the bytes of one key: 8 for threefry and 16 for rbg.
    """
    aval = var.aval
    dtype = getattr(aval, "dtype", None)
    if dtype is None:  # a token or a ref: no array of its own
        return Aval(str(aval), (), 0)
    name, itemsize = _dtype(dtype)
    shape = tuple(int(d) for d in aval.shape)
    return Aval(
        name, shape, itemsize, "host" if jax_compat.memory_space(aval) == "host" else "device"
    )


def aval_on(values: Mapping[Var, Value], var: Var) -> Aval:
    """Return the aval of a variable as `aval_of` does, with the part of it that one device holds.

    Args:
      values: the values of the variables on a mesh, see `build.Program.values`; empty without a
        mesh.
      var: the variable or literal.
    """
    aval = aval_of(var)
    value = None if jax_compat.is_literal(var) else values.get(var)
    if value is None or value.whole is None:
        return aval
    return replace(aval, shard=value.shape, spec=value.spec)


def aval_of_value(value: Value) -> Aval:
    """Return the aval of a program's value, with the part of it that one device holds."""
    memory: Literal["device", "host"] = "host" if value.memory == "host" else "device"
    if value.whole is None:
        return Aval(value.dtype, value.shape, value.itemsize, memory)
    return Aval(value.dtype, value.whole, value.itemsize, memory, value.shape, value.spec)


@functools.cache
def _dtype(dtype: Any) -> tuple[str, int]:
    return getattr(dtype, "name", str(dtype)), int(dtype.itemsize)
