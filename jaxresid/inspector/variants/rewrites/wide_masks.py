"""Find scores that are selected by a mask and go into a softmax, and add a bias instead.

The mask is broadcast to the scores where it selects, which in a loop JAX does once, before it: with
the fill it is then in memory as large as the scores. A bias is added in the shape of the mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.inline import flattened
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.inspector.jaxpr.primitives import of_kind
from jaxresid.inspector.jaxpr.rewrite import rewritten
from jaxresid.inspector.program.avals import aval_of
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

_ENTERED = of_kind("call", "checkpoint", "control")
# Weights of what is filled with this or less are zero after a softmax.
_LEAST_FILL = -1e4
_Makers = Mapping[Var, Eqn]


@dataclass(frozen=True, slots=True)
class _Select:
    """What an eqn selects; variables of the jaxpr that holds the eqn that selects."""

    mask: Var
    dims: tuple[int, ...]
    scores: Var
    fill: Var
    fills_where_true: bool


@dataclass(frozen=True, slots=True, eq=False)
class MaskedScores:
    """Scores that a mask, smaller than they are, selects for a softmax.

    Attributes:
      path: the eqns that hold one another, from that of the searched jaxpr down to what selects.
      mask: the variable of the mask.
      dims: the axes of the scores that the mask has.
      scores: the variable of the scores.
      fill: what stands where there is no score.
      fills_where_true: whether that is where the mask is true.
    """

    path: tuple[Eqn, ...]
    mask: Var
    dims: tuple[int, ...]
    scores: Var
    fill: float
    fills_where_true: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the scores."""
        return aval_of(self.scores).shape

    @property
    def mask_shape(self) -> tuple[int, ...]:
        """The shape of the mask."""
        return aval_of(self.mask).shape


def masked_scores(jaxpr: Jaxpr) -> Iterator[MaskedScores]:
    """Yield the scores of an open jaxpr, at any depth, that a smaller mask selects."""
    yield from _below(jaxpr, (), set())


def _below(jaxpr: Jaxpr, path: tuple[Eqn, ...], seen: set[int]) -> Iterator[MaskedScores]:
    if id(jaxpr) in seen:
        return
    seen.add(id(jaxpr))
    makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    for eqn in jaxpr.eqns:
        found = _selected(eqn, makers)
        if found is not None:
            made = _masked(jaxpr, (*path, eqn), found, makers)
            if made is not None:
                yield made
        elif jax_compat.primitive_name(eqn) in _ENTERED:
            for nest in nests(eqn):
                yield from _below(nest.jaxpr, (*path, eqn), seen)


def _masked(
    jaxpr: Jaxpr, path: tuple[Eqn, ...], found: _Select, makers: _Makers
) -> MaskedScores | None:
    fill = _unfilled(found.fill, makers)
    is_smaller = math.prod(aval_of(found.mask).shape) < math.prod(aval_of(found.scores).shape)
    if not is_smaller or not jax_compat.is_literal(fill) or float(fill.val) > _LEAST_FILL:
        return None
    if not _feeds_softmax(jaxpr, path[-1].outvars[0]):
        return None
    value, fills_where_true = float(fill.val), found.fills_where_true
    return MaskedScores(path, found.mask, found.dims, found.scores, value, fills_where_true)


def _selected(eqn: Eqn, makers: _Makers) -> _Select | None:
    """Return what an eqn selects, one of its own or that of a call like `jnp.where`."""
    name = jax_compat.primitive_name(eqn)
    if name == "jit" and len(eqn.outvars) == 1:
        (nest,) = nests(eqn)
        inner = {v: each for each in nest.jaxpr.eqns for v in each.outvars}
        (result,) = nest.jaxpr.outvars
        maker = None if jax_compat.is_literal(result) else inner.get(result)
        found = None if maker is None else _selected(maker, inner)
        if found is None:
            return None
        filled = _unfilled(found.fill, inner)
        outer = dict(zip(nest.jaxpr.invars, (eqn.invars[i] for i in nest.operands), strict=True))
        if found.mask not in outer or found.scores not in outer:
            return None
        fill = filled if jax_compat.is_literal(filled) else outer.get(filled)
        if fill is None:
            return None
        mask, dims = _narrow(outer[found.mask], found.dims, makers)
        if jax_compat.is_literal(mask) or jax_compat.is_literal(outer[found.scores]):
            return None
        return _Select(mask, dims, outer[found.scores], fill, found.fills_where_true)
    if name != "select_n" or len(eqn.invars) != 3:
        return None
    chosen, *cases = eqn.invars
    mask, dims = _narrow(chosen, tuple(range(len(aval_of(chosen).shape))), makers)
    if jax_compat.is_literal(mask) or not dims:
        return None
    for number, fill in enumerate(cases):
        scores = cases[1 - number]
        is_scalar = not aval_of(_unfilled(fill, makers)).shape
        # In float16 a bias overflows.
        is_wide = aval_of(scores).dtype != "float16"
        if is_scalar and is_wide and not jax_compat.is_literal(scores):
            return _Select(mask, dims, scores, fill, fills_where_true=number == 1)
    return None


