"""Trace a residual of the forward jaxpr back to its origin.

One rule does most: result i of a jit, scan, cond or remat is outvar i of its body, and invar i of
the body is operand i outside. The walk goes through eqns that only move, cast, name or reshape a
value, to say what it really is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels, source_of, stack_of
from jaxresid.inspector.jaxpr.primitives import COPIES, FILLS, MARKS, SIDE_BY_SIDE, TRANSPARENT
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var
from jaxresid.results import Argument, Computed, Constant, Literal, Mark, Origin

# Of these, those whose result is the very same value in the same memory space, laid out and shared
# by devices as it was.
_ALIASES = MARKS | (COPIES - {"reshard", "layout_constraint"}) | {"sharding_constraint"}


@dataclass(slots=True)
class _ProvenanceWalk:
    """What the walk from a residual to its maker has met."""

    level: Level
    var: Var
    through: list[str] = field(default_factory=list)
    last: tuple[Level, Eqn] | None = None
    name: str | None = None
    named: tuple[Level, Eqn] | None = None
    trips: int = 1
    stacked: Level | None = None
    memory: str | None = None
    carry: bool = False
    carries: set[Var] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Provenance:
    """An origin, and what was found on the way to it.

    Attributes:
      origin: where the value comes from.
      trips: how many trips of loops it stacks; 1 outside of loops.
      marks: the marks that were found on the way to it.
      memory: the memory that it is in; set only where a transfer named it.
    """

    origin: Origin
    trips: int
    marks: tuple[Mark, ...]
    memory: str | None


def provenance(levels: Levels, top: Level, var: Var, paths: Sequence[str | None]) -> Provenance:
    """Return where the value of `var`, a variable of the `top` level, comes from.

    Args:
      levels: the levels to walk through.
      top: the level that the walk begins at.
      var: the variable.
      paths: the pytree path of each invar of the top level; None for one that is no argument.
    """
    walk = _ProvenanceWalk(top, var)
    found = _walked(levels, walk, paths)
    if isinstance(found, Origin):
        return _end(levels, walk, found)
    return _computed(levels, walk, found, None)


def computed_in(
    levels: Levels, top: Level, var: Var, paths: Sequence[str | None]
) -> tuple[bool, str | None]:
    """Return whether the origin of `var` is `Computed`, and the memory, as `provenance` has them.

    No line is looked up for it.

    Args:
      levels: as for `provenance`.
      top: as for `provenance`.
      var: the variable.
      paths: as for `provenance`.
    """
    walk = _ProvenanceWalk(top, var)
    found = _walked(levels, walk, paths)
    return not (isinstance(found, Origin) and _is_source(walk)), walk.memory


def _walked(levels: Levels, walk: _ProvenanceWalk, paths: Sequence[str | None]) -> Eqn | Origin:
    """Walk to the maker of a value; return its eqn, or the input or literal that it comes from."""
    while True:
        if jax_compat.is_literal(walk.var):
            return Literal(jax_compat.literal_text(walk.var))
        made = levels.producer(walk.level, walk.var)
        if made is None:
            source = _outwards(levels, walk, paths)
            if source is not None:
                return source
            continue
        eqn, i = made
        if levels.nests(eqn):
            _inwards(levels, walk, eqn, i)
        elif not _look_through(walk, eqn, i):
            return eqn


def _outwards(levels: Levels, walk: _ProvenanceWalk, paths: Sequence[str | None]) -> Origin | None:
    """Step from an invar to what it is outside; return the origin at the top."""
    level = walk.level
    i = levels.invar(level, walk.var)
    if i is None:
        return Constant()
    if level.parent is None or level.nest is None:
        path = paths[i]
        return Constant() if path is None else Argument(path)
    nest = level.nest
    if i in nest.carries:
        out = level.jaxpr.outvars[nest.carries[i]]
        if out is not walk.var and walk.var not in walk.carries:
            # What enters a trip is what the trip before it made.
            walk.carries.add(walk.var)
            walk.carry = True
            walk.var = out
            return None
    walk.var = level.eqn.invars[nest.operands[i]]
    walk.level = level.parent
    return None


def _inwards(levels: Levels, walk: _ProvenanceWalk, eqn: Eqn, i: int) -> None:
    """Step from a result of an eqn to the inner outvar that it is."""
    found = levels.nests(eqn)
    which = 0
    if len(found) > 1:
        which = min(range(len(found)), key=lambda n: _how_empty(found[n].jaxpr, i))
    nest = found[which]
    walk.level = levels.enter(walk.level, eqn, which)
    walk.var = nest.jaxpr.outvars[nest.outvar(i)]
    if i in nest.stacked:
        walk.trips *= nest.length or 1
        walk.stacked = walk.level


def _how_empty(jaxpr: Jaxpr, i: int) -> int:
    """Return how little a branch has to do with its outvar i.

    The result is 0 where it computes the outvar, 1 where it passes an input on, and 2 where it only
    fills the place of another branch's residual.
    """
    var = jaxpr.outvars[i]
    if jax_compat.is_literal(var):
        return 2
    for eqn in reversed(jaxpr.eqns):
        if var in eqn.outvars:
            is_fill = jax_compat.primitive_name(eqn) in FILLS - {"iota"}
            return 2 * (is_fill and not any(_size(v) > 1 for v in eqn.invars))
    return 1


def _look_through(walk: _ProvenanceWalk, eqn: Eqn, i: int) -> bool:
    """Step through an eqn that only names, casts, moves or reshapes; return False at a maker."""
    primitive = jax_compat.primitive_name(eqn)
    if primitive == "optimization_barrier":
        walk.var = eqn.invars[i]
        return True
    if primitive == "name":
        if walk.name is None:
            walk.name = str(jax_compat.params(eqn)["name"])
            walk.named = (walk.level, eqn)
        operand = eqn.invars[0]
    elif primitive in TRANSPARENT:
        operand = eqn.invars[i if primitive in SIDE_BY_SIDE else 0]
        if jax_compat.is_literal(operand) or (
            primitive == "broadcast_in_dim" and _size(operand) == 1 < _size(walk.var)
        ):
            return False
        if primitive == "device_put" and walk.memory is None:
            walk.memory = jax_compat.moved_to(eqn, i)
        walk.through.append(primitive)
    else:
        return False
    walk.last = (walk.level, eqn)
    walk.var = operand
    return True


def _end(levels: Levels, walk: _ProvenanceWalk, source: Origin) -> Provenance:
    """Return the provenance of a walk that came to an input.

    The value is an alias of the input, or made of it alone.
    """
    if _is_source(walk):
        return Provenance(source, 1, (), walk.memory)
    if walk.last is None:  # a loop stacked it as it is
        level = walk.stacked
        assert level is not None
        assert level.parent is not None
        walk.level, eqn = level.parent, level.eqn
    else:
        walk.level, eqn = walk.last
    return _computed(levels, walk, eqn, source.path if isinstance(source, Argument) else None)


def _is_source(walk: _ProvenanceWalk) -> bool:
    """Return whether a walk that came to an input found nothing but aliases of it on the way."""
    aliased = walk.name is None and all(p in _ALIASES for p in walk.through)
    # What is moved is another array; a device_put within the device's memory moves nothing.
    is_moved = walk.memory == "host" or (walk.memory == "device" and _is_on_host(walk.var))
    return aliased and not is_moved and walk.trips == 1


def _is_on_host(var: Var) -> bool:
    return not jax_compat.is_literal(var) and jax_compat.memory_space(var.aval) == "host"


def _computed(levels: Levels, walk: _ProvenanceWalk, eqn: Eqn, path: str | None) -> Provenance:
    place = levels.place(walk.level, eqn)
    frames = levels.frames
    marks = []
    if walk.carry:
        marks.append(Mark.CARRY)
    within = place.within
    if walk.stacked is not None and not _inside(walk.level, walk.stacked):
        # Made outside the loop, stacked by it: the loop is why it takes its bytes.
        marks.append(Mark.INVARIANT)
        within = walk.stacked.within
    primitive = jax_compat.primitive_name(eqn)
    origin = Computed(
        primitive=primitive,
        source=source_of(frames, place),
        stack=stack_of(frames, place),
        name=walk.name,
        named_at=levels.location(*walk.named) if walk.named else None,
        within=within,
        through=tuple(p for p in walk.through if walk.last is None or p != primitive or not path),
        path=path,
    )
    return Provenance(origin, walk.trips, tuple(marks), walk.memory)


def _inside(level: Level | None, outer: Level) -> bool:
    while level is not None:
        if level is outer:
            return True
        level = level.parent
    return False


def _size(var: Var) -> int:
    return math.prod(getattr(var.aval, "shape", ()))
