"""Compute in the narrow type what a jaxpr widens: from a cast as far as single elements go.

Sums over elements, loops, what has derivatives of its own and what the jaxpr returns stay in the
wide type, as compilers add up in float32 anyway: there a narrow value is cast once more, which
takes no memory. Casts of what is narrow already go away.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.inspector.jaxpr.primitives import PARTS, VIEWS, of_kind
from jaxresid.inspector.jaxpr.rewrite import rewritten
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

_RESHAPED = (VIEWS | {"broadcast_in_dim"}) - {"bitcast", "bitcast_convert_type"}
_ELEMENTS = of_kind("elementwise", "special") | _RESHAPED | PARTS
_ELEMENTS |= {"concatenate", "pad", "rev", "tile", "copy", "name"}
_NARROWED = _ELEMENTS | {"dot_general"}
_SUMS = frozenset({"add", "sub", "add_any"})
_CAST = "convert_element_type"


@dataclass(frozen=True, slots=True, eq=False)
class Cast:
    """A cast to a wider float in a jaxpr with the calls inlined.

    Attributes:
      holder: where the jaxpr with the cast is.
      eqn: the cast.
      trips: how often it runs, in all loops around it.
      level: where it is in the jaxpr as it was, with the calls.
      written: the cast there.
    """

    holder: Level
    eqn: Eqn
    trips: int
    level: Level
    written: Eqn

    @property
    def narrow(self) -> Any:
        """The dtype before."""
        return self.eqn.invars[0].aval.dtype

    @property
    def wide(self) -> Any:
        """The dtype afterwards."""
        return self.eqn.outvars[0].aval.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of the wide values of all trips."""
        size, itemsize = math.prod(self.eqn.outvars[0].aval.shape), int(self.wide.itemsize)
        return size * itemsize * self.trips


def casts_in(levels: Levels, jaxpr: Jaxpr, flat: Jaxpr) -> Iterator[Cast]:
    """Yield the casts to wider floats in an open jaxpr and in the bodies of its scans.

    Those of what is added up alone are left out, and what checkpoints hold. There are none where
    other calls were inlined than are seen here.

    Args:
      levels: the descent into the jaxpr.
      jaxpr: the open jaxpr.
      flat: the same with the calls in it inlined, see `derived_values.plain`.
    """
    read: dict[int, set[Var]] = {}
    inlined, as_written = (list(_casts(levels, Level(j), 1)) for j in (flat, jaxpr))
    if len(inlined) != len(as_written):
        return
    for (holder, eqn, trips), (level, written, _) in zip(inlined, as_written, strict=True):
        if id(holder.jaxpr) not in read:
            read[id(holder.jaxpr)] = _read_by_elements(holder.jaxpr)
        if eqn.outvars[0] in read[id(holder.jaxpr)]:
            yield Cast(holder, eqn, trips, level, written)


def _read_by_elements(jaxpr: Jaxpr) -> set[Var]:
    """Return what is read by eqns of a jaxpr that may be done in another type."""
    return {
        v
        for eqn in jaxpr.eqns
        if jax_compat.primitive_name(eqn) in _NARROWED
        for v in eqn.invars
        if not jax_compat.is_literal(v)
    }


def _casts(levels: Levels, level: Level, trips: int) -> Iterator[tuple[Level, Eqn, int]]:
    """Yield the casts to wider floats with where they are and how often they run, in order."""
    for eqn in level.jaxpr.eqns:
        name = jax_compat.primitive_name(eqn)
        if name == _CAST and _widens(eqn):
            yield level, eqn, trips
        elif name in ("scan", "jit"):
            (nest,) = nests(eqn)
            if name == "scan" or not nest.jaxpr.constvars:
                yield from _casts(levels, levels.enter(level, eqn, 0), trips * (nest.length or 1))


def _widens(eqn: Eqn) -> bool:
    before, after = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    return _is_float(before) and _is_float(after) and before.itemsize < after.itemsize


def _is_float(dtype: Any) -> bool:
    jnp = jax_compat.import_jax().numpy
    return bool(jnp.issubdtype(dtype, jnp.floating))


def narrowed(jaxpr: Jaxpr, casts: Sequence[Cast]) -> Jaxpr:
    """Return an open jaxpr in which what some casts widen stays narrow.

    Args:
      jaxpr: the open jaxpr that they were found in.
      casts: the casts; all from one dtype to one other.
    """
    by_jaxpr: dict[int, list[Cast]] = {}
    for cast in casts:
        by_jaxpr.setdefault(id(cast.holder.jaxpr), []).append(cast)
    regroup = {key: functools.partial(_regrouped, each) for key, each in by_jaxpr.items()}
    return rewritten(jaxpr, {}, regroup)


def _regrouped(casts: Sequence[Cast], eqns: Sequence[Eqn]) -> list[Eqn]:
    """Return the eqns of a jaxpr, in which all is rewritten, with what casts widen narrow."""
    level = casts[0].holder
    carries = level.nest.carries if level.nest is not None else ()
    made = _Narrowing(
        level.jaxpr, casts[0], {v for i, v in enumerate(level.jaxpr.invars) if i in carries}
    )
    own = {id(cast.eqn) for cast in casts}
    for eqn, before in zip(eqns, level.jaxpr.eqns, strict=True):
        made.add(eqn, starts=id(before) in own)
    made.widen(level.jaxpr.outvars)
    return made.eqns


