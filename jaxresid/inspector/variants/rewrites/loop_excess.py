"""Find what scans stack or carry although they need not, and rewrite them without it.

What counts is how values flow: through calls, checkpoints and marks a result of the body may be its
slice of an input, or the carry that it was given. JAX sees that where the body itself returns it,
but not where a checkpoint in the body does.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.inline import flattened
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.inspector.jaxpr.primitives import CALLS, SHARDINGS, SIDE_BY_SIDE
from jaxresid.inspector.jaxpr.rewrite import rewritten
from jaxresid.inspector.program.avals import aval_of
from jaxresid.inspector.variants.rewrites.sites import HeldEqn, call_of, held_eqns, makers_of
from jaxresid.inspector.variants.rewrites.stack_reductions import (
    StackReduction,
    stack_reductions,
)
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

# What hands its first operand on. `stop_gradient` does so with another derivative.
_HANDS_ON = SHARDINGS | {"name"}
# What the index of a slice is computed with: until 0.7 that of `ys[-1]` is.
_FOLDED: dict[str, Callable[..., Any]] = {
    "lt": operator.lt,
    "add": operator.add,
    "select_n": lambda which, *cases: cases[int(which)],
}


@dataclass(frozen=True, slots=True, eq=False)
class Excess:
    """What one scan stacks or carries in vain.

    Attributes:
      holder: the open jaxpr that holds the scan.
      path: the eqns that hold one another, from that of the searched jaxpr down to the scan.
      copies: the results that stack an operand's own slices: their numbers -> the operand's.
      repeats: the results that stack the same value in each trip, in the same way.
      lasts: the results of which only the last is read: their numbers -> the readers' ids.
      carried: for those that are a carry as well, the number of that carry's result.
      fixed: the carries that never change: the operand's number -> the result's.
      reductions: what is read of results of which only reductions over the trips are.
    """

    holder: Jaxpr
    path: tuple[Eqn, ...]
    copies: Mapping[int, int]
    repeats: Mapping[int, int]
    lasts: Mapping[int, frozenset[int]]
    carried: Mapping[int, int]
    fixed: Mapping[int, int]
    reductions: tuple[StackReduction, ...] = ()

    @property
    def scan(self) -> Eqn:
        """The eqn of the scan."""
        return self.path[-1]

    @property
    def reduced(self) -> tuple[int, ...]:
        """The results of which only reductions over the trips are read."""
        return tuple(sorted({i for r in self.reductions for i in r.stacks.values()}))

    @property
    def trips(self) -> int:
        """How many trips the loop has."""
        return int(jax_compat.params(self.scan)["length"])

    def stacked_nbytes(self, results: Iterable[int]) -> int:
        """Return the bytes of results."""
        return sum(aval_of(self.scan.outvars[i]).nbytes for i in results)

    @property
    def fixed_nbytes(self) -> int:
        """The bytes of the carries that never change, once for each trip."""
        return self.trips * sum(aval_of(self.scan.invars[i]).nbytes for i in self.fixed)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of what may be in memory in vain: carries that never change are stacked."""
        stacks = [aval_of(self.scan.outvars[i]).shape for i in self._in_vain]
        carries = [(self.trips, *aval_of(self.scan.invars[i]).shape) for i in self.fixed]
        return (*stacks, *carries)

    @property
    def nbytes(self) -> int:
        """The bytes that may be in memory in vain, at most."""
        return self.stacked_nbytes(self._in_vain) + self.fixed_nbytes

    @property
    def _in_vain(self) -> tuple[int, ...]:
        return (*self.copies, *self.repeats, *self.lasts, *self.reduced)


def excesses_in(jaxpr: Jaxpr) -> Iterator[Excess]:
    """Yield what the scans of an open jaxpr, at any depth, stack or carry in vain."""
    for held in held_eqns(jaxpr):
        if jax_compat.primitive_name(held.eqn) == "scan" and not held.eqn.effects:
            excess = _excess(held)
            if excess is not None:
                yield excess


