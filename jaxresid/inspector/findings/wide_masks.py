"""Find masks that loops hold as large as the scores that they select, and add biases instead.

The mask is broadcast to the scores where it selects, which in a loop JAX does once, before it: with
the fill it is then in memory as large as the scores. A bias is added in the shape of the mask.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.findings.peak_values import nbytes_by_shape, proposals_by_line
from jaxresid.inspector.findings.proposals import Proposal
from jaxresid.inspector.findings.search import FindingContext, FindingSearch, holds_loop
from jaxresid.inspector.jaxpr.inline import flattened
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.inspector.jaxpr.rewrite import rewritten
from jaxresid.inspector.program.avals import aval_of
from jaxresid.inspector.variants.rewrites.sites import (
    HeldEqn,
    Makers,
    call_of,
    held_eqns,
    maker_of,
    makers_of,
)
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var
from jaxresid.results import Finding, Source

NAME = "mask-broadcast-before-loop"
# Weights of what is filled with this or less are zero after a softmax.
_LEAST_FILL = -1e4


def wide_masks(context: FindingContext) -> Iterator[Proposal]:
    """Yield the findings of masks at the peak as large as the scores, one for each line.

    The compiler of TPUs makes them in the loop after all, and there are none.
    """
    if context.subject.profile.name != "gpu":
        return
    nbytes = nbytes_by_shape(
        context.subject.live, lambda primitive, _: primitive == "broadcast_in_dim"
    )
    change = "a bias added in place of a mask that selects"
    yield from proposals_by_line(context, nbytes, masked_scores, with_biases, _finding, change)


def _finding(
    masked: MaskedScores,
    source: Source,
    nbytes: int,
    effect: str,
    measured: Mapping[str, object],
) -> Finding:
    return Finding(
        NAME,
        f"the mask of {list(masked.mask_shape)} here is broadcast to the scores,"
        f" {list(masked.shape)}, which JAX does before the loop: with the fill it takes"
        f" {format_bytes(nbytes)} at the peak. With a bias added in its place, the {effect}",
        source,
        help="scores + jnp.where(mask, 0, -1e30) in place of jnp.where(mask, scores, -1e30), with"
        " the mask in its own shape: the softmax is the same but for rows that are masked whole;"
        " attention of a library may take it as bias=",
        measured={
            "nbytes": nbytes,
            "mask_shape": list(masked.mask_shape),
            "scores_shape": list(masked.shape),
            **measured,
        },
    )


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
    for held in held_eqns(jaxpr):
        select = _selected(held.eqn, held.makers)
        if select is None or not _is_for_softmax(select, held):
            continue
        fill: Any = _unfilled(select.fill, held.makers)
        value = float(fill.val)
        yield MaskedScores(
            held.path, select.mask, select.dims, select.scores, value, select.fills_where_true
        )


def _is_for_softmax(select: _Select, held: HeldEqn) -> bool:
    fill: Any = _unfilled(select.fill, held.makers)
    is_smaller = math.prod(aval_of(select.mask).shape) < math.prod(aval_of(select.scores).shape)
    if not is_smaller or not jax_compat.is_literal(fill) or float(fill.val) > _LEAST_FILL:
        return False
    return _feeds_softmax(held.holder, held.eqn.outvars[0])


def _selected(eqn: Eqn, makers: Makers) -> _Select | None:
    """Return what an eqn selects, one of its own or that of a call like `jnp.where`."""
    name = jax_compat.primitive_name(eqn)
    if name == "jit" and len(eqn.outvars) == 1:
        (nest,) = nests(eqn)
        inner = makers_of(nest.jaxpr)
        maker = maker_of(nest.jaxpr.outvars[0], inner)
        select = None if maker is None else _selected(maker, inner)
        if select is None:
            return None
        filled = _unfilled(select.fill, inner)
        outer = dict(zip(nest.jaxpr.invars, (eqn.invars[i] for i in nest.operands), strict=True))
        if select.mask not in outer or select.scores not in outer:
            return None
        fill = filled if jax_compat.is_literal(filled) else outer.get(filled)
        if fill is None:
            return None
        mask, dims = _narrow(outer[select.mask], select.dims, makers)
        if jax_compat.is_literal(mask) or jax_compat.is_literal(outer[select.scores]):
            return None
        return _Select(mask, dims, outer[select.scores], fill, select.fills_where_true)
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


def _narrow(var: Var, dims: tuple[int, ...], makers: Makers) -> tuple[Var, tuple[int, ...]]:
    """Return what a value with some axes of the scores is broadcast from, and which that has."""
    while (eqn := maker_of(var, makers)) is not None:
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


def _unfilled(var: Var, makers: Makers) -> Var:
    """Return what a value is a cast or a broadcast of."""
    while (eqn := maker_of(var, makers)) is not None:
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


def with_biases(jaxpr: Jaxpr, masked: Sequence[MaskedScores]) -> Jaxpr:
    """Return the jaxpr that adds biases to scores where masks selected them.

    The softmax is the same where a row has any score that is not masked.
    """
    calls = {id(scores.path[-1]): functools.partial(_adding, scores) for scores in masked}
    return flattened(rewritten(jaxpr, calls), everywhere=True)


def _adding(masked: MaskedScores, eqn: Eqn) -> Eqn:
    numpy = jax_compat.import_jax().numpy
    shape = [1] * len(masked.shape)
    for size, axis in zip(masked.mask_shape, masked.dims, strict=True):
        shape[axis] = size

    def add(mask: Any, scores: Any) -> Any:
        cases = (masked.fill, 0.0) if masked.fills_where_true else (0.0, masked.fill)
        return scores + numpy.where(mask.reshape(shape), *cases).astype(scores.dtype)

    return call_of(eqn, add, [masked.mask, masked.scores])


SEARCH = FindingSearch([NAME], "proposal", 60, wide_masks, holds_loop)
