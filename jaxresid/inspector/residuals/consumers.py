"""Find the backward eqns that read a residual."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.primitives import MARKS, SHARDINGS, SIDE_BY_SIDE
from jaxresid.jaxpr_types import Eqn, Var
from jaxresid.model import Consumer

# Eqns that hand a value on as it is; who reads what they hand on is the consumer. A
# sharding_constraint is one itself: it may move the value between devices.
_HANDS_ON = MARKS | (SHARDINGS - {"sharding_constraint"}) | SIDE_BY_SIDE | {"copy"}


# A level and a variable of it -> the eqns that read it, each with the operand.
Readers = Callable[[Level, Var], Iterable[tuple[Eqn, int]]]


def consumers(
    levels: Levels, top: Level, var: Var, readers: Readers | None = None
) -> tuple[Consumer, ...]:
    """Return the backward eqns that read a variable, in program order.

    Readers of one primitive at one line count once.

    Args:
      levels: descends into the eqns.
      top: the level of the variable.
      var: the variable.
      readers: finds the eqns that count as its readers; None: all of them do.
    """
    return tuple(dict.fromkeys(_read(levels, readers or levels.readers, top, var, set())))


def is_read(levels: Levels, top: Level, var: Var, readers: Readers) -> bool:
    """Return whether a backward eqn reads a variable; see `consumers`."""
    return next(_read(levels, readers, top, var, set()), None) is not None


def _read(
    levels: Levels, readers: Readers, level: Level, var: Var, seen: set[tuple[int, Var]]
) -> Iterator[Consumer]:
    if (id(level), var) in seen:  # once round a loop's carry is enough
        return
    seen.add((id(level), var))
    for eqn, i in readers(level, var):
        primitive = jax_compat.primitive_name(eqn)
        if primitive in _HANDS_ON:
            out = eqn.outvars[i if primitive in SIDE_BY_SIDE else 0]
            yield from _read(levels, readers, level, out, seen)
            continue
        inner = [
            (which, position)
            for which, nest in enumerate(levels.nests(eqn))
            for position, operand in enumerate(nest.operands)
            if operand == i
        ]
        for which, position in inner:
            child = levels.enter(level, eqn, which)
            yield from _read(levels, readers, child, child.jaxpr.invars[position], seen)
        if not inner:
            place = levels.position(level, eqn)
            yield Consumer(
                primitive,
                levels.frames.innermost_user(place.frames),
                place.within,
                "recompute" if _recomputes(level, eqn) else "backward",
            )
    if level.parent is None or level.nest is None:
        return
    # What a body hands back as it is, is read outside; jax_remat3 does so with what it moves to
    # the device.
    for position, out in enumerate(level.jaxpr.outvars):
        if out is not var:
            continue
        result = level.nest.results[position]
        if result is not None:
            yield from _read(levels, readers, level.parent, level.eqn.outvars[result], seen)
        for entering, leaving in level.nest.carries.items():
            if leaving == position:
                yield from _read(levels, readers, level, level.jaxpr.invars[entering], seen)


def _recomputes(level: Level, eqn: Eqn) -> bool:
    """Return whether the eqn, or one around it, re-creates forward values.

    The tag is on each recomputed eqn, or with jax_remat3 on the remat eqn around them.
    """
    if "rematted_computation" in jax_compat.name_stack(eqn):
        return True
    return level.parent is not None and _recomputes(level.parent, level.eqn)
