"""Find the eqns that the outputs of a jaxpr depend on, in its bodies as well.

JAX leaves in a jaxpr what nothing reads, and drops it when it lowers the jaxpr; a carry of a loop
that only the loop itself reads is dropped together with all that computes it, in those loops that
this JAX prunes.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import Nest
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var


@dataclass(frozen=True, slots=True)
class _Part:
    """What of a jaxpr is needed: the ids of eqns, and the variables."""

    eqns: frozenset[int]
    variables: frozenset[Var]


class Needed:
    """The eqns that what the top level returns depends on.

    The body of a checkpoint, and of an eqn that this JAX does not prune, is needed as a whole: JAX
    keeps all that it is called with.
    """

    def __init__(self, levels: Levels) -> None:
        self._levels = levels
        self._parts: dict[int, tuple[Level, _Part]] = {}
        self._known: dict[tuple[int, frozenset[int]], _Part] = {}

    def has(self, level: Level, eqn: Eqn) -> bool:
        """Return whether an eqn of the level is needed."""
        return id(eqn) in self._of(level).eqns

    def _of(self, level: Level) -> _Part:
        held = self._parts.get(id(level))
        if held is not None:
            return held[1]
        jaxpr = level.jaxpr
        if level.parent is None or level.nest is None:
            found = self._back(jaxpr, frozenset(range(len(jaxpr.outvars))))
        elif _is_kept_whole(level):
            found = _whole(jaxpr)
        else:
            found = self._body(level.eqn, level.nest, self._of(level.parent).variables)
        self._parts[id(level)] = level, found  # the level is held, so that its id stays its own
        return found

    def _body(self, eqn: Eqn, nest: Nest, outside: frozenset[Var] | set[Var]) -> _Part:
        """Return the needed part of a pruned eqn's body, given those variables needed around it."""
        jaxpr = nest.jaxpr
        if eqn.effects:
            return self._back(jaxpr, frozenset(range(len(jaxpr.outvars))))
        wanted = _deciding_carries(eqn, nest) | {
            i for i, r in enumerate(nest.results) if r is None or eqn.outvars[r] in outside
        }
        while True:
            found = self._back(jaxpr, frozenset(wanted))
            carried = {
                o for i, o in nest.carries.items() if jaxpr.invars[i] in found.variables
            } - wanted
            if not carried:
                return found
            wanted |= carried

    def _back(self, jaxpr: Jaxpr, outputs: frozenset[int]) -> _Part:
        """Return the needed part of a jaxpr, given which of its outputs are needed."""
        key = id(jaxpr), outputs
        if key not in self._known:
            variables = {v for i in outputs if not jax_compat.is_literal(v := jaxpr.outvars[i])}
            eqns = set()
            for eqn in reversed(jaxpr.eqns):
                if eqn.effects or any(v in variables for v in eqn.outvars):
                    eqns.add(id(eqn))
                    variables.update(self._operands(eqn, variables))
            self._known[key] = _Part(frozenset(eqns), frozenset(variables))
        return self._known[key]

    def _operands(self, eqn: Eqn, variables: set[Var]) -> list[Var]:
        """Return the operands that the needed results of an eqn depend on."""
        bodies = self._levels.nests(eqn) if _is_opened(eqn) else ()
        if not bodies:
            return [v for v in eqn.invars if not jax_compat.is_literal(v)]
        needed = dict.fromkeys(range(len(eqn.invars)), True)
        needed.update({i: False for nest in bodies for i in nest.operands})
        for nest in bodies:
            inside = self._body(eqn, nest, variables).variables
            for v, i in zip(nest.jaxpr.invars, nest.operands, strict=True):
                needed[i] = needed[i] or v in inside
            needed.update({nest.operands[i]: True for i in _read_by_condition(eqn, nest)})
        return [v for i, v in enumerate(eqn.invars) if needed[i] and not jax_compat.is_literal(v)]


def _whole(jaxpr: Jaxpr) -> _Part:
    made = (v for eqn in jaxpr.eqns for v in eqn.outvars)
    return _Part(frozenset(map(id, jaxpr.eqns)), frozenset((*jaxpr.invars, *made)))


def _is_opened(eqn: Eqn) -> bool:
    return jax_compat.is_pruned(eqn) and jax_compat.primitive_name(eqn) != "remat"


def _is_kept_whole(level: Level) -> bool:
    while level.parent is not None:
        if not _is_opened(level.eqn):
            return True
        level = level.parent
    return False


def _read_by_condition(eqn: Eqn, nest: Nest) -> set[int]:
    """Return the inner invars of a `while` that its condition reads."""
    asked = _deciding_carries(eqn, nest)
    return {i for i, o in nest.carries.items() if o in asked}


def _deciding_carries(eqn: Eqn, nest: Nest) -> set[int]:
    """Return the carries of a `while` that decide whether it goes on, by the outvar of its body."""
    if nest.kind != "while":
        return set()
    params = jax_compat.params(eqn)
    condition = jax_compat.open_jaxpr(params["cond_jaxpr"])
    read = {v for inner in condition.eqns for v in inner.invars if not jax_compat.is_literal(v)}
    read |= {v for v in condition.outvars if not jax_compat.is_literal(v)}
    carried = condition.invars[params["cond_nconsts"] :]
    return {i for i, v in enumerate(carried) if v in read}