def _excess(held: HeldEqn) -> Excess | None:
    holder, eqn = held.holder, held.eqn
    (nest,) = nests(eqn)
    if (nest.length or 1) < 2:
        return None
    roots = [_root(nest.jaxpr, v) for v in nest.jaxpr.outvars]
    fixed = {i: out for i, out in nest.carries.items() if roots[out] == i}
    same = set(range(len(nest.jaxpr.invars))) - nest.slices - (set(nest.carries) - set(fixed))
    stacked = {out: root for out in nest.stacked if isinstance(root := roots[out], int)}
    copies = {out: root for out, root in stacked.items() if root in nest.slices}
    repeats = {out: root for out, root in stacked.items() if root in same}
    lasts = {
        out: readers
        for out in sorted(nest.stacked - set(copies) - set(repeats))
        if roots[out] is not None and (readers := _last_readers(holder, eqn, out))
    }
    ends = {roots[out]: out for out in nest.carries.values() if roots[out] is not None}
    carried = {out: ends[roots[out]] for out in lasts if roots[out] in ends}
    others = nest.stacked - set(copies) - set(repeats) - set(lasts)
    reductions = tuple(stack_reductions(holder, eqn, frozenset(others)))
    if not (fixed or copies or repeats or lasts or reductions):
        return None
    return Excess(holder, held.path, copies, repeats, lasts, carried, fixed, reductions)


def _root(jaxpr: Jaxpr, var: Var) -> Hashable:
    """Return which value of a jaxpr a variable is.

    That is the number of an invar, or what equals that of the same value alone; None for a
    constant.
    """
    makers, inputs = makers_of(jaxpr), {v: i for i, v in enumerate(jaxpr.invars)}
    while not jax_compat.is_literal(var) and var not in inputs:
        if var not in makers:
            return None
        eqn = makers[var]
        i = list(eqn.outvars).index(var)
        name = jax_compat.primitive_name(eqn)
        if name in _HANDS_ON or name in SIDE_BY_SIDE - {"device_put"}:
            var = eqn.invars[i]
        elif name in CALLS or name == "remat":
            (nest,) = nests(eqn)
            inner = _root(nest.jaxpr, nest.jaxpr.outvars[i])
            if not isinstance(inner, int):
                return None if inner is None else (id(eqn), inner)
            var = eqn.invars[nest.operands[inner]]
        else:
            return id(eqn), (i,)
    return None if jax_compat.is_literal(var) else inputs[var]


def _last_readers(holder: Jaxpr, scan: Eqn, out: int) -> frozenset[int]:
    """Return the ids of the eqns that read the last of a stack, if nothing reads more of it."""
    stack, params = scan.outvars[out], jax_compat.params(scan)
    last = 0 if params["reverse"] else params["length"] - 1
    if any(v is stack for v in holder.outvars):
        return frozenset()
    readers = [eqn for eqn in holder.eqns if any(v is stack for v in eqn.invars)]
    if not all(_slice_start(holder, eqn) == last for eqn in readers):
        return frozenset()
    return frozenset(map(id, readers))


def _slice_start(holder: Jaxpr, eqn: Eqn) -> int | None:
    """Return where an eqn takes one slice of the first axis; None where it does something else."""
    name, params = jax_compat.primitive_name(eqn), jax_compat.params(eqn)
    if name == "slice":
        start = int(params["start_indices"][0])
        return start if params["limit_indices"][0] == start + 1 else None
    if name == "dynamic_slice" and params["slice_sizes"][0] == 1:
        return _known_number(holder, eqn.invars[1])
    return None


def _known_number(holder: Jaxpr, var: Var) -> int | None:
    if jax_compat.is_literal(var):
        return int(var.val)
    eqn = next((eqn for eqn in holder.eqns if var in eqn.outvars), None)
    folded = None if eqn is None else _FOLDED.get(jax_compat.primitive_name(eqn))
    if eqn is None or folded is None:
        return None
    operands = [_known_number(holder, v) for v in eqn.invars]
    return None if None in operands else int(folded(*operands))


def without_excess(jaxpr: Jaxpr, excesses: Sequence[Excess]) -> Jaxpr:
    """Return the jaxpr whose scans do not stack or carry what was found in it.

    Raises:
      Exception: whatever JAX raises where that cannot be traced.
    """
    holders: dict[int, list[Excess]] = {}
    for excess in excesses:
        holders.setdefault(id(excess.holder), []).append(excess)
    regroup = {key: functools.partial(_regrouped, group) for key, group in holders.items()}
    return flattened(rewritten(jaxpr, {}, regroup), everywhere=True)


