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
class Made:
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


def made_on(levels: Levels, jaxpr: Jaxpr, location: Location) -> dict[tuple[int, ...], list[Made]]:
    """Return what a line makes that its author can constrain there, by the shape of a whole array.

    That is what it makes itself, and what its calls return. What is read on the same line again is
    only on the way to that.

    Args:
      levels: the descent into the jaxprs.
      jaxpr: the open jaxpr.
      location: the line.
    """
    found: dict[tuple[int, ...], list[Made]] = {}
    seen: set[int] = set()

    def walk(level: Level) -> None:
        if id(level.jaxpr) in seen:
            return
        seen.add(id(level.jaxpr))
        made: dict[int, Eqn] = {}
        for i, eqn in enumerate(level.jaxpr.eqns):
            if len(eqn.outvars) == 1 and _is_at(levels.location(level, eqn), location):
                made[i] = eqn
            elif jax_compat.primitive_name(eqn) in _HOLDERS:
                for which, _ in enumerate(nests(eqn)):
                    walk(levels.enter(level, eqn, which))
        read = {v for eqn in made.values() for v in eqn.invars if not jax_compat.is_literal(v)}
        places: dict[tuple[int, ...], list[int]] = {}
        for i, eqn in made.items():
            if eqn.outvars[0] not in read:
                places.setdefault(shape_of(eqn.outvars[0]), []).append(i)
        for shape, each in places.items():
            found.setdefault(shape, []).append(Made(level.jaxpr, tuple(each)))

    walk(Level(jaxpr))
    return found


def _is_at(found: Location | None, wanted: Location) -> bool:
    return found is not None and (found.file, found.line) == (wanted.file, wanted.line)


def constrained(jaxpr: Jaxpr, made: Sequence[Made], mesh: Any, split: Split) -> Jaxpr:
    """Return an open jaxpr in which some values are split over a mesh as is said.

    Args:
      jaxpr: the open jaxpr.
      made: the values.
      mesh: the mesh.
      split: how each of them is split.
    """

    def regrouped(each: Made, eqns: Sequence[Eqn]) -> list[Eqn]:
        found = list[Eqn]()
        for i, eqn in enumerate(eqns):
            if i not in each.places:
                found.append(eqn)
                continue
            (value,) = eqn.outvars
            before = jax_compat.new_var_like(value)
            after = jax_compat.as_constraint(value, mesh, split)
            after = after.replace(invars=[before], outvars=[value], ctx=eqn.ctx)
            found += [eqn.replace(outvars=[before]), jax_compat.with_traceback(after, eqn)]
        return found

    return rewritten(
        jaxpr, {}, {id(each.holder): functools.partial(regrouped, each) for each in made}
    )
