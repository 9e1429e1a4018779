"""Tell which variables of a jaxpr hold the same value, and which are cheaper made than kept."""

from __future__ import annotations

import math
from collections.abc import Hashable

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.primitives import CASTS, FILLS, MARKS, VIEWS
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

# Results that equal their operand, bit for bit. One that devices share otherwise is another array.
_SAME = MARKS | {"copy", "reduce_precision"}
# Operations that a compiler folds into the consumer of their result. Of the elementwise ones they
# are those that masks and fills are made of.
_CHEAP = (
    VIEWS
    | CASTS
    | MARKS
    | FILLS
    | {
        "copy",
        *("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor", "select_n"),
        *("add", "sub", "mul", "neg", "max", "min"),
    }
)
# What may stack a literal.
_LOOPS = frozenset({"scan", "while"})
# How far back a value is followed; causal masks are some ten operations deep.
_DEPTH = 32


class Numbering:
    """Value numbers: equal for variables that the same operations make of the same values.

    Common subexpressions are found within a jaxpr and through the calls in it. An eqn with effects
    is equal to nothing.
    """

    def __init__(self, levels: Levels) -> None:
        self._levels = levels
        self._numbers: dict[Hashable, int] = {}
        self._jaxprs: dict[int, dict[Var, int]] = {}

    def of(self, jaxpr: Jaxpr) -> dict[Var, int]:
        """Return the number of every variable of a jaxpr, comparable within this jaxpr only."""
        found = self._jaxprs.get(id(jaxpr))
        if found is None:
            found = self._jaxprs[id(jaxpr)] = self._number(jaxpr)
        return found

    def _intern(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _number(self, jaxpr: Jaxpr) -> dict[Var, int]:
        numbers: dict[Var, int] = {}
        for i, var in enumerate([*jaxpr.constvars, *jaxpr.invars]):
            numbers[var] = self._intern(("input", id(jaxpr), i))

        def operand(var: Var) -> Hashable:
            if jax_compat.is_literal(var):
                return ("literal", var.aval, str(var.val))
            return numbers[var]

        for eqn in jaxpr.eqns:
            operands = tuple(operand(v) for v in eqn.invars)
            name = jax_compat.primitive_name(eqn)
            if name in _SAME and _same_aval(eqn):
                numbers[eqn.outvars[0]] = (
                    operands[0] if isinstance(operands[0], int) else self._intern(operands)
                )
                continue
            # The params may be as many as the results: they are hashed once.
            made = self._intern((self._operation_key(eqn, name), operands))
            nest = next(iter(self._levels.nests(eqn)), None)
            inner = self.of(nest.jaxpr) if nest is not None and nest.kind != "branch" else None
            for i, var in enumerate(eqn.outvars):
                result: Hashable = i
                if inner is not None and nest is not None:
                    out = nest.jaxpr.outvars[i]
                    if not jax_compat.is_literal(out):
                        result = ("inner", inner[out])
                numbers[var] = self._intern((made, result, var.aval))
        return numbers

    def _operation_key(self, eqn: Eqn, name: str) -> Hashable:
        if eqn.effects:
            return ("unlike", id(eqn))
        key = (name, *((k, v) for k, v in eqn.params.items()))
        try:
            hash(key)
        except TypeError:
            return ("unlike", id(eqn))
        return key


class FreeValues:
    """The values that are made of literals, iota and single elements alone.

    They are made by elementwise and shape operations: masks, fills, broadcast scalars. Values of
    one element do not count.
    """

    def __init__(self, levels: Levels) -> None:
        self._levels = levels
        self._known: dict[tuple[int, Var], bool] = {}

    def holds(self, level: Level, var: Var, primitive: str) -> bool:
        """Return whether a variable is such a value.

        Args:
          level: its level.
          var: the variable.
          primitive: what makes it, behind all that only views, casts, moves or names it.
        """
        if primitive not in _CHEAP and primitive not in _LOOPS:
            return False
        return not _is_single(var) and self._is_free(level, var, _DEPTH)

    def _is_free(self, level: Level, var: Var, depth: int) -> bool:
        if jax_compat.is_literal(var):
            return True
        if depth == 0:
            return False
        key = (id(level), var)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._decide(level, var, depth)
        return known

    def _decide(self, level: Level, var: Var, depth: int) -> bool:
        levels = self._levels
        made = levels.producer(level, var)
        if made is None:
            i, nest = levels.invar(level, var), level.nest
            if i is not None and nest is not None and level.parent and nest.kind == "call":
                outside = level.eqn.invars[nest.operands[i]]
                return self._is_free(level.parent, outside, depth - 1)
            return _is_single(var)
        eqn, i = made
        if levels.nests(eqn):
            nest = levels.nests(eqn)[0]
            if nest.kind == "branch":
                return False
            out = nest.jaxpr.outvars[i]
            if i in nest.stacked and _is_single(out) and not jax_compat.is_literal(out):
                return False  # another number each trip
            return self._is_free(levels.enter(level, eqn, 0), out, depth - 1)
        if _is_single(var):
            return True
        return jax_compat.primitive_name(eqn) in _CHEAP and all(
            self._is_free(level, v, depth - 1) for v in eqn.invars
        )


def _is_single(var: Var) -> bool:
    return math.prod(getattr(var.aval, "shape", ())) == 1


def _same_aval(eqn: Eqn) -> bool:
    a, b = eqn.invars[0].aval, eqn.outvars[0].aval
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    if jax_compat.primitive_name(eqn) != "reduce_precision":
        return True
    # The identity where it keeps every bit that the type has, as legacy remat inserts it.
    finfo = jax_compat.import_jax().numpy.finfo(a.dtype)
    params = jax_compat.params(eqn)
    return bool(params["exponent_bits"] >= finfo.nexp and params["mantissa_bits"] >= finfo.nmant)
