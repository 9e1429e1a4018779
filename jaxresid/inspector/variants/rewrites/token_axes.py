"""Follow an axis of tokens, and the axis of what there is one score of for each, through eqns.

A rule says, for an eqn and the axes of one of its operands, which axes its results have, which the
other operands must have so that the eqn may be applied to some of the tokens at a time, and its
params for so many tokens. There is none for an eqn that mixes tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.primitives import (
    ARG_REDUCTIONS,
    CASTS,
    COPIES,
    ELEMENTWISE,
    MARKS,
    REDUCTIONS,
)
from jaxresid.jax_compat.jaxpr_types import Eqn, Var

# The param that holds the sizes of the result.
_SIZES = {
    "broadcast_in_dim": "shape",
    "iota": "shape",
    "reshape": "new_sizes",
    "slice": "limit_indices",
}
_IN_PLACE = ELEMENTWISE | CASTS | MARKS | COPIES - {"device_put"}


@dataclass(frozen=True, slots=True)
class Axes:
    """Where a value has the tokens, and the scores of each.

    Attributes:
      tokens: the dim that holds the tokens; None for a sum over them.
      inner: how many elements of that dim belong to one token: more than one where dims after it
        were merged into it.
      scores: the dim that holds the scores; None without one.
    """

    tokens: int | None
    inner: int = 1
    scores: int | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """What becomes of axes in an eqn.

    Attributes:
      operands: the axes that operands must have, by number; the others are read whole.
    """

    result: Axes
    operands: Mapping[int, Axes]


def shape_of(var: Var) -> tuple[int, ...]:
    """Return the shape of a value; that of what has none is empty."""
    return tuple(getattr(var.aval, "shape", ()))


def size_of(var: Var) -> int:
    """Return how many elements a value has."""
    return math.prod(shape_of(var))


def forwards(eqn: Eqn, which: int, axes: Axes, count: int) -> Applied | None:
    """Return what becomes of the axes of an operand, of so many tokens; None without a rule."""
    name = jax_compat.primitive_name(eqn)
    if axes.tokens is None or eqn.effects:
        return None
    if name in _IN_PLACE:
        result = _same_in_other_shape(eqn.invars[which], eqn.outvars[0], axes)
        return None if result is None else backwards(eqn, result, count)
    rule = _FORWARDS.get(name)
    if rule is None and name in REDUCTIONS | ARG_REDUCTIONS:
        rule = _reduced
    return None if rule is None else rule(eqn, which, axes, count)


def backwards(eqn: Eqn, axes: Axes, count: int) -> Applied | None:
    """Return which axes operands must have for a result to have some; None without a rule."""
    if axes.tokens is None or eqn.effects or len(eqn.outvars) != 1:
        return None
    name = jax_compat.primitive_name(eqn)
    if name in _IN_PLACE:
        return _of_elementwise(eqn, axes)
    rule = _BACKWARDS.get(name)
    return None if rule is None else rule(eqn, axes, count)


def params_for(eqn: Eqn, axes: Axes, count: int, part: int) -> Mapping[str, Any]:
    """Return the params of an eqn with a rule for `part` of `count` tokens."""
    params, dim = jax_compat.params(eqn), axes.tokens
    key = _SIZES.get(jax_compat.primitive_name(eqn))
    if key is None or dim is None:
        return params
    sizes = list(params[key])
    if sizes[dim] != count * axes.inner:
        return params
    sizes[dim] = part * axes.inner
    return {**params, key: tuple(sizes)}


def _same_in_other_shape(operand: Var, result: Var, axes: Axes) -> Axes | None:
    """Return the axes of the result of an operation by elements: dims of size 1 are repeated."""
    if len(shape_of(operand)) != len(shape_of(result)):
        return None
    scores = axes.scores
    if scores is None:
        return axes
    return axes if shape_of(operand)[scores] == shape_of(result)[scores] else None


def _of_elementwise(eqn: Eqn, axes: Axes) -> Applied | None:
    assert axes.tokens is not None
    shape, operands = shape_of(eqn.outvars[0]), dict[int, Axes]()
    for i, v in enumerate(eqn.invars):
        own = shape_of(v)
        if jax_compat.is_literal(v) or not own:
            continue
        if len(own) != len(shape):
            return None
        if own[axes.tokens] != shape[axes.tokens]:
            continue
        has_scores = axes.scores is not None and own[axes.scores] == shape[axes.scores]
        operands[i] = axes if has_scores else replace(axes, scores=None)
    return Applied(axes, operands)


def _moved(axes: Axes, to: Callable[[int], int | None]) -> Axes | None:
    assert axes.tokens is not None
    tokens = to(axes.tokens)
    if tokens is None:
        return None
    scores = None if axes.scores is None else to(axes.scores)
    return Axes(tokens, axes.inner, scores)


def _with(result: Axes | None, axes: Axes) -> Applied | None:
    return None if result is None else Applied(result, {0: axes})


def _needing(result: Axes, operand: Axes | None) -> Applied | None:
    return None if operand is None else Applied(result, {0: operand})


def _broadcast(eqn: Eqn, which: int, axes: Axes, count: int) -> Applied | None:
    dims, shape = jax_compat.params(eqn)["broadcast_dimensions"], shape_of(eqn.outvars[0])
    own = shape_of(eqn.invars[0])
    if which or any(shape[dims[d]] != own[d] for d in _dims(axes)):
        return None
    return _with(_moved(axes, lambda d: dims[d]), axes)


def _broadcast_back(eqn: Eqn, axes: Axes, count: int) -> Applied | None:
    dims, shape = tuple(jax_compat.params(eqn)["broadcast_dimensions"]), shape_of(eqn.outvars[0])
    operand = eqn.invars[0]
    if jax_compat.is_literal(operand):
        return Applied(axes, {})
    own = shape_of(operand)

    def back(d: int) -> int | None:
        return dims.index(d) if d in dims and own[dims.index(d)] == shape[d] else None

    needed = _moved(axes, back)
    return Applied(axes, {} if needed is None else {0: needed})


def _dims(axes: Axes) -> list[int]:
    return [d for d in (axes.tokens, axes.scores) if d is not None]


def _reshaped(own: Sequence[int], new: Sequence[int], axes: Axes, count: int) -> Axes | None:
    """Return the axes after a reshape; None where a dim in front is merged with the tokens."""
    assert axes.tokens is not None
    lead = math.prod(own[: axes.tokens])
    tokens = next(
        (e for e, n in enumerate(new) if math.prod(new[:e]) == lead and n % count == 0 and n), None
    )
    if tokens is None:
        return None
    scores = None
    if axes.scores is not None:
        before, width = math.prod(own[: axes.scores]), own[axes.scores]
        fitting = (e for e, n in enumerate(new) if math.prod(new[:e]) == before and n == width)
        scores = next((e for e in fitting if e != tokens), None)
        if scores is None:
            return None
    return Axes(tokens, new[tokens] // count, scores)


def _reshape(eqn: Eqn, which: int, axes: Axes, count: int) -> Applied | None:
    if jax_compat.params(eqn).get("dimensions") is not None:
        return None
    own, new = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
    return _with(_reshaped(own, new, axes, count), axes)


def _reshape_back(eqn: Eqn, axes: Axes, count: int) -> Applied | None:
    if jax_compat.params(eqn).get("dimensions") is not None:
        return None
    own, new = shape_of(eqn.outvars[0]), shape_of(eqn.invars[0])
    return _needing(axes, _reshaped(own, new, axes, count))


def _squeeze(eqn: Eqn, which: int, axes: Axes, count: int) -> Applied | None:
    gone = {d % len(shape_of(eqn.invars[0])) for d in jax_compat.params(eqn)["dimensions"]}
    return _with(_moved(axes, _without(gone)), axes)


def _squeeze_back(eqn: Eqn, axes: Axes, count: int) -> Applied | None:
    rank = len(shape_of(eqn.invars[0]))
    gone = {d % rank for d in jax_compat.params(eqn)["dimensions"]}
    left = [d for d in range(rank) if d not in gone]
    return _needing(axes, _moved(axes, lambda d: left[d]))


def _without(gone: set[int]) -> Callable[[int], int | None]:
    return lambda d: None if d in gone else d - sum(g < d for g in gone)


def _transpose(eqn: Eqn, which: int, axes: Axes, count: int) -> Applied | None:
    order = tuple(jax_compat.params(eqn)["permutation"])
    return _with(_moved(axes, order.index), axes)


def _transpose_back(eqn: Eqn, axes: Axes, count: int) -> Applied | None:
    order = jax_compat.params(eqn)["permutation"]
    return _needing(axes, _moved(axes, lambda d: order[d]))


def _slice(eqn: Eqn, which: int, axes: Axes, count: int) -> Applied | None:
    tokens = axes.tokens
    assert tokens is not None
    if shape_of(eqn.outvars[0])[tokens] != shape_of(eqn.invars[0])[tokens]:
        return None
    return Applied(axes, {0: axes})


def _reduced(eqn: Eqn, which: int, axes: Axes, count: int) -> Applied | None:
    gone = set(jax_compat.params(eqn)["axes"])
    if len(eqn.invars) != 1:
        return None
    if axes.tokens in gone:
        is_sum = jax_compat.primitive_name(eqn) == "reduce_sum"
        return Applied(Axes(None), {0: axes}) if is_sum else None
    return _with(_moved(axes, _without(gone)), axes)


def _dot(eqn: Eqn, which: int, axes: Axes, count: int) -> Applied | None:
    """Apply a sum of products over the scores with one other number for each, or with vectors.

    These are one-hot targets, or the values of attention.
    """
    contracting, batch = jax_compat.params(eqn)["dimension_numbers"]
    other, tokens = 1 - which, axes.tokens
    pairs = dict(zip(batch[which], batch[other], strict=True))
    summed = dict(zip(contracting[which], contracting[other], strict=True))
    own, theirs = shape_of(eqn.invars[which]), shape_of(eqn.invars[other])
    more = len(theirs) - len(pairs) - len(summed)
    if axes.scores not in summed or eqn.invars[0] is eqn.invars[1]:
        return None
    if more and (tokens in summed or tokens in pairs):
        return None
    if tokens in summed:
        needed = Axes(summed[tokens], axes.inner, summed[axes.scores])
        return Applied(Axes(None), {which: axes, other: needed})
    if tokens in pairs:
        needed = Axes(pairs[tokens], axes.inner, summed[axes.scores])
        result = Axes(list(pairs).index(tokens), axes.inner)
        return Applied(result, {which: axes, other: needed})
    free = [d for d in range(len(own)) if d not in pairs and d not in summed]
    if tokens not in free:
        return None
    position = len(pairs) + (more if which else 0) + free.index(tokens)
    return Applied(Axes(position, axes.inner), {which: axes})


def _dot_back(eqn: Eqn, axes: Axes, count: int) -> Applied | None:
    """Return what a product of tokens and a matrix with the scores needs: the tokens."""
    contracting, batch = jax_compat.params(eqn)["dimension_numbers"]
    tokens, dims = axes.tokens, list[tuple[int, int]]()
    for side in (0, 1):
        rank = len(shape_of(eqn.invars[side]))
        taken = {*contracting[side], *batch[side]}
        dims += [(side, d) for d in range(rank) if d not in taken]
    assert tokens is not None
    if tokens < len(batch[0]):
        return None
    side, dim = dims[tokens - len(batch[0])]
    if axes.scores is not None and (
        axes.scores < len(batch[0]) or dims[axes.scores - len(batch[0])][0] == side
    ):
        return None
    return Applied(axes, {side: Axes(dim, axes.inner)})


def _gather(eqn: Eqn, which: int, axes: Axes, count: int) -> Applied | None:
    """Apply what takes a score of each token, as `take_along_axis` does."""
    params = jax_compat.params(eqn)
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    tokens, scores = axes.tokens, axes.scores
    own = tuple(getattr(numbers, "operand_batching_dims", ()))
    theirs = tuple(getattr(numbers, "start_indices_batching_dims", ()))
    if which or tokens not in own or scores not in numbers.collapsed_slice_dims:
        return None
    assert tokens is not None
    at = theirs[own.index(tokens)]
    if sizes[tokens] != 1:
        return None
    rank = len(shape_of(eqn.outvars[0]))
    batch = [d for d in range(rank) if d not in numbers.offset_dims]
    return Applied(Axes(batch[at], axes.inner), {0: axes, 1: Axes(at, axes.inner)})


def _iota_back(eqn: Eqn, axes: Axes, count: int) -> Applied | None:
    return None if jax_compat.params(eqn)["dimension"] == axes.tokens else Applied(axes, {})


_FORWARDS: dict[str, Callable[[Eqn, int, Axes, int], Applied | None]] = {
    "broadcast_in_dim": _broadcast,
    "dot_general": _dot,
    "gather": _gather,
    "reshape": _reshape,
    "slice": _slice,
    "squeeze": _squeeze,
    "transpose": _transpose,
}
_BACKWARDS: dict[str, Callable[[Eqn, Axes, int], Applied | None]] = {
    "broadcast_in_dim": _broadcast_back,
    "dot_general": _dot_back,
    "iota": _iota_back,
    "reshape": _reshape_back,
    "squeeze": _squeeze_back,
    "transpose": _transpose_back,
}
