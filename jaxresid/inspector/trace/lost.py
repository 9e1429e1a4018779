"""Find gradients of a training step that nothing depends on, beside others that are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.flows import shape_and_dtype
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.phases import BACKWARD, BOTH, FORWARD, Passes
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.jax_compat.jaxpr_types import Eqn, Var
from jaxresid.results import Location


@dataclass(frozen=True, slots=True)
class LostGradients:
    """A whole backward pass that nothing depends on.

    Attributes:
      inputs: the paths of those inputs whose gradients it makes, where they are known.
      location: the user's line that its forward pass begins with.
    """

    inputs: tuple[str, ...]
    location: Location | None


def lost_gradients(step: StepTrace) -> tuple[LostGradients, ...]:
    """Return the backward passes that no output of a step depends on.

    A backward pass that is used, but of which something is left out, such as the gradients of
    frozen layers, is not among them.
    """
    names = {v: p for v, p in zip(step.jaxpr.invars, step.inputs, strict=True) if p is not None}
    live = {v for v in step.jaxpr.outvars if not jax_compat.is_literal(v)}
    return tuple(_lost_in_level(step.levels, step.passes, step.tops[0], live, names))


def _lost_in_level(
    levels: Levels, passes: Passes, level: Level, live: set[Var], names: Mapping[Var, str]
) -> Iterator[LostGradients]:
    """Yield the lost backward passes of a level and of what is inside it.

    `live` are the outvars that are used, `names` are the paths of invars.
    """
    eqns = level.jaxpr.eqns
    used, alive = set(live), [False] * len(eqns)
    for at in reversed(range(len(eqns))):
        eqn = eqns[at]
        if eqn.effects or any(v in used for v in eqn.outvars):
            alive[at] = True
            used.update(v for v in eqn.invars if not jax_compat.is_literal(v))
    phases = [passes.of(eqn) for eqn in eqns]
    for group in _gradients(eqns, phases):
        backward = [at for at in group if phases[at] == BACKWARD]
        if not backward or any(alive[at] for at in backward):
            continue
        inside = {v for at in backward for v in eqns[at].invars if not jax_compat.is_literal(v)}
        if not inside:
            continue  # zeros, in place of the cotangent of a result that nobody read
        made = {shape_and_dtype(v) for at in backward for v in eqns[at].outvars if v not in inside}
        forward = [at for at in group if phases[at] == FORWARD]
        read = {v for at in forward for v in eqns[at].invars if not jax_compat.is_literal(v)}
        inputs = [path for v, path in names.items() if v in read and shape_and_dtype(v) in made]
        location = levels.location(level, eqns[forward[0]]) if forward else None
        yield LostGradients(tuple(inputs), location)
    for eqn, phase in zip(eqns, phases, strict=True):
        if phase != BOTH:
            continue
        for which, nest in enumerate(levels.nests(eqn)):
            inner = {
                v
                for at, v in enumerate(nest.jaxpr.outvars)
                if not jax_compat.is_literal(v)
                and (at in nest.carries.values() or _is_used(eqn, nest.results[at], used))
            }
            if eqn.effects:
                inner |= {v for v in nest.jaxpr.outvars if not jax_compat.is_literal(v)}
            outer = {
                v: eqn.invars[i] for v, i in zip(nest.jaxpr.invars, nest.operands, strict=True)
            }
            known = {
                v: names[o] for v, o in outer.items() if not jax_compat.is_literal(o) and o in names
            }
            yield from _lost_in_level(levels, passes, levels.enter(level, eqn, which), inner, known)


def _is_used(eqn: Eqn, result: int | None, used: set[Var]) -> bool:
    return result is not None and eqn.outvars[result] in used


def _gradients(eqns: Sequence[Eqn], phases: list[str]) -> list[list[int]]:
    """Return the eqns of forward and backward passes, by index, grouped by what belongs together.

    A group is the eqns of one gradient, or of several of which one reads what another makes.
    """
    first = list(range(len(eqns)))

    def root(at: int) -> int:
        while first[at] != at:
            first[at] = at = first[first[at]]
        return at

    makers: dict[Var, int] = {}
    for at, (eqn, phase) in enumerate(zip(eqns, phases, strict=True)):
        if phase not in (FORWARD, BACKWARD):
            continue
        for v in eqn.invars:
            if not jax_compat.is_literal(v) and v in makers:
                first[root(makers[v])] = root(at)
        makers.update(dict.fromkeys(eqn.outvars, at))
    found: dict[int, list[int]] = {}
    for at, phase in enumerate(phases):
        if phase in (FORWARD, BACKWARD):
            found.setdefault(root(at), []).append(at)
    return list(found.values())
