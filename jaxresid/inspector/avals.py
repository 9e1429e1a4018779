"""JAX avals -> `model.Aval`."""

from __future__ import annotations

import functools
from typing import Any

from jaxresid.inspector import _jax
from jaxresid.model import Aval


def aval_of(var: Any) -> Aval:
    """The aval of a jaxpr variable or literal; extended dtypes (PRNG keys) count the bytes of one
    key, 8 for threefry and 16 for rbg."""
    aval = var.aval
    dtype = getattr(aval, "dtype", None)
    if dtype is None:  # a token or a ref: no array of its own
        return Aval(str(aval), (), 0)
    name, itemsize = _dtype(dtype)
    shape = tuple(int(d) for d in aval.shape)
    return Aval(name, shape, itemsize, "host" if _jax.memory_space(aval) == "host" else "device")


@functools.cache
def _dtype(dtype: Any) -> tuple[str, int]:
    return getattr(dtype, "name", str(dtype)), int(dtype.itemsize)
