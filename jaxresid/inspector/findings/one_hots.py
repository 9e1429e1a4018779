"""Find one-hots at the peak that a table is multiplied by, and take rows of the table instead."""

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
from jaxresid.inspector.findings.search import FindingContext, FindingSearch, is_on_one_device
from jaxresid.inspector.jaxpr.inline import flattened
from jaxresid.inspector.jaxpr.nesting import eqns_in, nests
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

NAME = "one-hot-matmul"


def one_hots_at_peak(context: FindingContext) -> Iterator[Proposal]:
    """Yield the findings of one-hots at the peak, one for each line that multiplies them."""
    # One-hots are made of comparisons for equality.
    compared = {
        shape
        for jaxpr in context.jaxprs
        for eqn in eqns_in(jaxpr)
        if jax_compat.primitive_name(eqn) == "eq" and (shape := aval_of(eqn.outvars[0]).shape)
    }
    nbytes = nbytes_by_shape(
        context.subject.live,
        lambda primitive, shape: primitive is not None and shape in compared,
    )
    yield from proposals_by_line(
        context,
        nbytes,
        one_hot_matmuls,
        with_rows_taken,
        _finding,
        "rows of the table in place of one-hots",
    )


def _finding(
    matmul: OneHotMatmul,
    source: Source,
    nbytes: int,
    effect: str,
    measured: Mapping[str, object],
) -> Finding:
    return Finding(
        NAME,
        f"the one-hot of {matmul.count} indices × {matmul.rows} that a table is multiplied by here"
        f" takes {format_bytes(nbytes)} at the peak. With rows of the table taken in its place, the"
        f" {effect}",
        source,
        help="table[ids] in place of jax.nn.one_hot(ids, n) @ table: it is the same where all ids"
        " are rows of the table",
        measured={"nbytes": nbytes, "indices": matmul.count, "rows": matmul.rows, **measured},
    )


@dataclass(frozen=True, slots=True, eq=False)
class OneHotMatmul:
    """A matmul of a one-hot with a table.

    Attributes:
      path: the eqns that hold one another, from that of the searched jaxpr down to the matmul.
      operand: the number of the operand that is the one-hot.
      ids: the variable of the indices.
    """

    path: tuple[Eqn, ...]
    operand: int
    ids: Var

    @property
    def matmul(self) -> Eqn:
        """The eqn of the matmul."""
        return self.path[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the one-hot."""
        return aval_of(self.matmul.invars[self.operand]).shape

    @property
    def rows(self) -> int:
        """How many rows the table has."""
        contracted, _ = jax_compat.params(self.matmul)["dimension_numbers"]
        return int(self.shape[contracted[self.operand][0]])

    @property
    def count(self) -> int:
        """How many indices there are."""
        return math.prod(self.shape) // self.rows


def one_hot_matmuls(jaxpr: Jaxpr) -> Iterator[OneHotMatmul]:
    """Yield the matmuls of one-hots with tables in an open jaxpr, at any depth."""
    for held in held_eqns(jaxpr):
        if jax_compat.primitive_name(held.eqn) == "dot_general":
            matmul = _one_hot_matmul(held)
            if matmul is not None:
                yield matmul


def _one_hot_matmul(held: HeldEqn) -> OneHotMatmul | None:
    contracted, (batch, _) = jax_compat.params(held.eqn)["dimension_numbers"]
    if batch or len(contracted[0]) != 1:
        return None
    for number, var in enumerate(held.eqn.invars):
        ids = _ids(var, contracted[number][0], held.makers)
        if ids is not None:
            return OneHotMatmul(held.path, number, ids)
    return None


def _ids(var: Var, axis: int, makers: Makers) -> Var | None:
    """Return the indices of a one-hot along an axis; None for another value."""
    eqn = maker_of(var, makers)
    if eqn is None:
        return None
    name = jax_compat.primitive_name(eqn)
    if name == "convert_element_type":
        return _ids(eqn.invars[0], axis, makers)
    if name == "jit":
        (nest,) = nests(eqn)
        result = nest.jaxpr.outvars[eqn.outvars.index(var)]
        ids = _ids(result, axis, makers_of(nest.jaxpr))
        if ids is None or ids not in nest.jaxpr.invars:
            return None
        return eqn.invars[nest.operands[nest.jaxpr.invars.index(ids)]]
    if name != "eq":
        return None
    for a, b in (eqn.invars, eqn.invars[::-1]):
        if _counts_along(b, axis, makers):
            return _spread(a, axis, makers)
    return None


def _counts_along(var: Var, axis: int, makers: Makers) -> bool:
    """Return whether a value counts from 0 along an axis, and is the same along all others."""
    eqn = maker_of(var, makers)
    if eqn is None:
        return False
    name, params = jax_compat.primitive_name(eqn), jax_compat.params(eqn)
    if name == "iota":
        return bool(params["dimension"] == axis)
    if name != "broadcast_in_dim" or axis not in params["broadcast_dimensions"]:
        return False
    inner = tuple(params["broadcast_dimensions"]).index(axis)
    operand = eqn.invars[0]
    is_whole = aval_of(operand).shape[inner] == aval_of(var).shape[axis]
    return is_whole and _counts_along(operand, inner, makers)


def _spread(var: Var, axis: int, makers: Makers) -> Var | None:
    """Return what a value repeats along an axis, with all other axes in order."""
    eqn = maker_of(var, makers)
    if eqn is None or jax_compat.primitive_name(eqn) != "broadcast_in_dim":
        return None
    shape = aval_of(var).shape
    others = tuple(i for i in range(len(shape)) if i != axis)
    (operand, *_), params = eqn.invars, jax_compat.params(eqn)
    if jax_compat.is_literal(operand) or tuple(params["broadcast_dimensions"]) != others:
        return None
    is_whole = aval_of(operand).shape == tuple(shape[i] for i in others)
    return operand if is_whole else None


def with_rows_taken(jaxpr: Jaxpr, matmuls: Sequence[OneHotMatmul]) -> Jaxpr:
    """Return the jaxpr that takes rows of tables where it multiplied one-hots by them.

    It computes the same for indices that are rows of the table; the one-hot of others is zero.
    """
    calls = {id(matmul.matmul): functools.partial(_taking, matmul) for matmul in matmuls}
    return flattened(rewritten(jaxpr, calls), everywhere=True)


def _taking(one_hot: OneHotMatmul, eqn: Eqn) -> Eqn:
    numpy = jax_compat.import_jax().numpy
    contracted, _ = jax_compat.params(one_hot.matmul)["dimension_numbers"]
    number = 1 - one_hot.operand
    axis, table = contracted[number][0], one_hot.matmul.invars[number]
    result: Any = one_hot.matmul.outvars[0].aval
    rank = len(one_hot.shape) - 1

    def take(ids: Any, table: Any) -> Any:
        rows = numpy.take(table, ids, axis=axis, mode="clip")
        ids_first = number == 1
        at = range(rank) if ids_first else range(result.ndim - rank, result.ndim)
        return numpy.moveaxis(rows, range(axis, axis + rank), at).astype(result.dtype)

    return call_of(eqn, take, [one_hot.ids, table])


SEARCH = FindingSearch([NAME], "proposal", 50, one_hots_at_peak, is_on_one_device)