def _narrow(var: Var, dims: tuple[int, ...], makers: _Makers) -> tuple[Var, tuple[int, ...]]:
    """Return what a value is broadcast from, and which axes of the scores that has.

    Args:
      var: the value.
      dims: which axes of the scores the value has.
      makers: the eqns that make the values.
    """
    while not jax_compat.is_literal(var) and var in makers:
        eqn = makers[var]
        if jax_compat.primitive_name(eqn) == "broadcast_in_dim":
            dims = tuple(dims[i] for i in jax_compat.params(eqn)["broadcast_dimensions"])
        elif not _is_unequal_to_zero(eqn):
            break
        var = eqn.invars[0]
    return var, dims


def _is_unequal_to_zero(eqn: Eqn) -> bool:
    """Return whether an eqn makes a mask of numbers, as `jnp.where` does."""
    if jax_compat.primitive_name(eqn) != "ne":
        return False
    zero = eqn.invars[1]
    return jax_compat.is_literal(zero) and float(zero.val) == 0


def _unfilled(var: Var, makers: _Makers) -> Var:
    """Return what a value is a cast or a broadcast of."""
    while not jax_compat.is_literal(var) and var in makers:
        eqn = makers[var]
        if jax_compat.primitive_name(eqn) not in ("convert_element_type", "broadcast_in_dim"):
            break
        var = eqn.invars[0]
    return var


def _feeds_softmax(jaxpr: Jaxpr, var: Var) -> bool:
    """Return whether only the maximum and the exponentials of a value are read."""
    if any(v is var for v in jaxpr.outvars):
        return False
    has_exponential = False
    for eqn in jaxpr.eqns:
        if not any(v is var for v in eqn.invars):
            continue
        name = jax_compat.primitive_name(eqn)
        if name == "reduce_max":
            continue
        inside = nests(eqn)
        if inside:
            is_read = all(
                _feeds_softmax(nest.jaxpr, inner)
                for nest in inside
                for inner, number in zip(nest.jaxpr.invars, nest.operands, strict=True)
                if eqn.invars[number] is var
            )
        elif name == "convert_element_type":
            is_read = _feeds_softmax(jaxpr, eqn.outvars[0])
        else:
            is_read = name == "sub" and eqn.invars[0] is var and _is_exponent(jaxpr, eqn.outvars[0])
        if not is_read:
            return False
        has_exponential = True
    return has_exponential


def _is_exponent(jaxpr: Jaxpr, var: Var) -> bool:
    readers = [eqn for eqn in jaxpr.eqns if any(v is var for v in eqn.invars)]
    is_returned = any(v is var for v in jaxpr.outvars)
    names = {jax_compat.primitive_name(eqn) for eqn in readers}
    return not is_returned and names == {"exp"}


def with_biases(jaxpr: Jaxpr, found: Sequence[MaskedScores]) -> Jaxpr:
    """Return an open jaxpr that adds biases to scores where masks selected them.

    The softmax is the same where a row has any score that is not masked.

    Args:
      jaxpr: the jaxpr that they were found in.
      found: the scores.
    """
    return flattened(
        rewritten(jaxpr, {id(each.path[-1]): _adding(each) for each in found}), everywhere=True
    )


def _adding(found: MaskedScores) -> Callable[[Eqn], Eqn]:
    jax = jax_compat.import_jax()
    shape = [1] * len(found.shape)
    for size, axis in zip(found.mask_shape, found.dims, strict=True):
        shape[axis] = size

    def add(mask: Any, scores: Any) -> Any:
        cases = (found.fill, 0.0) if found.fills_where_true else (0.0, found.fill)
        bias = jax.numpy.where(mask.reshape(shape), *cases)
        return scores + bias.astype(scores.dtype)

    def replace(eqn: Eqn) -> Eqn:
        operands = [found.mask, found.scores]
        made = jax_compat.open_jaxpr(jax.make_jaxpr(add)(*(v.aval for v in operands)))
        eqns = [each.replace(source_info=eqn.source_info, ctx=eqn.ctx) for each in made.eqns]
        called = eqn.replace(invars=operands)
        return jax_compat.as_removed_checkpoint(
            called, jax_compat.as_jit_jaxpr(made.replace(eqns=eqns))
        )

    return replace
