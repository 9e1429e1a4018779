"""Report the peak of a program: how much it takes, where, and what is live there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.phases import BACKWARD, FORWARD, RECOMPUTE, UPDATE
from jaxresid.inspector.jaxpr.primitives import TRANSPARENT, of_kind
from jaxresid.inspector.memory.curve import curve_of
from jaxresid.inspector.memory.liveness import Buffer, Timeline, timeline
from jaxresid.inspector.memory.lowered import Lowered
from jaxresid.inspector.program.avals import aval_of_value
from jaxresid.inspector.program.build import Program, all_ops
from jaxresid.inspector.program.ops import Block, InlineContext, Op, Value
from jaxresid.inspector.trace.traced import Traced
from jaxresid.layer_paths import folded_scopes, scope_key
from jaxresid.model import NOWHERE, LiveValue, Location, Peak, Source

_IN_JAX = re.compile(r"[/\\]jax[/\\]_src[/\\]")
# What these take while they run is between them and the device.
_OPAQUE = of_kind("foreign") | {"io_callback"}


class OpSources:
    """A finder of the places that ops come from.

    Args:
      traced: the trace that the ops come from. The primal jaxpr of a function tells where the
        checkpoints are that its forward pass no longer shows.
    """

    def __init__(self, traced: Traced) -> None:
        self._levels = traced.levels
        self._tops = {id(level.jaxpr): level for level in traced.tops}
        self._found: dict[InlineContext, Level] = {}
        self._sources: dict[tuple[InlineContext, int], Source] = {}

    def location(self, op: Op) -> Location | None:
        """Return the user's line that an op comes from; None where none is known."""
        return self._levels.location(self._level(op.context), op.eqn)

    def source(self, op: Op) -> Source:
        """Return where an op comes from."""
        key = op.context, id(op.eqn)
        found = self._sources.get(key)
        if found is None:
            level = self._level(op.context)
            found = self._sources[key] = self._levels.source(level, op.eqn)
        return found

    def _level(self, context: InlineContext) -> Level:
        known = self._found.get(context)
        if known is None:
            if context.parent is None:
                top = context.top
                known = self._tops.get(id(top)) or self._tops.setdefault(id(top), Level(top))
            else:
                above = self._level(context.parent)
                known = self._levels.enter(above, context.eqn, context.which)
            self._found[context] = known
        return known


def peak_nbytes(lowered: Lowered) -> int:
    """Return the estimated peak in bytes alone: arguments + outputs + temporaries - aliased."""
    if lowered.whole is not None:
        lowered = Lowered(lowered.whole.program, lowered.profile, lowered.whole.block)
    return _outside(lowered.program) + timeline(lowered).peak_nbytes


@dataclass(frozen=True, slots=True)
class EstimatedPeak:
    """An estimated peak.

    Attributes:
      peak: the peak.
      live: what is live there, one by one, where `peak` has equal values as one.
    """

    peak: Peak
    live: tuple[LiveValue, ...]


def peak(lowered: Lowered, places: OpSources) -> EstimatedPeak:
    """Return the estimated peak with its place and what is live there."""
    program, found = lowered.program, timeline(lowered)
    outside = _outside(program)
    each = _live(program, found, places)
    live = _folded(each)
    breakdown: dict[str, int] = {}
    for value in live:
        breakdown[value.kind] = breakdown.get(value.kind, 0) + value.nbytes
    op = found.points[found.at].op if found.points else None
    curve, at, phases = curve_of(found, outside)
    result = Peak(
        nbytes=outside + found.peak_nbytes,
        profile=lowered.profile.name,
        source=NOWHERE if op is None else places.source(op),
        primitive=None if op is None else op.name,
        phase=FORWARD if op is None else op.phase,
        arguments_nbytes=_arguments(program),
        outputs_nbytes=_outputs(program),
        temporaries_nbytes=found.peak_nbytes,
        aliased_nbytes=_aliased(program),
        host_nbytes=_outside(program, "host") + found.host_nbytes,
        live=live,
        breakdown=tuple(sorted(breakdown.items(), key=lambda item: -item[1])),
        curve=curve,
        curve_at=at,
        uncounted=uncounted(program),
        phases=phases,
    )
    return EstimatedPeak(result, each)


def uncounted(program: Program) -> tuple[str, ...]:
    """Return the primitives of a program whose memory is not known."""
    return tuple(sorted({op.name for op in all_ops(program.block.ops)} & _OPAQUE))


def _outside(program: Program, memory: str = "device") -> int:
    return _arguments(program, memory) + _outputs(program, memory) - _aliased(program, memory)


def _arguments(program: Program, memory: str = "device") -> int:
    return sum(v.nbytes for v in program.block.inputs if v.memory == memory)


def _outputs(program: Program, memory: str = "device") -> int:
    """Return the bytes of the outputs.

    Every output is a buffer of its own, even one that is returned twice.
    """
    return sum(v.size * v.itemsize for v in program.block.outputs if v.memory == memory)


def _aliased(program: Program, memory: str = "device") -> int:
    """Return the bytes of donated arguments that an output of their shape and type takes over."""
    donated: dict[tuple[tuple[int, ...], str], int] = {}
    for v, role in zip(program.block.inputs, program.inputs, strict=True):
        if role.donated and v.memory == memory:
            donated[v.shape, v.dtype] = donated.get((v.shape, v.dtype), 0) + 1
    total = 0
    for v in program.block.outputs:
        if donated.get((v.shape, v.dtype), 0) > 0 and v.memory == memory:
            donated[v.shape, v.dtype] -= 1
            total += v.size * v.itemsize
    return total