@dataclass(slots=True)
class _Narrowing:
    """The eqns of a jaxpr as they are rewritten, one after the other.

    Attributes:
      jaxpr: the open jaxpr as it was.
      cast: one of the casts.
      carries: those of its inputs that a loop carries.
      eqns: the eqns so far.
      narrow: what is there in the narrow type, by the variable that it stands for.
      missing: those of them that are not there in their own type.
      cast_down: what is wide on purpose and was cast to the narrow type, to meet something narrow.
      makers: the eqn that makes each variable, as it was.
    """

    jaxpr: Jaxpr
    cast: Cast
    carries: set[Var]
    eqns: list[Eqn] = field(default_factory=list)
    narrow: dict[Var, Var] = field(default_factory=dict)
    missing: set[Var] = field(default_factory=set)
    cast_down: dict[Var, Var] = field(default_factory=dict)
    makers: dict[Var, Eqn] = field(default_factory=dict)

    def add(self, eqn: Eqn, starts: bool) -> None:
        """Add an eqn; with `starts` a cast, which is left out."""
        self.makers.update(dict.fromkeys(eqn.outvars, eqn))
        name = jax_compat.primitive_name(eqn)
        if starts:
            self._stands_for(eqn.outvars[0], self._own(eqn.invars[0]))
        elif name == _CAST and self._is_narrow(eqn.invars[0]) and self._casts_back(eqn):
            self._replace(eqn, self.narrow[eqn.invars[0]])
        elif self._stays_narrow(eqn, name):
            self._in_narrow(eqn, name)
        else:
            self.widen(eqn.invars)
            self.eqns.append(eqn)

    def widen(self, wanted: Sequence[Var]) -> None:
        """Make variables in their own type that are there in the narrow one alone."""
        for var in wanted:
            if not jax_compat.is_literal(var) and var in self.missing:
                self.missing.remove(var)
                self._convert(self.narrow[var], var)

    def _stands_for(self, var: Var, narrow: Var) -> None:
        self.narrow[var] = narrow
        self.missing.add(var)

    def _own(self, var: Var) -> Var:
        self.widen([var])
        return var

    def _is_narrow(self, var: Var) -> bool:
        return not jax_compat.is_literal(var) and var in self.narrow

    def _casts_back(self, eqn: Eqn) -> bool:
        return bool(eqn.outvars[0].aval.dtype == self.cast.narrow)

    def _replace(self, eqn: Eqn, narrow: Var) -> None:
        """Let a variable of the narrow type be a copy of another one."""
        self.eqns.append(self._cast_eqn(narrow, eqn.outvars[0]))

    def _stays_narrow(self, eqn: Eqn, name: str) -> bool:
        """Return whether an eqn that reads something narrow may be done in the narrow type."""
        wide = [v for v in eqn.invars if v.aval.dtype == self.cast.wide]
        if eqn.effects or nests(eqn) or not any(map(self._is_narrow, wide)):
            return False
        others = [v for v in eqn.invars if v.aval.dtype != self.cast.wide]
        if name == "dot_general":
            is_narrow = (v.aval.dtype == self.cast.narrow for v in others)
            return all(map(self._is_narrow, wide)) and all(is_narrow)
        if any(_is_float(v.aval.dtype) for v in others):
            return False
        if name not in _ELEMENTS:
            return False
        size = max(math.prod(v.aval.shape) for v in eqn.outvars)
        return all(
            jax_compat.is_literal(v) or self._is_narrow(v) or self._may_be_cast(v, name, size)
            for v in wide
        )

    def _may_be_cast(self, var: Var, name: str, size: int) -> bool:
        """Return whether a wide operand may be cast down to meet something narrow.

        That is so where it is smaller than the result, or a mask that is given. A sum with as many
        wide values is kept wide on purpose: it is where layers of a narrow type are added up.
        """
        while var in self.makers and jax_compat.primitive_name(self.makers[var]) in _RESHAPED:
            var = self.makers[var].invars[0]
            if jax_compat.is_literal(var):
                return True
        if math.prod(var.aval.shape) < size:
            return True
        return name not in _SUMS and var not in self.makers and var not in self.carries

    def _in_narrow(self, eqn: Eqn, name: str) -> None:
        operands = [self._operand(v) for v in eqn.invars]
        results = []
        for var in eqn.outvars:
            if var.aval.dtype == self.cast.wide:
                made = jax_compat.new_var_like(var, self.cast.narrow)
                self._stands_for(var, made)
                results.append(made)
            else:
                results.append(var)
        made_eqn = eqn.replace(invars=operands, outvars=results)
        if name == "dot_general":
            made_eqn = jax_compat.with_params(
                made_eqn, {"preferred_element_type": self.cast.narrow}
            )
        self.eqns.append(made_eqn)

    def _operand(self, var: Var) -> Any:
        if var.aval.dtype != self.cast.wide:
            return self._own_or_literal(var)
        if jax_compat.is_literal(var):
            return jax_compat.converted(var, jax_compat.new_var_like(var, self.cast.narrow))
        if var in self.narrow:
            return self.narrow[var]
        if var not in self.cast_down:
            self.cast_down[var] = jax_compat.new_var_like(var, self.cast.narrow)
            self._convert(var, self.cast_down[var])
        return self.cast_down[var]

    def _own_or_literal(self, var: Var) -> Var:
        return var if jax_compat.is_literal(var) else self._own(var)

    def _convert(self, var: Var, to: Var) -> None:
        self.eqns.append(self._cast_eqn(var, to))

    def _cast_eqn(self, var: Var, to: Var) -> Eqn:
        made = self.cast.eqn.replace(invars=[var], outvars=[to])
        params: Mapping[str, Any] = {"new_dtype": to.aval.dtype, "weak_type": False}
        return jax_compat.with_params(made, params)
