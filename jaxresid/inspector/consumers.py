"""A residual -> the backward eqns that read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxresid.inspector import _jax
from jaxresid.inspector.levels import Level, Levels
from jaxresid.model import Consumer

# Eqns that hand a value on as it is; who reads what they hand on is the consumer.
_HANDS_ON = frozenset({"optimization_barrier", "device_put", "copy", "copy_p", "name", "pvary"})


def consumers(levels: Levels, top: Level, var: Any) -> tuple[Consumer, ...]:
    """The backward eqns that read `var`, a variable of the `top` level, in program order.

    Readers of one primitive at one line count once.
    """
    return tuple(dict.fromkeys(_read(levels, top, var, recomputing=False)))


def _read(levels: Levels, level: Level, var: Any, recomputing: bool) -> Iterator[Consumer]:
    for eqn, i in levels.readers(level, var):
        primitive = _jax.primitive_name(eqn)
        # The tag stands on each recomputed eqn, or with jax_remat3 on the remat eqn around them.
        recomputed = recomputing or "rematted_computation" in _jax.name_stack(eqn)
        if primitive in _HANDS_ON:
            out = eqn.outvars[i if primitive == "optimization_barrier" else 0]
            yield from _read(levels, level, out, recomputing)
            continue
        inner = [
            (which, position)
            for which, nest in enumerate(levels.nests(eqn))
            for position, operand in enumerate(nest.operands)
            if operand == i
        ]
        for which, position in inner:
            child = levels.enter(level, eqn, which)
            yield from _read(levels, child, child.jaxpr.invars[position], recomputed)
        if not inner:
            place = levels.place(level, eqn)
            yield Consumer(
                primitive,
                levels.frames.innermost_user(place.frames),
                place.within,
                "recompute" if recomputed else "backward",
            )
