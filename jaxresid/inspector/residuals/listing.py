"""Turn jaxprs into `Listing`s: named variables, the params that matter, residuals numbered."""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterator, Mapping
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.program.avals import aval_of
from jaxresid.inspector.trace.function import Trace
from jaxresid.jax_compat.jaxpr_types import Eqn, Var
from jaxresid.results import Equation, Listing, Report, Split, Variable

_PARAM_LENGTH = 60
_SILENT: tuple[Any, ...] = (None, False, (), {}, "")


def listed(trace: Trace, report: Report, *, max_eqns: int, depth: int) -> Split:
    """Return the forward and the backward pass of a function, listed.

    Args:
      trace: the trace of the function.
      report: its report.
      max_eqns: show at most this many eqns of each jaxpr.
      depth: show nested jaxprs down to this depth; 0 folds them all.
    """
    ahead: dict[Var, int] = {}
    for i, var in enumerate(trace.kept):
        if not jax_compat.is_literal(var):
            ahead.setdefault(var, i)
    back = {var: i for i, var in enumerate(trace.read)}
    return Split(
        target=report.target,
        jax=report.jax,
        forward=_Lister(trace.levels, max_eqns, depth).listing(Level(trace.forward), ahead, 0),
        backward=_Lister(trace.levels, max_eqns, depth).listing(Level(trace.backward), back, 0),
        residuals=report.residuals,
    )


class _Lister:
    def __init__(self, levels: Levels, max_eqns: int, depth: int) -> None:
        self.levels = levels
        self.max_eqns = max_eqns
        self.depth = depth
        self.names: dict[Var, str] = {}
        self.fresh = _letters()

    def listing(self, level: Level, residuals: Mapping[Var, int], depth: int) -> Listing:
        """Return the listing of a level; `residuals` numbers its variables that are kept."""
        jaxpr = level.jaxpr
        shown = jaxpr.eqns[: self.max_eqns]
        return Listing(
            inputs=tuple(self.value(v, residuals) for v in [*jaxpr.constvars, *jaxpr.invars]),
            equations=tuple(self.equation(level, eqn, residuals, depth) for eqn in shown),
            outputs=tuple(self.value(v, residuals) for v in jaxpr.outvars),
            hidden=len(jaxpr.eqns) - len(shown),
        )

    def equation(
        self, level: Level, eqn: Eqn, residuals: Mapping[Var, int], depth: int
    ) -> Equation:
        inputs = tuple(self.value(v, residuals) for v in eqn.invars)
        outputs = tuple(self.value(v, residuals) for v in eqn.outvars)
        nests = self.levels.nests(eqn)
        inner: list[Listing] = []
        if depth < self.depth:
            for which, nest in enumerate(nests):
                child = self.levels.enter(level, eqn, which)
                inside = {
                    var: residuals[eqn.invars[operand]]
                    for var, operand in zip(nest.jaxpr.invars, nest.operands, strict=True)
                    if not jax_compat.is_literal(eqn.invars[operand])
                    and eqn.invars[operand] in residuals
                } | {
                    var: residuals[eqn.outvars[result]]
                    for var, result in zip(nest.jaxpr.outvars, nest.results, strict=True)
                    if result is not None
                    and not jax_compat.is_literal(var)
                    and eqn.outvars[result] in residuals
                }
                inner.append(self.listing(child, inside, depth + 1))
        return Equation(
            primitive=jax_compat.primitive_name(eqn),
            params=tuple(_shown_params(jax_compat.params(eqn))),
            inputs=inputs,
            outputs=outputs,
            location=self.levels.location(level, eqn),
            inner=tuple(inner),
            folded=0 if inner else sum(len(nest.jaxpr.eqns) for nest in nests),
        )

    def value(self, var: Var, residuals: Mapping[Var, int]) -> Variable:
        if jax_compat.is_literal(var):
            return Variable(jax_compat.literal_text(var), aval_of(var))
        if jax_compat.is_dropped(var):
            return Variable("_", aval_of(var))
        name = self.names.get(var)
        if name is None:
            name = self.names[var] = next(self.fresh)
        return Variable(name, aval_of(var), residuals.get(var))


def _letters() -> Iterator[str]:
    for length in itertools.count(1):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            yield "".join(letters)


def _shown_params(params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the params that a reader can use: short, set, no jaxprs, functions or shardings."""
    for name, value in params.items():
        if any(value is s or (type(value) is type(s) and value == s) for s in _SILENT):
            continue
        text = str(value)
        is_plain = isinstance(value, bool | int | float | str | tuple) or hasattr(value, "itemsize")
        if jax_compat.is_jaxpr(value) or not is_plain or "\n" in text or len(text) > _PARAM_LENGTH:
            continue
        if any(mark in text for mark in (" at 0x", "UnspecifiedValue", "Sharding", "jaxpr")):
            continue
        if isinstance(value, tuple) and not any(v not in (None, False) for v in _flat(value)):
            continue
        yield name, text


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value
