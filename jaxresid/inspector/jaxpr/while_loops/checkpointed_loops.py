"""Recognise the backward pass of equinox' checkpointed while loops, by its eqns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.extents import nbytes
from jaxresid.inspector.jaxpr.nesting import Nest
from jaxresid.inspector.jaxpr.while_loops.ranges import literal
from jaxresid.inspector.jaxpr.while_loops.while_bounds import Scope
from jaxresid.jax_compat.jaxpr_types import Eqn, Var

_NAME = "checkpointed-bwd"
# The step of the value, that of the gradient, that of the next checkpoint, and the first free place
# are carried first.
_FIRST = 4


@dataclass(frozen=True, slots=True)
class Buffers:
    """What a checkpointed while loop keeps of its carry.

    Attributes:
      checkpoints: how many carries are kept.
      nbytes: the bytes of all of them.
    """

    checkpoints: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class CheckpointedBackward:
    """The backward pass of a checkpointed while loop.

    Attributes:
      gradient_step: the body's invar that is the step of the gradient, which counts down.
      checkpoints: how many carries are kept.
      nbytes: the bytes of all of them.
      branches: the id of the tuple of branches of the cond that runs a step forward or takes one
        back; None where every trip takes one back.
    """

    gradient_step: int
    checkpoints: int
    nbytes: int
    branches: int | None


def backward_of(eqn: Eqn, nest: Nest) -> CheckpointedBackward | None:
    """Return what a while eqn is the backward pass of; None if it is of no checkpointed loop."""
    if _NAME not in jax_compat.name_stack(eqn):
        return None
    cond = jax_compat.open_jaxpr(jax_compat.params(eqn)["cond_jaxpr"])
    scope = Scope(cond)
    tested = scope.eqn_of(cond.outvars[0])
    if tested is None or jax_compat.primitive_name(tested[1]) != "gt":
        return None
    counted, zero = (tested[0].source(v).var for v in tested[1].invars)
    if not jax_compat.is_literal(zero) or literal(zero).high != 0 or counted not in cond.invars:
        return None
    gradient = cond.invars.index(counted) - jax_compat.params(eqn)["cond_nconsts"]
    buffers = _buffers(nest)
    if buffers is None:
        return None
    into = next(i for i, out in nest.carries.items() if out == gradient)
    return CheckpointedBackward(
        into, buffers.checkpoints, buffers.nbytes, _turning(nest, nest.jaxpr.invars[into])
    )


def _buffers(nest: Nest) -> Buffers | None:
    """Return the buffers of a loop by the shapes of what it carries.

    The last carries are the steps of the checkpoints and then, for each array of the value, a
    buffer of as many of it; a batch may have put an axis into either.
    """
    carries = [v for i, v in enumerate(nest.jaxpr.invars) if i in nest.carries]
    for count in range(len(carries) - _FIRST - 1, -1, -1):
        steps = carries[len(carries) - count - 1].aval
        if len(steps.shape) != 1 or steps.dtype.kind != "i":
            continue
        values, buffers = carries[_FIRST : _FIRST + count], carries[len(carries) - count :]
        (kept,) = steps.shape
        if all(_is_buffer(v, b, kept) for v, b in zip(values, buffers, strict=True)):
            return Buffers(kept, sum(nbytes(v) for v in buffers))
    return None


def _is_buffer(value: Var, buffer: Var, count: int) -> bool:
    size = math.prod(value.aval.shape)
    # A buffer may have the batch axis where the value has none.
    return buffer.aval.dtype == value.aval.dtype and (
        not size or math.prod(buffer.aval.shape) % (count * size) == 0
    )


def _turning(nest: Nest, gradient: Var) -> int | None:
    """Return the id of the branches of the cond that steps back where the value is at the gradient.

    Its condition is that the step of the value, plus one, is that of the gradient.
    """
    scope = Scope(nest.jaxpr)
    for eqn in _conds(nest):
        found = scope.eqn_of(eqn.invars[0])
        if found is None or jax_compat.primitive_name(found[1]) != "eq":
            continue
        if any(found[0].source(v).var is gradient for v in found[1].invars):
            return id(jax_compat.params(eqn)["branches"])
    return None


def _conds(nest: Nest) -> Iterator[Eqn]:
    return (eqn for eqn in nest.jaxpr.eqns if jax_compat.primitive_name(eqn) == "cond")
