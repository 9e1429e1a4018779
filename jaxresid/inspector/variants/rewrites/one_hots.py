"""Find one-hots that are multiplied by a table, and take the rows of the table instead."""

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
_Makers = Mapping[Var, Eqn]


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

    @property
    def nbytes(self) -> int:
        """The bytes of the one-hot."""
        return aval_of(self.matmul.invars[self.operand]).nbytes


def one_hot_matmuls(jaxpr: Jaxpr) -> Iterator[OneHotMatmul]:
    """Yield the matmuls of one-hots with tables in an open jaxpr, at any depth."""
    yield from _below(jaxpr, (), set())


def _below(jaxpr: Jaxpr, path: tuple[Eqn, ...], seen: set[int]) -> Iterator[OneHotMatmul]:
    if id(jaxpr) in seen:
        return
    seen.add(id(jaxpr))
    makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    for eqn in jaxpr.eqns:
        name = jax_compat.primitive_name(eqn)
        if name == "dot_general":
            found = _matmul(eqn, (*path, eqn), makers)
            if found is not None:
                yield found
        elif name in _ENTERED:
            for nest in nests(eqn):
                yield from _below(nest.jaxpr, (*path, eqn), seen)


def _matmul(eqn: Eqn, path: tuple[Eqn, ...], makers: _Makers) -> OneHotMatmul | None:
    contracted, (batch, _) = jax_compat.params(eqn)["dimension_numbers"]
    if batch or len(contracted[0]) != 1:
        return None
    for number, var in enumerate(eqn.invars):
        ids = _ids(var, contracted[number][0], makers)
        if ids is not None:
            return OneHotMatmul(path, number, ids)
    return None


def _ids(var: Var, axis: int, makers: _Makers) -> Var | None:
    """Return the indices of a one-hot along an axis; None for another value."""
    eqn = None if jax_compat.is_literal(var) else makers.get(var)
    if eqn is None:
        return None
    name = jax_compat.primitive_name(eqn)
    if name == "convert_element_type":
        return _ids(eqn.invars[0], axis, makers)
    if name == "jit":
        (nest,) = nests(eqn)
        inner = {v: each for each in nest.jaxpr.eqns for v in each.outvars}
        found = _ids(nest.jaxpr.outvars[eqn.outvars.index(var)], axis, inner)
        if found is None or found not in nest.jaxpr.invars:
            return None
        return eqn.invars[nest.operands[nest.jaxpr.invars.index(found)]]
    if name != "eq":
        return None
    for a, b in (eqn.invars, eqn.invars[::-1]):
        if _counts_along(b, axis, makers):
            return _spread(a, axis, makers)
    return None


def _counts_along(var: Var, axis: int, makers: _Makers) -> bool:
    """Return whether a value counts from 0 along an axis, and is the same along all others."""
    eqn = None if jax_compat.is_literal(var) else makers.get(var)
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


def _spread(var: Var, axis: int, makers: _Makers) -> Var | None:
    """Return what a value repeats along an axis, with all other axes in order."""
    eqn = None if jax_compat.is_literal(var) else makers.get(var)
    if eqn is None or jax_compat.primitive_name(eqn) != "broadcast_in_dim":
        return None
    shape = aval_of(var).shape
    others = tuple(i for i in range(len(shape)) if i != axis)
    (operand, *_), params = eqn.invars, jax_compat.params(eqn)
    if jax_compat.is_literal(operand) or tuple(params["broadcast_dimensions"]) != others:
        return None
    is_whole = aval_of(operand).shape == tuple(shape[i] for i in others)
    return operand if is_whole else None


def with_rows_taken(jaxpr: Jaxpr, found: Sequence[OneHotMatmul]) -> Jaxpr:
    """Return an open jaxpr that takes rows of tables where it multiplied one-hots by them.

    It computes the same for indices that are rows of the table; the one-hot of others is zero.

    Args:
      jaxpr: the jaxpr that they were found in.
      found: the matmuls.
    """
    return flattened(
        rewritten(jaxpr, {id(each.matmul): _taking(each) for each in found}), everywhere=True
    )


def _taking(found: OneHotMatmul) -> Callable[[Eqn], Eqn]:
    jax = jax_compat.import_jax()
    contracted, _ = jax_compat.params(found.matmul)["dimension_numbers"]
    number = 1 - found.operand
    axis, table = contracted[number][0], found.matmul.invars[number]
    result: Any = found.matmul.outvars[0].aval
    rank = len(found.shape) - 1

    def take(ids: Any, table: Any) -> Any:
        rows = jax.numpy.take(table, ids, axis=axis, mode="clip")
        ids_first = number == 1
        at = range(rank) if ids_first else range(result.ndim - rank, result.ndim)
        return jax.numpy.moveaxis(rows, range(axis, axis + rank), at).astype(result.dtype)

    def replace(eqn: Eqn) -> Eqn:
        operands = [found.ids, table]
        made = jax_compat.open_jaxpr(jax.make_jaxpr(take)(*(v.aval for v in operands)))
        eqns = [each.replace(source_info=eqn.source_info, ctx=eqn.ctx) for each in made.eqns]
        called = eqn.replace(invars=operands)
        return jax_compat.as_removed_checkpoint(
            called, jax_compat.as_jit_jaxpr(made.replace(eqns=eqns))
        )

    return replace