def _regrouped(excesses: Sequence[Excess], eqns: Sequence[Eqn]) -> list[Eqn]:
    """Return the eqns of a jaxpr, inside which all is rewritten, with its scans replaced."""
    changed: list[Eqn | None] = list(eqns)
    for excess in excesses:
        before = excess.holder.eqns
        at = before.index(excess.scan)
        ends = {out: jax_compat.new_var_like(_inner(excess.scan, out)) for out in excess.lasts}
        scan = changed[at]
        assert scan is not None
        gone = {id(eqn) for r in excess.reductions for eqn in (r.eqn, *r.mapped)}
        for i, eqn in enumerate(before):
            if id(eqn) in gone:
                changed[i] = None
        changed[at] = _lean(scan, excess, ends)
        for out, readers in excess.lasts.items():
            for i, eqn in enumerate(before):
                if id(eqn) in readers:
                    changed[i] = _read_of_last(eqn, ends[out])
    return [eqn for eqn in changed if eqn is not None]


def _inner(scan: Eqn, out: int) -> Var:
    return jax_compat.open_jaxpr(jax_compat.params(scan)["jaxpr"]).outvars[out]


def _lean(eqn: Eqn, excess: Excess, ends: Mapping[int, Var]) -> Eqn:
    """Return the call that stands for a scan; see `nesting.nested_eqn`.

    Args:
      eqn: the scan.
      excess: what it stacks and carries in vain.
      ends: what is to hold the last of those results of which no more is read.
    """
    gone = {*ends, *excess.reduced}
    outvars = [v for i, v in enumerate(eqn.outvars) if i not in gone]
    reduced = [reduction.result for reduction in excess.reductions]
    called = eqn.replace(outvars=[*outvars, *ends.values(), *reduced])
    return call_of(called, _lean_scan(jax_compat.params(eqn), excess), eqn.invars)


def _lean_scan(params: Mapping[str, Any], excess: Excess) -> Callable[..., list[Any]]:
    """Return a scan as a function of its operands.

    It returns all results but `lasts` and `reduced`, then the former, and then the reductions.
    """
    jax = jax_compat.import_jax()
    first, count = jax_compat.scan_counts(params)
    evaluate = jax_compat.as_function(params["jaxpr"])
    results = range(len(excess.scan.outvars))
    changing = [i for i in range(count) if first + i not in excess.fixed]
    lasts = [i for i in excess.lasts if i not in excess.carried]
    gone = {*excess.copies, *excess.repeats, *excess.lasts, *excess.reduced}
    stacked = [i for i in results[count:] if i not in gone]

    def run(*operands: Any) -> list[Any]:
        def body(state: Any, slices: Sequence[Any]) -> Any:
            carry = dict(zip(changing, state[0], strict=True))
            carries = [carry.get(i, operands[first + i]) for i in range(count)]
            outputs = evaluate(*operands[:first], *carries, *slices)
            sums = [
                reduction.step(so_far, outputs)
                for reduction, so_far in zip(excess.reductions, state[2], strict=True)
            ]
            new = [outputs[i] for i in changing], [outputs[i] for i in lasts], sums
            return new, [outputs[i] for i in stacked]

        ends = [_inner(excess.scan, i).aval for i in lasts]
        zeros = [jax.numpy.zeros(aval.shape, aval.dtype) for aval in ends]
        starts = [reduction.start() for reduction in excess.reductions]
        (carry, last, sums), stacks = jax.lax.scan(
            body,
            ([operands[first + i] for i in changing], zeros, starts),
            list(operands[first + count :]),
            **{key: params[key] for key in ("length", "reverse", "unroll")},
        )
        values = dict(zip([*changing, *lasts, *stacked], [*carry, *last, *stacks], strict=True))
        values |= {out: operands[i] for i, out in excess.fixed.items()}
        values |= {out: operands[i] for out, i in excess.copies.items()}
        for out, i in excess.repeats.items():
            shape = (params["length"], *operands[i].shape)
            values[out] = jax.numpy.broadcast_to(operands[i], shape)
        values |= {out: values[of] for out, of in excess.carried.items()}
        others = [i for i in results if i not in excess.lasts and i not in excess.reduced]
        return [*(values[i] for i in (*others, *excess.lasts)), *sums]

    return run


def _read_of_last(eqn: Eqn, last: Var) -> Eqn:
    """Return the call that stands for an eqn which takes the last slice of a stack."""
    jax, params = jax_compat.import_jax(), dict(jax_compat.params(eqn))
    primitive: Any = eqn.primitive
    if "start_indices" in params:
        params["start_indices"] = (0, *params["start_indices"][1:])
        params["limit_indices"] = (1, *params["limit_indices"][1:])

    def read(last: Any, *indices: Any) -> Any:
        at = [jax.numpy.zeros_like(indices[0]), *indices[1:]] if indices else []
        return primitive.bind(last[None], *at, **params)

    return call_of(eqn, read, [last, *eqn.invars[1:]])