def _live(program: Program, timeline: Timeline, places: OpSources) -> tuple[LiveValue, ...]:
    """Return what is live at the peak, one by one."""
    kept = _kept(program)
    each: list[LiveValue] = []
    for v, role in zip(program.block.inputs, program.inputs, strict=True):
        if v.nbytes and v.memory == "device" and not role.donated:
            each.append(LiveValue(role.kind, v.nbytes, aval_of_value(v), path=role.path))
    made = {v: op for op in program.block.ops for v in op.results}
    for v, role in zip(program.block.outputs, program.outputs, strict=True):
        if v.memory != "device" or not v.size * v.itemsize:
            continue
        op = made.get(v)
        phase = op.phase if op else None
        op = _maker(op, v) if op else None
        each.append(
            LiveValue(
                role.kind,
                v.size * v.itemsize,
                aval_of_value(v),
                primitive=op.name if op else None,
                path=role.path,
                source=places.source(op) if op else NOWHERE,
                phase=phase,
            )
        )
    aliased = _aliased(program)
    donated = [r for r in program.inputs if r.donated]
    if donated:
        # Donated arguments and the outputs that take them over are the same bytes, named once.
        extra = sum(
            v.nbytes
            for v, r in zip(program.block.inputs, program.inputs, strict=True)
            if r.donated and v.memory == "device"
        )
        if extra - aliased:
            each.append(LiveValue("argument", extra - aliased, None))
    at = timeline.points[timeline.at].op.phase if timeline.points else FORWARD
    each += [_temporary(b, kept, places, at) for b in timeline.live if b.nbytes]
    return tuple(each)


def _temporary(
    buffer: Buffer, kept: dict[str, set[Value]], places: OpSources, at: str
) -> LiveValue:
    """Return what a buffer is to a reader, while an op of the phase `at` runs.

    What the forward pass made and what is live in the backward pass is kept for it, even if the
    residual is only computed from it.
    """
    crosses = buffer.op.phase == FORWARD and at in (RECOMPUTE, BACKWARD)
    kind = "residual" if crosses else "temporary"
    for name, values in kept.items():
        if buffer.value in values:
            kind = name
    op = _maker(buffer.op, buffer.value)
    return LiveValue(
        kind,
        buffer.nbytes,
        aval_of_value(buffer.value),
        primitive=op.name,
        source=places.source(op),
        phase=buffer.op.phase,
    )


def _maker(op: Op, value: Value) -> Op:
    """Return the op that makes a value; for a loop's result, the one in its body."""
    while op.bodies and value in op.results:
        out = op.bodies[0].outputs[op.results.index(value)]
        inside = next((o for o in op.bodies[0].ops if out in o.results), None)
        if inside is None:
            break
        op, value = inside, out
    return op


def _kept(program: Program) -> dict[str, set[Value]]:
    """Return the temporaries that one pass makes and another reads."""
    residuals, gradients = set(program.residuals), set[Value]()
    _add_kept(program.block, residuals, gradients)
    return {"residual": residuals, "gradient": gradients}


def _add_kept(block: Block, residuals: set[Value], gradients: set[Value]) -> None:
    ahead = {v for op in block.ops if op.phase == FORWARD for v in op.results}
    behind = {v for op in block.ops if op.phase == BACKWARD for v in op.results}
    for op in block.ops:
        if op.phase in (RECOMPUTE, BACKWARD):
            residuals.update(ahead.intersection(op.operands))
        elif op.phase == UPDATE:
            gradients.update(behind.intersection(op.operands))
        for body in op.bodies:
            _add_kept(body, residuals, gradients)
    # A buffer goes by the value that was first in it, before it was transposed or reshaped.
    for op in reversed(block.ops):
        if op.name in TRANSPARENT:
            for kept in (residuals, gradients):
                if op.results[0] in kept:
                    kept.add(op.operands[0])


def _folded(each: Sequence[LiveValue]) -> tuple[LiveValue, ...]:
    """Return equal values as one, the biggest first."""
    groups: dict[tuple[object, ...], list[LiveValue]] = {}
    for v in each:
        path = v.path if v.primitive is None else None
        source = replace(v.source, scope=scope_key(v.source.scope), library=_call(v.source.library))
        if v.kind == "output":  # an optimizer has a line for each kind of its state
            source = Source(v.location)
        key = (v.kind, v.aval, v.primitive, source, v.phase, path)
        groups.setdefault(key, []).append(v)
    rows = [
        LiveValue(
            g[0].kind,
            sum(v.nbytes for v in g),
            g[0].aval,
            len(g),
            g[0].primitive,
            g[0].path,
            _common([v.source for v in g]),
            g[0].phase,
        )
        for g in groups.values()
    ]
    return tuple(sorted(rows, key=lambda v: -v.nbytes))


def _call(library: Location | None) -> Location | None:
    """Return a call into a library in a form to compare.

    In a call of one of JAX's functions, such as jax.nn.gelu, the lines inside do not count.
    """
    if library is None or not _IN_JAX.search(library.file):
        return library
    return replace(library, line=0, column=None, code="")


def _common(sources: Sequence[Source]) -> Source:
    """Return what the sources of equal values have in common."""
    first = sources[0]
    return Source(
        first.location,
        first.library if len({_call(s.library) for s in sources}) == 1 else None,
        first.caller if len({s.caller for s in sources}) == 1 else None,
        folded_scopes(s.scope for s in sources),
    )
