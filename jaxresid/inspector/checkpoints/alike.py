"""Find checkpoints of a program that are alike: of equal bodies, among equal neighbours."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.checkpoints.policies import description
from jaxresid.inspector.checkpoints.sites import CheckpointSite
from jaxresid.inspector.holes.holes import Holes
from jaxresid.inspector.jaxpr.alike import structural_key
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

# So many eqns of the function on either side have to be alike too.
_AROUND = 2


@dataclass(frozen=True, slots=True)
class PlacedCheckpoint:
    """A checkpoint that the function itself calls, once.

    Attributes:
      site: the checkpoint.
      backward: the eqn of the backward pass that recomputes it.
    """

    site: CheckpointSite
    backward: Eqn


def alike_checkpoints(
    holes: Holes[Any], sites: Iterable[CheckpointSite]
) -> tuple[tuple[PlacedCheckpoint, ...], ...]:
    """Return those of a program's checkpoints that are alike, in groups, in program order.

    Args:
      holes: what the program differentiates.
      sites: its checkpoints.
    """
    single = _called_once(site for site in sites if site.is_as_written)
    if len(single) < 2 or holes.traced.sharding is not None or len(holes.holes) != 1:
        return ()
    (hole,) = holes.holes
    remats, recomputing = _remats(hole.jaxpr), _remats(holes.traced.tops[-1].jaxpr)
    if len(remats) != len(recomputing):  # of some no gradient is taken
        return ()
    backward = {id(e): back for e, back in zip(remats, reversed(recomputing), strict=True)}
    around = _Surroundings(hole.jaxpr, hole.differentiated)
    return _groups(hole.jaxpr, single, around, lambda eqn: backward[id(eqn)])


def _remats(jaxpr: Jaxpr) -> list[Eqn]:
    return [eqn for eqn in jaxpr.eqns if jax_compat.primitive_name(eqn) == "remat"]


def _called_once(sites: Iterable[CheckpointSite]) -> dict[int, CheckpointSite]:
    """Return, by the ids of their eqns, the checkpoints that the function itself calls, once."""
    return {
        id(call.eqn): site
        for site in sites
        if len(site.calls) == 1
        for call in site.calls
        if not call.enclosing
    }


def _groups(
    jaxpr: Jaxpr,
    single: Mapping[int, CheckpointSite],
    around: _Surroundings,
    backward: Callable[[Eqn], Eqn],
) -> tuple[tuple[PlacedCheckpoint, ...], ...]:
    groups: dict[Hashable, list[PlacedCheckpoint]] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        site = single.get(id(eqn))
        if site is not None:
            key = site.prevent_cse, around.of(i)
            groups.setdefault(key, []).append(PlacedCheckpoint(site, backward(eqn)))
    return tuple(map(tuple, groups.values()))


class _Surroundings:
    """The eqns around each eqn of a jaxpr, in a form to compare.

    Args:
      jaxpr: the jaxpr.
      differentiated: its inputs that a gradient is taken of, where it is still to be taken.
    """

    def __init__(self, jaxpr: Jaxpr, differentiated: Iterable[Var]) -> None:
        self._jaxpr = jaxpr
        self._numbers: dict[Hashable, int] = {}
        self._bodies: dict[int, tuple[Jaxpr, Hashable]] = {}
        self._kinds = [self._number(self._kind(eqn)) for eqn in jaxpr.eqns]
        self._makers = {
            v: (i, j) for i, eqn in enumerate(jaxpr.eqns) for j, v in enumerate(eqn.outvars)
        }
        self._readers: dict[Var, list[int]] = {}
        for i, eqn in enumerate(jaxpr.eqns):
            for v in eqn.invars:
                if not jax_compat.is_literal(v):
                    self._readers.setdefault(v, []).append(i)
        self._outputs = {v for v in jaxpr.outvars if not jax_compat.is_literal(v)}
        self._varying = set(differentiated)
        for eqn in jaxpr.eqns:
            if any(not jax_compat.is_literal(v) and v in self._varying for v in eqn.invars):
                self._varying.update(eqn.outvars)

    def of(self, middle: int) -> Hashable:
        """Return a key that is equal for eqns with equal ones around them.

        Args:
          middle: the number of the eqn.
        """
        eqns = range(max(middle - _AROUND, 0), min(middle + _AROUND + 1, len(self._jaxpr.eqns)))
        outside: dict[Var, int] = {}
        return middle - eqns.start, tuple(
            (
                self._kinds[i],
                tuple(self._operand(v, eqns, outside) for v in self._jaxpr.eqns[i].invars),
                tuple(self._result(v, eqns) for v in self._jaxpr.eqns[i].outvars),
            )
            for i in eqns
        )

    def _operand(self, var: Var, eqns: range, outside: dict[Var, int]) -> Hashable:
        if jax_compat.is_literal(var):
            return str(var.aval), repr(jax_compat.literal_text(var))
        i, j = self._makers.get(var, (-1, 0))
        if i in eqns:
            return i - eqns.start, j
        number = outside.setdefault(var, len(outside))
        return number, i < 0, var in self._varying, self._result(var, eqns)

    def _result(self, var: Var, eqns: range) -> Hashable:
        readers = self._readers.get(var, ())
        inside = tuple(i - eqns.start for i in readers if i in eqns)
        return str(var.aval), inside, len(readers) - len(inside), var in self._outputs

    def _kind(self, eqn: Eqn) -> Hashable:
        params = jax_compat.params(eqn)
        name = jax_compat.primitive_name(eqn)
        if name != "remat":
            return name, frozenset(eqn.effects), _params(params.items())
        body = jax_compat.open_jaxpr(params["jaxpr"])
        known = self._bodies.get(id(body))
        if known is None:
            known = self._bodies[id(body)] = body, self._number(structural_key.key(body))
        policy = description(params.get("policy"))
        others = _params((k, v) for k, v in params.items() if k not in ("jaxpr", "policy"))
        return name, known[1], policy, others

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _params(items: Iterable[tuple[str, object]]) -> Hashable:
    return tuple((name, structural_key.hashable(value)) for name, value in items)
