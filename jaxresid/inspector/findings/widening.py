"""Find residuals that are wider than what they were computed from, without anybody asking for it.

`jnp.var` of a bfloat16 array computes in float32, and so does whatever meets a float32 array. What
the user's own line casts by name is deliberate, and so is what a model library does.
"""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.primitives import CONTRACTIONS
from jaxresid.inspector.trace.function import Trace
from jaxresid.jaxpr_types import Eqn, Var
from jaxresid.model import Source

# How many eqns behind a residual are looked at; a normalisation is some ten long.
_REACH = 64
# Where a value of other elements than the operand's begins.
_NEW_VALUES = CONTRACTIONS | {"gather", "sort", "while", "cond", "pallas_call"}
_DELIBERATE = re.compile(r"astype|float32|float64|\bf32\b|\bf64\b|convert_element_type|dtype")


@dataclass(frozen=True, slots=True)
class Widening:
    """The place where a value became wider.

    Attributes:
      dtype: the dtype of the value before.
      itemsize: the bytes of one element before.
      by: what widened it, quoted: a function of JAX, or the line's code.
      source: where that is.
    """

    dtype: str
    itemsize: int
    by: str
    source: Source


def widened(traced: Trace, var: Var) -> Widening | None:
    """Return the place where a residual, an outvar of the forward jaxpr, became as wide as it is.

    None where it was so wide from its argument on, or where somebody asked for it.
    """
    levels, wide = traced.levels, var.aval.dtype
    todo = deque([(Level(traced.forward), var)])
    seen: set[tuple[int, Var]] = set()
    while todo and len(seen) < _REACH:
        level, var = todo.popleft()
        if jax_compat.is_literal(var) or (id(level), var) in seen:
            continue
        seen.add((id(level), var))
        made = levels.producer(level, var)
        if made is None:
            outside = _outside(levels, level, var)
            todo += [outside] if outside is not None else []
            continue
        eqn, i = made
        name = jax_compat.primitive_name(eqn)
        nests = levels.nests(eqn)
        if nests and nests[0].kind in ("call", "scan"):
            inner = nests[0].jaxpr.outvars[nests[0].results.index(i)]
            todo.append((levels.enter(level, eqn, 0), inner))
        elif name == "convert_element_type" and _is_narrower(eqn.invars[0].aval.dtype, wide):
            return _widening_at(levels, level, eqn)
        elif not nests and name not in _NEW_VALUES:
            todo += [(level, v) for v in eqn.invars if _is_like(v, var)]
    return None


def _outside(levels: Levels, level: Level, var: Var) -> tuple[Level, Var] | None:
    i, nest = levels.invar(level, var), level.nest
    if i is None or nest is None or level.parent is None or i in nest.carries:
        return None
    return level.parent, level.eqn.invars[nest.operands[i]]


def _is_like(var: Var, other: Var) -> bool:
    a, b = var.aval, other.aval
    same = getattr(a, "dtype", None) == getattr(b, "dtype", None)
    return same and math.prod(a.shape) == math.prod(b.shape)


def _is_narrower(dtype: Any, wide: Any) -> bool:
    numpy = jax_compat.import_jax().numpy
    return bool(numpy.issubdtype(dtype, numpy.floating)) and dtype.itemsize < wide.itemsize


def _widening_at(levels: Levels, level: Level, eqn: Eqn) -> Widening | None:
    frames = levels.place(level, eqn).frames
    at = levels.frames.innermost_user(frames)
    user = max((i for i, f in enumerate(frames) if f.kind == "user"), default=None)
    if user is None or any(f.kind == "library" for f in frames[user:]):
        return None
    if at is None or _DELIBERATE.search(at.code):
        return None
    called, _ = levels.frames.library_calls(frames)
    dtype = eqn.invars[0].aval.dtype
    by = f"`{at.code}`" if called is None or called == at else f"jax's `{called.function}`"
    return Widening(str(dtype), dtype.itemsize, by, levels.source(level, eqn))
