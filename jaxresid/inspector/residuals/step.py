"""Find the residuals of a training step: what forward passes make and backward passes read.

They cross where both passes of a gradient are side by side: in the step itself, in a jitted
gradient, in the body of a loop over microbatches. Those of a loop's body are of one trip, since the
next trip makes its own.

JAX leaves in the jaxpr what nothing reads; a residual is listed if it is read by a backward eqn on
which something depends that the step returns or changes, which is how a compiler sees it. `jax.vjp`
alone cannot tell and keeps some more.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.phases import BACKWARD, BOTH, FORWARD, UPDATE, Passes
from jaxresid.inspector.program.avals import aval_on
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.ops import Value
from jaxresid.inspector.program.step import step_program
from jaxresid.inspector.residuals.consumers import consumers, is_read
from jaxresid.inspector.residuals.marking import Marking
from jaxresid.inspector.residuals.needed import Needed
from jaxresid.inspector.residuals.numbering import FreeValues, Numbering
from jaxresid.inspector.residuals.provenance import computed_in, provenance
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.jaxpr_types import Eqn, Jaxpr, Var
from jaxresid.model import Residual


def step_residuals(step: StepTrace, program: Program | None = None) -> tuple[Residual, ...]:
    """Return the residuals of all gradients in a training step.

    They are in program order, one gradient after the other. Arguments that a backward pass reads
    are among them, and so is what the step makes of its arguments before it differentiates
    (parameters cast to bfloat16, for example).

    Args:
      step: the trace of the training step.
      program: the program of the step, where there is one already; it knows what is split over a
        mesh.
    """
    values = _values(step, program)
    levels, passes, (top,) = step.levels, step.passes, step.tops
    behind = _BackwardReaders(levels, passes)
    numbering, free = Numbering(levels), FreeValues(levels)
    found = []
    for level in _levels(levels, passes, top):
        marking = Marking(level, numbering.of(level.jaxpr), _returned(level), free, values)
        for var in _crossing(level.jaxpr, passes):
            read = consumers(levels, level, var, behind.readers)
            if read:
                source = _source(levels, level, var)
                made = provenance(levels, source.level, source.var, step.inputs)
                found.append(marking.residual(var, made, read))
    return tuple(found)


def step_kept_nbytes(step: StepTrace, program: Program | None = None) -> tuple[int, int]:
    """Return the bytes of a step's computed residuals in device and in host memory.

    It is what `totals_of` adds up of `step_residuals`, without the lines of residuals and of what
    reads them.

    Args:
      step: as for `step_residuals`.
      program: as for `step_residuals`.
    """
    values = _values(step, program)
    levels, passes, (top,) = step.levels, step.passes, step.tops
    behind = _BackwardReaders(levels, passes)
    device = host = 0
    for level in _levels(levels, passes, top):
        for var in _crossing(level.jaxpr, passes):
            source = _source(levels, level, var)
            is_computed, memory = computed_in(levels, source.level, source.var, step.inputs)
            if is_computed and is_read(levels, level, var, behind.readers):
                aval = aval_on(values, var)
                if "host" in (aval.memory, memory):
                    host += aval.nbytes
                else:
                    device += aval.nbytes
    return device, host


def _values(step: StepTrace, program: Program | None) -> Mapping[Var, Value]:
    if program is None and step.arguments.mesh is not None:
        program = step_program(step)
    return {} if program is None else program.values


class _BackwardReaders:
    """The readers of variables in the backward passes that something depends on."""

    def __init__(self, levels: Levels, passes: Passes) -> None:
        self._levels = levels
        self._passes = passes
        self._needed = Needed(levels)

    def readers(self, level: Level, var: Var) -> list[tuple[Eqn, int]]:
        found = self._levels.readers(level, var)
        if not self._is_backward(level):
            found = [(eqn, i) for eqn, i in found if self._passes.of(eqn) == BACKWARD]
        return [(eqn, i) for eqn, i in found if self._needed.has(level, eqn)]

    def _is_backward(self, level: Level) -> bool:
        """Return whether a level is inside the backward pass."""
        if level.parent is None:
            return False
        return self._passes.of(level.eqn) == BACKWARD or self._is_backward(level.parent)


def _levels(levels: Levels, passes: Passes, level: Level) -> Iterator[Level]:
    """Yield a level and those below it where both passes of a gradient are side by side."""
    yield level
    for eqn in level.jaxpr.eqns:
        if passes.of(eqn) == BOTH:
            for which in range(len(levels.nests(eqn))):
                yield from _levels(levels, passes, levels.enter(level, eqn, which))


def _crossing(jaxpr: Jaxpr, passes: Passes) -> list[Var]:
    """Return the variables that the backward pass reads and that are residuals.

    They are there when a forward pass begins, or a forward pass makes them. A cotangent that is
    given to a `jax.vjp` is not among them: it is an input that the forward pass does not read, or
    it is made after the forward pass.
    """
    first: dict[Var, int] = {}  # read by a forward eqn
    last: dict[Var, int] = {}  # read by a backward eqn
    forwards = []
    made = [(v, -1, "") for v in (*jaxpr.constvars, *jaxpr.invars)]
    for at, eqn in enumerate(jaxpr.eqns):
        phase = passes.of(eqn)
        operands = [v for v in eqn.invars if not jax_compat.is_literal(v)]
        if phase == FORWARD:
            forwards.append(at)
            for v in operands:
                first.setdefault(v, at)
        elif phase == BACKWARD:
            last.update(dict.fromkeys(operands, at))
        made += [(v, at, phase) for v in eqn.outvars]

    def crosses(var: Var, at: int, phase: str) -> bool:
        if phase == FORWARD:
            return True
        if phase == UPDATE:
            # Untagged is also what a scan moves out of its body while it is differentiated.
            later = bisect.bisect(forwards, at)
            return later < len(forwards) and forwards[later] < last[var]
        # What one gradient makes may be what the next one is taken at.
        return first.get(var, last[var]) < last[var]

    return [v for v, at, phase in made if v in last and crosses(v, at, phase)]


@dataclass(frozen=True, slots=True)
class _Source:
    level: Level
    var: Var


def _source(levels: Levels, level: Level, var: Var) -> _Source:
    """Return what an input of a level is outside of it.

    For a loop's carry it is what enters the first trip.
    """
    while level.parent is not None and level.nest is not None and not jax_compat.is_literal(var):
        i = levels.invar(level, var)
        if i is None:
            break
        var, level = level.eqn.invars[level.nest.operands[i]], level.parent
    return _Source(level, var)


def _returned(level: Level) -> list[Var]:
    """Return the variables of a level that the step returns."""
    outvars = [v for v in level.jaxpr.outvars if not jax_compat.is_literal(v)]
    if level.parent is None or level.nest is None:
        return outvars
    if level.nest.kind != "call":
        return []
    above = set(_returned(level.parent))
    pairs = zip(level.jaxpr.outvars, level.nest.results, strict=True)
    return [
        v
        for v, i in pairs
        if i is not None and not jax_compat.is_literal(v) and level.eqn.outvars[i] in above
    ]
