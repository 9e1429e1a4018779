"""Constrain how values of a program are split over a mesh."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.call.splits import Split
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.inspector.jaxpr.rewrite import rewritten
from jaxresid.inspector.program.avals import aval_of
from jaxresid.inspector.variants.rewrites.token_axes import shape_of
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr
from jaxresid.results import Location

# What holds jaxprs of whole arrays that JAX differentiates as they are written: in a `shard_map`
# arrays are those of one device, and a rule of the user's has a derivative of its own.
_HOLDERS = frozenset({"scan", "cond", "remat", "jit", "closed_call", "core_call"})


@dataclass(frozen=True, slots=True, eq=False)
class SplitSite:
    """Values of one shape that a source line makes in one jaxpr.

    Attributes:
      holder: the open jaxpr.
      places: the places in it of the eqns that make them.
    """

    holder: Jaxpr
    places: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """The name of their dtype."""
        return aval_of(self.holder.eqns[self.places[0]].outvars[0]).dtype


def made_on(
    levels: Levels, jaxpr: Jaxpr, location: Location
) -> dict[tuple[int, ...], list[SplitSite]]:
    """Return what a line makes that its author can constrain there, by the shape of a whole array.

    That is what it makes itself, and what its calls return. What is read on the same line again is
    only on the way to that.
    """
    by_shape: dict[tuple[int, ...], list[SplitSite]] = {}
    seen: set[int] = set()

    def walk(level: Level) -> None:
        if id(level.jaxpr) in seen:
            return
        seen.add(id(level.jaxpr))
        eqns: dict[int, Eqn] = {}
        for i, eqn in enumerate(level.jaxpr.eqns):
            if len(eqn.outvars) == 1 and _is_at(levels.location(level, eqn), location):
                eqns[i] = eqn
            elif jax_compat.primitive_name(eqn) in _HOLDERS:
                for which, _ in enumerate(nests(eqn)):
                    walk(levels.enter(level, eqn, which))
        operands = {v for eqn in eqns.values() for v in eqn.invars if not jax_compat.is_literal(v)}
        places: dict[tuple[int, ...], list[int]] = {}
        for i, eqn in eqns.items():
            if eqn.outvars[0] not in operands:
                places.setdefault(shape_of(eqn.outvars[0]), []).append(i)
        for shape, numbers in places.items():
            by_shape.setdefault(shape, []).append(SplitSite(level.jaxpr, tuple(numbers)))

    walk(Level(jaxpr))
    return by_shape


def _is_at(where: Location | None, wanted: Location) -> bool:
    return where is not None and (where.file, where.line) == (wanted.file, wanted.line)


def constrained(jaxpr: Jaxpr, sites: Sequence[SplitSite], mesh: Any, split: Split) -> Jaxpr:
    """Return the open jaxpr in which the values of some sites are split over a mesh."""

    def regrouped(site: SplitSite, eqns: Sequence[Eqn]) -> list[Eqn]:
        changed = list[Eqn]()
        for i, eqn in enumerate(eqns):
            if i not in site.places:
                changed.append(eqn)
                continue
            (value,) = eqn.outvars
            before = jax_compat.new_var_like(value)
            after = jax_compat.as_constraint(value, mesh, split)
            after = after.replace(invars=[before], outvars=[value], ctx=eqn.ctx)
            changed += [eqn.replace(outvars=[before]), jax_compat.with_traceback(after, eqn)]
        return changed

    return rewritten(
        jaxpr, {}, {id(site.holder): functools.partial(regrouped, site) for site in sites}
    )
