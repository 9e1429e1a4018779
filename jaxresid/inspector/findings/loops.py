"""Find loops whose bodies are not checkpointed and whose stacked residuals make up the peak."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.call.leaves import is_inexact
from jaxresid.inspector.findings.frameworks import checkpointed_loop
from jaxresid.inspector.findings.search import FindingContext, FindingSearch
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.phases import BACKWARD, BOTH, FORWARD
from jaxresid.inspector.jaxpr.primitives import MARKS, TRANSPARENT
from jaxresid.inspector.program.avals import aval_of
from jaxresid.inspector.trace.function import Trace
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.inspector.trace.traced import Traced
from jaxresid.jax_compat.jaxpr_types import Eqn, Var
from jaxresid.results import Computed, Finding, Location, Report

# Of the computed residuals, and of what the peak holds besides arguments and outputs.
_DOMINATES = 0.5
# Of the whole peak.
_MATTERS = 0.1


@dataclass(slots=True)
class Loop:
    """A scan and the bytes of the residuals that it stacks."""

    level: Level
    eqn: Eqn
    nbytes: int = 0


def unwrapped_bodies(context: FindingContext) -> Iterator[Finding]:
    """Yield findings of loops whose peak a checkpoint of the body would lower.

    They stack most of what is kept, and much more than their carries. There are none where the
    peak is not known.
    """
    report, traced = context.report, context.subject.trace
    kept, figures = report.totals.computed_nbytes, _peak_and_temporaries(report)
    if figures is None or not any(r.trips > 1 for r in report.residuals):
        return
    peak_nbytes, temporaries_nbytes = figures
    levels = traced.levels
    wrapped: set[tuple[str, int]] | None = None
    for loop in _stacking_loops(context):
        if loop.nbytes <= _DOMINATES * max(kept, temporaries_nbytes):
            continue
        nest = levels.nests(loop.eqn)[0]
        trips = nest.length or 1
        carried = trips * sum(
            aval_of(loop.eqn.invars[nest.operands[i]]).nbytes
            for i in nest.carries
            if is_inexact(loop.eqn.invars[nest.operands[i]].aval)
        )
        if loop.nbytes < _MATTERS * peak_nbytes or 2 * carried >= loop.nbytes:
            continue
        location = levels.location(loop.level, loop.eqn)
        if wrapped is None:
            wrapped = _wrapped(traced)
        if location is None or (location.file, location.line) in wrapped:
            continue
        source = levels.source(loop.level, loop.eqn)
        advice = f"checkpoint the body: {checkpointed_loop(loop.eqn, levels.frames)}"
        library = source.library
        if library is not None and _is_of_library(levels, loop, location):
            advice = (
                "the loop and its body are the library's"
                f" ({library.file}:{library.line} {library.function}): set its own option for"
                " checkpoints, if it has one; else call it for a part of the trips at a time, each"
                " call under jax.checkpoint"
            )
        yield Finding(
            "unwrapped-loop-body",
            f"the body of this loop of {trips} trips is not checkpointed: it stacks"
            f" {format_bytes(loop.nbytes)} of residuals, {loop.nbytes / kept:.0%} of what is kept,"
            f" where a checkpointed body keeps its carry, {format_bytes(carried)}",
            source,
            help=advice,
            measured={
                "nbytes": loop.nbytes,
                "carry_nbytes": carried,
                "trips": trips,
                "peak_nbytes": peak_nbytes,
            },
        )


def _is_of_library(levels: Levels, loop: Loop, location: Location) -> bool:
    """Return whether no line of the user's is in a loop's body, which is called at a location."""
    body = levels.enter(loop.level, loop.eqn, 0)
    return all(levels.location(body, eqn) == location for eqn in body.jaxpr.eqns)


def _peak_and_temporaries(report: Report) -> tuple[int, int] | None:
    """Return the bytes of the peak and of the temporaries there, by XLA where none are estimated.

    None where XLA was not asked either.
    """
    if report.peak is not None:
        return report.peak.nbytes, report.peak.temporaries_nbytes
    for compiled in report.compiled:
        if compiled.peak_nbytes is not None and compiled.temp_nbytes is not None:
            return compiled.peak_nbytes, compiled.temp_nbytes
    return None


def _stacking_loops(context: FindingContext) -> list[Loop]:
    """Return the outermost loops that stack residuals."""
    step, loss = context.subject.step, context.subject.holes.alone
    if step is not None:
        return _stacking_loops_of_step(step)
    return [] if loss is None else _stacking_loops_of_loss(context.report, loss)


def _stacking_loops_of_loss(report: Report, traced: Trace) -> list[Loop]:
    loops: dict[int, Loop] = {}
    top = Level(traced.forward)
    for var, residual in zip(traced.kept, report.residuals, strict=True):
        origin = residual.origin
        if residual.trips < 2 or not isinstance(origin, Computed):
            continue
        if residual.aval.memory != "device":
            continue
        stacker = _stacker(traced.levels, top, var)
        if stacker is not None:
            level, eqn = stacker
            loop = loops.setdefault(id(eqn), Loop(level, eqn))
            loop.nbytes += residual.nbytes
    return list(loops.values())


def _stacking_loops_of_step(step: StepTrace) -> list[Loop]:
    """Return the loops of forward passes that stack what the backward pass reads.

    They are looked for where both passes are in one jaxpr.
    """
    levels, passes, loops = step.levels, step.passes, []
    todo = [Level(step.jaxpr)]
    while todo:
        level = todo.pop()
        residuals = {
            v
            for eqn in level.jaxpr.eqns
            if passes.of(eqn) == BACKWARD
            for v in eqn.invars
            if not jax_compat.is_literal(v)
        }
        for eqn in level.jaxpr.eqns:
            phase, nests = passes.of(eqn), levels.nests(eqn)
            if phase == BOTH:
                todo += [levels.enter(level, eqn, which) for which in range(len(nests))]
            elif phase == FORWARD and nests and (nests[0].length or 1) > 1:
                stacked = [eqn.outvars[i] for i in nests[0].stacked]
                loops.append(
                    Loop(level, eqn, sum(aval_of(v).nbytes for v in stacked if v in residuals))
                )
    return loops


def _stacker(levels: Levels, level: Level, var: Var) -> tuple[Level, Eqn] | None:
    """Return the scan of several trips that stacks a residual, with its level; None without one."""
    while not jax_compat.is_literal(var):
        producer = levels.producer(level, var)
        if producer is None:
            return None
        eqn, i = producer
        nests = levels.nests(eqn)
        if nests:
            nest = nests[0]
            if i in nest.stacked and (nest.length or 1) > 1:
                return level, eqn
            level, var = levels.enter(level, eqn, 0), nest.jaxpr.outvars[nest.outvar(i)]
        elif jax_compat.primitive_name(eqn) in TRANSPARENT | MARKS | {"optimization_barrier"}:
            var = eqn.invars[i if len(eqn.outvars) > 1 else 0]
        else:
            return None
    return None


def _wrapped(traced: Traced) -> set[tuple[str, int]]:
    """Return the lines of loops that are inside a checkpoint, or hold one."""
    levels = traced.levels
    lines: set[tuple[str, int]] = set()

    def walk(level: Level, inside: bool) -> bool:
        """Return whether this jaxpr holds a checkpoint; collect the lines of its loops."""
        holds = False
        for eqn in level.jaxpr.eqns:
            name = jax_compat.primitive_name(eqn)
            within = inside or name == "remat"
            below = [
                walk(levels.enter(level, eqn, which), within)
                for which in range(len(levels.nests(eqn)))
            ]
            if name == "scan" and (inside or any(below)):
                location = levels.location(level, eqn)
                if location is not None:
                    lines.add((location.file, location.line))
            holds = holds or name == "remat" or any(below)
        return holds

    walk(Level(traced.written), False)
    return lines


SEARCH = FindingSearch(["unwrapped-loop-body"], "code", 2, unwrapped_bodies)
