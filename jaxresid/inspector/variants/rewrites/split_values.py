"""Constrain how values of a program are split over a mesh."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.call.splits import Split
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.inspector.jaxpr.rewrite import rewritten
from jaxresid.inspector.variants.rewrites.token_axes import shape_of
from jaxresid.jaxpr_types import Eqn, Jaxpr
from jaxresid.model import Location

# What holds jaxprs of whole arrays that JAX differentiates as they are written: in a `shard_map`
# arrays are those of one device, and a rule of the user's has a derivative of its own.
_HOLDERS = frozenset({"scan", "cond", "remat", "jit", "closed_call", "core_call"})


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """The values of one shape that a source line makes in one jaxpr, each of them as the last.

    Attributes:
      holder: the open jaxpr.
      places: the places in it of the eqns that make them.
    """

    holder: Jaxpr
    places: tuple[int, ...]


def made_on(
    levels: Levels, jaxpr: Jaxpr, location: Location, shape: Sequence[int]
) -> Iterator[Made]:
    """Yield what a line makes of a shape, for each jaxpr.

    Of what it makes on the way to a value, as inside of a function that it calls, only the value is
    among that.

    Args:
      levels: the descent into the jaxprs.
      jaxpr: the open jaxpr.
      location: the line.
      shape: the shape of a whole array.
    """
    seen: set[int] = set()

    def walk(level: Level) -> Iterator[Made]:
        if id(level.jaxpr) in seen:
            return
        seen.add(id(level.jaxpr))
        found: dict[int, Eqn] = {}
        for i, eqn in enumerate(level.jaxpr.eqns):
            if _makes(eqn, shape) and _is_at(levels.location(level, eqn), location):
                found[i] = eqn
            elif jax_compat.primitive_name(eqn) in _HOLDERS:
                for which, _ in enumerate(nests(eqn)):
                    yield from walk(levels.enter(level, eqn, which))
        read = {v for eqn in found.values() for v in eqn.invars if not jax_compat.is_literal(v)}
        last = tuple(i for i, eqn in found.items() if eqn.outvars[0] not in read)
        if last:
            yield Made(level.jaxpr, last)

    yield from walk(Level(jaxpr))


def _makes(eqn: Eqn, shape: Sequence[int]) -> bool:
    return len(eqn.outvars) == 1 and shape_of(eqn.outvars[0]) == tuple(shape)


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
