"""Find stacks of a scan of which only reductions over the trips are read, and reduce trip by trip.

What is reduced may be computed element by element from stacks of one scan and from numbers.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.primitives import of_kind
from jaxresid.inspector.variants.rewrites.sites import makers_of
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

_MAPPED = of_kind("elementwise", "special", "cast")
# What reduces -> what adds one more trip, and what there is before the first.
_COMBINES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "reduce_sum": ("add", lambda dtype: 0),
    "reduce_max": ("maximum", lambda dtype: _end(dtype, "min")),
    "reduce_min": ("minimum", lambda dtype: _end(dtype, "max")),
    "reduce_prod": ("multiply", lambda dtype: 1),
    "reduce_and": ("logical_and", lambda dtype: True),
    "reduce_or": ("logical_or", lambda dtype: False),
}
# What reduces, as users call its result.
_WORDS = {
    "reduce_sum": "sum",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
    "reduce_prod": "product",
    "reduce_and": "conjunction",
    "reduce_or": "disjunction",
}


@dataclass(frozen=True, slots=True, eq=False)
class StackReduction:
    """A reduction over the trips of a loop, of what the loop stacks.

    Attributes:
      eqn: the eqn that reduces.
      mapped: the eqns between the stacks and that one, in order.
      stacks: the variables of the stacks that it reads -> the numbers of the scan's results.
    """

    eqn: Eqn
    mapped: tuple[Eqn, ...]
    stacks: Mapping[Var, int]

    @property
    def word(self) -> str:
        """What it is called."""
        return _WORDS[jax_compat.primitive_name(self.eqn)]

    @property
    def result(self) -> Var:
        """The variable of what it computes."""
        return self.eqn.outvars[0]

    def start(self) -> Any:
        """Return what it is before the first trip."""
        aval: Any = self.result.aval
        _, identity = _COMBINES[jax_compat.primitive_name(self.eqn)]
        return jax_compat.import_jax().numpy.full(aval.shape, identity(aval.dtype), aval.dtype)

    def step(self, state: Any, results: Sequence[Any]) -> Any:
        """Return what it is after one more trip, whose results the body returns."""
        env = {var: results[out] for var, out in self.stacks.items()}
        for eqn in self.mapped:
            operands = [v.val if jax_compat.is_literal(v) else env[v] for v in eqn.invars]
            env[eqn.outvars[0]] = _bound(eqn, operands, jax_compat.params(eqn))
        value, params = env[self.eqn.invars[0]], jax_compat.params(self.eqn)
        axes = tuple(axis - 1 for axis in params["axes"] if axis != 0)
        if axes:
            value = _bound(self.eqn, [value], {**params, "axes": axes})
        combine, _ = _COMBINES[jax_compat.primitive_name(self.eqn)]
        numpy = jax_compat.import_jax().numpy
        return getattr(numpy, combine)(state, value).astype(state.dtype)


def _bound(eqn: Eqn, operands: Sequence[Any], params: Mapping[str, Any]) -> Any:
    primitive: Any = eqn.primitive
    return primitive.bind(*operands, **params)


def _end(dtype: Any, which: str) -> Any:
    """Return the least (`min`) or the greatest (`max`) value of a dtype."""
    jax = jax_compat.import_jax()
    if jax.numpy.issubdtype(dtype, jax.numpy.floating):
        return -jax.numpy.inf if which == "min" else jax.numpy.inf
    if jax.numpy.issubdtype(dtype, jax.numpy.bool_):
        return which == "max"
    return getattr(jax.numpy.iinfo(dtype), which)


def stack_reductions(holder: Jaxpr, scan: Eqn, stacked: frozenset[int]) -> list[StackReduction]:
    """Return the reductions after which nothing needs the stacks of a scan that they read.

    Args:
      holder: the open jaxpr that holds the scan.
      scan: its eqn.
      stacked: the numbers of the results that are stacks.
    """
    stacks = {scan.outvars[i]: i for i in stacked if not jax_compat.is_dropped(scan.outvars[i])}
    makers = makers_of(holder)
    readers = defaultdict[Var, set[int]](set)
    for reader, operands in [(0, holder.outvars), *((id(e), e.invars) for e in holder.eqns)]:
        for v in operands:
            if not jax_compat.is_literal(v):
                readers[v].add(reader)
    reductions = [
        reduction
        for eqn in holder.eqns
        if jax_compat.primitive_name(eqn) in _COMBINES
        and 0 in jax_compat.params(eqn)["axes"]
        and (reduction := _reduction(holder, eqn, stacks, makers)) is not None
    ]
    while True:
        ids = {id(eqn) for r in reductions for eqn in (r.eqn, *r.mapped)}
        left = [
            r
            for r in reductions
            if all(readers[v] <= ids for v in (*r.stacks, *(eqn.outvars[0] for eqn in r.mapped)))
        ]
        if len(left) == len(reductions):
            return left
        reductions = left


def _reduction(
    holder: Jaxpr, eqn: Eqn, stacks: Mapping[Var, int], makers: Mapping[Var, Eqn]
) -> StackReduction | None:
    """Return what an eqn reduces, if that is made of stacks alone; None for something else."""
    operands: dict[Var, int] = {}
    mapped: dict[int, Eqn] = {}
    todo = deque(eqn.invars)
    while todo:
        var = todo.popleft()
        if jax_compat.is_literal(var):
            continue
        if var in stacks:
            operands[var] = stacks[var]
            continue
        maker = makers.get(var)
        if maker is None or jax_compat.primitive_name(maker) not in _MAPPED:
            return None
        if id(maker) not in mapped:
            mapped[id(maker)] = maker
            todo += maker.invars
    if not operands or not all(len(maker.outvars) == 1 for maker in mapped.values()):
        return None
    return StackReduction(eqn, tuple(e for e in holder.eqns if id(e) in mapped), operands)
