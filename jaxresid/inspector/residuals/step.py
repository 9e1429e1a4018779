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
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping
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
from jaxresid.inspector.trace.taken_gradients import GradientPasses, TakenGradient, with_inner
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var
from jaxresid.results import Gradient, Residual, totals_of


def step_residuals(step: StepTrace, program: Program | None = None) -> tuple[Residual, ...]:
    """Return the residuals of all gradients in a training step.

    They are in program order, one gradient after the other; what a gradient inside of another keeps
    while that one goes forward is not among them. Arguments that a backward pass reads are, and so
    is what the step makes of its arguments before it differentiates (parameters cast to bfloat16,
    for example).

    Args:
      step: the trace of the training step.
      program: the program of the step, where there is one already; it knows what is split over a
        mesh.
    """
    crossings = _Crossings(step.levels, step.passes, step.kept)
    residuals_at = _residuals_at(step, crossings, _values(step, program))
    levels = _levels(step.levels, step.passes, step.tops[0])
    return tuple(itertools.chain.from_iterable(map(residuals_at, levels)))


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients of a program.

    Attributes:
      taken: those that it takes, with what they keep and those inside of them.
      untold: those of which it cannot be told what they keep, but for how many bytes.
    """

    taken: tuple[Gradient, ...] = ()
    untold: tuple[Gradient, ...] = ()


def gradients(step: StepTrace, program: Program | None = None) -> Gradients:
    """Return the gradients of a program, in program order.

    What one keeps is what `jax.vjp` of what it differentiates returns: also what nothing reads.

    Args:
      step: as for `step_residuals`.
      program: as for `step_residuals`.
    """
    values = _values(step, program)
    every = step.taken_gradients
    crossing = {gradient.path: _crossings_of(step, gradient) for gradient in with_inner(every)}
    # JAX moves parts of a gradient to where nothing of it crosses.
    told = {path[-1] for path, each in crossing.items() if each.makes_any(step.tops[0])}
    untold: list[Gradient] = []

    def taken(gradient: TakenGradient) -> Iterator[Gradient]:
        crossings = crossing[gradient.path]
        inside = tuple(itertools.chain.from_iterable(map(taken, gradient.inner)))
        is_told = crossings.makes_any(step.tops[0]) or not gradient.derivative.kept_nbytes
        if not is_told and gradient.derivative in told:
            yield from inside
            return
        totals = totals_of(_kept_of(step, crossings, values))
        shown = Gradient(
            gradient.function,
            gradient.location,
            gradient.trips,
            totals.computed_nbytes if is_told else gradient.derivative.kept_nbytes,
            totals.host_nbytes,
            totals.arguments_nbytes + totals.host_arguments_nbytes,
            inside,
        )
        if not is_told:
            untold.append(shown)
        yield shown

    found = tuple(itertools.chain.from_iterable(map(taken, every)))
    return Gradients(found, tuple(untold))


def residuals_of_gradient(
    step: StepTrace, gradient: TakenGradient, program: Program | None = None
) -> tuple[Residual, ...]:
    """Return what one gradient of a program keeps each time, also what nothing reads.

    Args:
      step: as for `step_residuals`.
      gradient: the gradient.
      program: as for `step_residuals`.
    """
    return _kept_of(step, _crossings_of(step, gradient), _values(step, program))


def _crossings_of(step: StepTrace, gradient: TakenGradient) -> _Crossings:
    passes = GradientPasses(gradient, step.levels, step.jaxpr)
    return _Crossings(step.levels, passes, gradient.derivative.kept, is_whole=True)


def _kept_of(
    step: StepTrace, crossings: _Crossings, values: Mapping[Var, Value]
) -> tuple[Residual, ...]:
    residuals_at = _residuals_at(step, crossings, values, all=True)

    def kept_at(level: Level) -> tuple[Residual, ...]:
        # One that several calls of a jitted function take is kept once at a time.
        below = map(kept_at, _inside(step.levels, crossings.passes, level))
        most = max(below, key=lambda kept: sum(r.nbytes for r in kept), default=())
        return (*residuals_at(level), *most)

    return kept_at(step.tops[0])


def _residuals_at(
    step: StepTrace, crossings: _Crossings, values: Mapping[Var, Value], *, all: bool = False
) -> Callable[[Level], tuple[Residual, ...]]:
    """Return what tells the residuals that cross at a level.

    Those are all that JAX keeps, or those that something depends on.
    """
    levels = step.levels
    behind = _BackwardReaders(levels, crossings)
    readers = behind.all if all else behind.readers
    numbering, free = Numbering(levels), FreeValues(levels)

    def residuals_at(level: Level) -> tuple[Residual, ...]:
        found = []
        marking = Marking(level, numbering.of(level.jaxpr), _returned(level), free, values)
        crossing = crossings.of(level.jaxpr).residuals
        read_by = {var: consumers(levels, level, var, readers) for var in crossing}
        kept = crossings.kept_in(level.jaxpr)
        listed = {kept.get(var) for var, read in read_by.items() if read}
        for var, read in read_by.items():
            if read or (all and var in kept and kept[var] not in listed):
                listed.add(kept.get(var))
                source = _source(levels, level, var)
                made = provenance(levels, source.level, source.var, step.inputs)
                found.append(marking.residual(var, made, read, is_unread=not read))
        return tuple(found)

    return residuals_at


def step_kept_nbytes(step: StepTrace, program: Program | None = None) -> tuple[int, int]:
    """Return the bytes of a step's computed residuals in device and in host memory.

    It is what `totals_of` adds up of `step_residuals`, without the lines of residuals and of what
    reads them.

    Args:
      step: as for `step_residuals`.
      program: as for `step_residuals`.
    """
    values = _values(step, program)
    levels, (top,) = step.levels, step.tops
    crossings = _Crossings(levels, step.passes, step.kept)
    behind = _BackwardReaders(levels, crossings)
    device = host = 0
    for level in _levels(levels, step.passes, top):
        for var in crossings.of(level.jaxpr).residuals:
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
    """The readers of variables in the backward passes."""

    def __init__(self, levels: Levels, crossings: _Crossings) -> None:
        self._levels = levels
        self._crossings = crossings
        self._needed = Needed(levels)

    def all(self, level: Level, var: Var) -> list[tuple[Eqn, int]]:
        """Return the readers of a variable, also those that nothing depends on."""
        found = self._levels.readers(level, var)
        if self._is_backward(level):
            return found
        return [(eqn, i) for eqn, i in found if i in self._crossings.reads(eqn)]

    def readers(self, level: Level, var: Var) -> list[tuple[Eqn, int]]:
        """Return the readers of a variable that something depends on."""
        found = self.all(level, var)
        return [(eqn, i) for eqn, i in found if self._needed.has(level, eqn)]

    def _is_backward(self, level: Level) -> bool:
        """Return whether a level is inside the backward pass."""
        if level.parent is None:
            return False
        is_backward = self._crossings.passes.of(level.eqn) == BACKWARD
        return is_backward or self._is_backward(level.parent)


def _levels(levels: Levels, passes: Passes, level: Level) -> Iterator[Level]:
    """Yield a level and those below it where both passes of a gradient are side by side."""
    yield level
    for inside in _inside(levels, passes, level):
        yield from _levels(levels, passes, inside)


def _inside(levels: Levels, passes: Passes, level: Level) -> Iterator[Level]:
    """Yield the levels directly below one at which both passes may be side by side."""
    for eqn in level.jaxpr.eqns:
        if passes.of(eqn) == BOTH:
            for which in range(len(levels.nests(eqn))):
                yield levels.enter(level, eqn, which)


class _Crossings:
    """What crosses from forward passes to backward passes in jaxprs.

    Args:
      levels: the descent into eqns.
      passes: the passes of the eqns.
      kept: what JAX keeps, as far as it stands in the jaxprs as the variables that it was.
      is_whole: whether that is all that crosses in a jaxpr in which some of it stands; else what a
        forward pass makes may cross as well.
    """

    def __init__(
        self, levels: Levels, passes: Passes, kept: frozenset[Var], *, is_whole: bool = False
    ) -> None:
        self._levels = levels
        self.passes = passes
        self.kept, self._is_whole = kept, is_whole
        self._of: dict[int, tuple[Jaxpr, _Crossing]] = {}
        self._kept: dict[int, dict[Var, Hashable]] = {}

    def of(self, jaxpr: Jaxpr) -> _Crossing:
        """Return what crosses in an open jaxpr."""
        known = self._of.get(id(jaxpr))
        if known is None:
            known = self._of[id(jaxpr)] = jaxpr, self._found(jaxpr)
        return known[1]

    def makes_any(self, top: Level) -> bool:
        """Return whether a backward pass reads what is made at a level or below it."""
        levels = _levels(self._levels, self.passes, top)
        return any(self.of(level.jaxpr).is_made for level in levels)

    def reads(self, eqn: Eqn) -> frozenset[int]:
        """Return the operands of an eqn that a backward pass reads in it.

        Of an eqn that holds both passes these are the residuals of a forward pass outside of it.
        """
        match self.passes.of(eqn):
            case phase if phase == BACKWARD:
                return frozenset(range(len(eqn.invars)))
            case phase if phase == BOTH:
                pairs = ((nest, self.of(nest.jaxpr)) for nest in self._levels.nests(eqn))
                return frozenset(
                    nest.operands[i] for nest, inside in pairs for i in inside.entering
                )
            case _:
                return frozenset()

    def _makes(self, eqn: Eqn) -> frozenset[int]:
        """Return the results of an eqn with both passes that a forward pass in it makes."""
        pairs = ((nest, self.of(nest.jaxpr)) for nest in self._levels.nests(eqn))
        return frozenset(
            result
            for nest, inside in pairs
            for i in inside.leaving
            if (result := nest.results[i]) is not None
        )

    def _residual_operands(self, eqn: Eqn) -> Iterator[Var]:
        """Yield the operands of an eqn with both passes that are residuals in it."""
        for nest in self._levels.nests(eqn):
            residuals = self.of(nest.jaxpr).residuals
            for v, i in zip(nest.jaxpr.invars, nest.operands, strict=True):
                if v in residuals:
                    yield eqn.invars[i]

    def kept_in(self, jaxpr: Jaxpr) -> Mapping[Var, Hashable]:
        """Return what JAX keeps, also as the results of the calls in a jaxpr that return it.

        Each is with what it is: a value that is kept and is the result of the forward pass as well
        is returned twice.
        """
        known = self._kept.get(id(jaxpr))
        if known is None:
            known = self._kept[id(jaxpr)] = {v: id(v) for v in self.kept}
            for eqn in jaxpr.eqns:
                for nest in self._levels.nests(eqn) if self.kept else ():
                    if nest.kind == "call":
                        inside = self.kept_in(nest.jaxpr)
                        for v, result in zip(nest.jaxpr.outvars, nest.results, strict=True):
                            if result is not None and not jax_compat.is_literal(v) and v in inside:
                                known[eqn.outvars[result]] = id(eqn), inside[v]
        return known

    def _found(self, jaxpr: Jaxpr) -> _Crossing:
        """Return what crosses in a jaxpr.

        Residuals are there when a forward pass begins, or a forward pass makes them. A cotangent
        that is given to a `jax.vjp` is not among them: it is an input that the forward pass does
        not read, or it is made after the forward pass.
        """
        first: dict[Var, int] = {}  # read by a forward eqn
        last: dict[Var, int] = {}  # read by a backward eqn
        inside: set[Var] = set()  # is a residual in an eqn with both passes
        forwards = []
        made = [(v, -1, "") for v in (*jaxpr.constvars, *jaxpr.invars)]
        for at, eqn in enumerate(jaxpr.eqns):
            phase = self.passes.of(eqn)
            if phase == FORWARD:
                forwards.append(at)
                for v in eqn.invars:
                    if not jax_compat.is_literal(v):
                        first.setdefault(v, at)
            for i in self.reads(eqn):
                if not jax_compat.is_literal(eqn.invars[i]):
                    last[eqn.invars[i]] = at
            ahead = self._makes(eqn) if phase == BOTH else frozenset()
            made += [(v, at, FORWARD if i in ahead else phase) for i, v in enumerate(eqn.outvars)]
            if phase == BOTH:
                inside.update(self._residual_operands(eqn))

        def crosses(var: Var, at: int, phase: str) -> bool:
            if phase == FORWARD:
                return True
            if phase == UPDATE:
                # Untagged is also what a scan moves out of its body while it is differentiated.
                later = bisect.bisect(forwards, at)
                return later < len(forwards) and forwards[later] < last[var]
            # What one gradient makes may be what the next one is taken at.
            return first.get(var, last[var]) < last[var]

        kept = self.kept_in(jaxpr)
        # A cotangent may be made before the forward pass, or be what that pass returns.
        is_known = any(v in kept for v, _, _ in made)

        def is_kept(var: Var, phase: str) -> bool:
            if jax_compat.is_ref_type(var.aval):
                return False
            may_differ = phase == UPDATE or (phase == FORWARD and self._is_whole)
            return not (is_known and may_differ) or var in kept

        def is_residual(var: Var, at: int, phase: str) -> bool:
            if self._is_whole and var in kept and phase != BACKWARD and var not in inside:
                return True  # JAX keeps some that its backward pass does not read
            if var not in last or not is_kept(var, phase):
                return False
            return crosses(var, at, phase) or (var in kept and phase != BACKWARD)

        residuals = tuple(v for v, at, phase in made if is_residual(v, at, phase))
        forward = {v for v, _, phase in made if phase == FORWARD}
        given = {*jaxpr.constvars, *jaxpr.invars}
        return _Crossing(
            residuals,
            any(v in last and v not in given for v in residuals),
            frozenset(i for i, v in enumerate(jaxpr.invars) if v in last.keys() - {*residuals}),
            frozenset(
                i
                for i, v in enumerate(jaxpr.outvars)
                if not jax_compat.is_literal(v) and v in forward
            ),
        )


@dataclass(frozen=True, slots=True)
class _Crossing:
    """What crosses from forward passes to backward passes in a jaxpr.

    Attributes:
      residuals: the variables that do.
      is_made: whether any of them that a backward pass reads is made in the jaxpr.
      entering: the invars, by number, that a backward pass reads and no forward pass before it:
        residuals from outside, or cotangents.
      leaving: the outvars, by number, that a forward pass makes.
    """

    residuals: tuple[Var, ...]
    is_made: bool
    entering: frozenset[int]
    leaving: frozenset[int]


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
