"""Find the backward eqns that read a residual."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.primitives import MARKS, SHARDINGS, SIDE_BY_SIDE
from jaxresid.jax_compat.jaxpr_types import Eqn, Var
from jaxresid.results import Consumer

# Eqns that hand a value on as it is; who reads what they hand on is the consumer. A
# sharding_constraint is one itself: it may move the value between devices.
_HANDS_ON = MARKS | (SHARDINGS - {"sharding_constraint"}) | SIDE_BY_SIDE | {"copy"}


# A level and a variable of it -> the eqns that read it, each with the operand.
Readers = Callable[[Level, Var], Iterable[tuple[Eqn, int]]]

# A variable of a level that is yet to be followed, or an eqn there that is a consumer.
_Step = tuple[Level, Var | None, Eqn | None]


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
    return tuple(dict.fromkeys(_read(levels, readers or levels.readers, top, var)))


def is_read(levels: Levels, top: Level, var: Var, readers: Readers) -> bool:
    """Return whether a backward eqn reads a variable; see `consumers`."""
    return next(_read(levels, readers, top, var), None) is not None


def _read(levels: Levels, readers: Readers, top: Level, top_var: Var) -> Iterator[Consumer]:
    seen: set[tuple[int, Var]] = set()
    left: list[_Step] = [(top, top_var, None)]
    while left:
        level, var, eqn = left.pop()
        if eqn is not None:
            yield _consumer(levels, level, eqn)
        elif var is not None and (id(level), var) not in seen:
            seen.add((id(level), var))  # once round a loop's carry is enough
            steps = [*_inside(levels, readers, level, var), *_outside(levels, level, var)]
            left += reversed(steps)


def _consumer(levels: Levels, level: Level, eqn: Eqn) -> Consumer:
    place = levels.position(level, eqn)
    return Consumer(
        jax_compat.primitive_name(eqn),
        levels.frames.innermost_user(place.frames),
        place.within,
        "recompute" if _recomputes(level, eqn) else "backward",
    )


def _inside(levels: Levels, readers: Readers, level: Level, var: Var) -> Iterator[_Step]:
    """Yield the eqns that read a variable, and what it is inside those that only hand it on."""
    for eqn, i in readers(level, var):
        primitive = jax_compat.primitive_name(eqn)
        inner = levels.inner(eqn, i)
        if primitive in _HANDS_ON:
            yield level, eqn.outvars[i if primitive in SIDE_BY_SIDE else 0], None
        elif not inner:
            yield level, None, eqn
        else:
            for which, position in inner:
                child = levels.enter(level, eqn, which)
                yield child, child.jaxpr.invars[position], None


def _outside(levels: Levels, level: Level, var: Var) -> Iterator[_Step]:
    """Yield what a variable of a body is outside, and in the next trip.

    What a body hands back as it is, is read outside; jax_remat3 does so with what it moves to the
    device.
    """
    if level.parent is None or level.nest is None:
        return
    for position in levels.outvars(level, var):
        result = level.nest.results[position]
        if result is not None:
            yield level.parent, level.eqn.outvars[result], None
        for entering, leaving in level.nest.carries.items():
            if leaving == position:
                yield level, level.jaxpr.invars[entering], None


def _recomputes(level: Level, eqn: Eqn) -> bool:
    """Return whether the eqn, or one around it, re-creates forward values.

    The tag is on each recomputed eqn, or with jax_remat3 on the remat eqn around them.
    """
    if "rematted_computation" in jax_compat.name_stack(eqn):
        return True
    return level.parent is not None and _recomputes(level.parent, level.eqn)
