"""Report the peak of a program: how much it takes, where, and what is live there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxresid import jax_compat
from jaxresid.base.errors import RetraceError
from jaxresid.base.text.layer_paths import folded_scopes, scope_key
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.phases import PROGRAM
from jaxresid.inspector.jaxpr.primitives import PRIMITIVES, of_kind
from jaxresid.inspector.memory.curve import curve_of
from jaxresid.inspector.memory.live_values import (
    Temporaries,
    aliased_nbytes,
    arguments_nbytes,
    held_inputs,
    held_outputs,
    outputs_nbytes,
    outside_nbytes,
)
from jaxresid.inspector.memory.liveness import timeline
from jaxresid.inspector.memory.lowered import Lowered
from jaxresid.inspector.program.build import Program, all_ops, implementation
from jaxresid.inspector.program.ops import InlineContext, Op
from jaxresid.inspector.trace.traced import Traced
from jaxresid.results import NOWHERE, LiveKind, LiveValue, Location, Peak, Source

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
        self._stacks: dict[tuple[InlineContext, int], tuple[Location, ...]] = {}

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

    def stack(self, op: Op) -> tuple[Location, ...]:
        """Return the user's and the libraries' frames of an op, outermost first."""
        key = op.context, id(op.eqn)
        found = self._stacks.get(key)
        if found is None:
            found = self._stacks[key] = self._levels.stack(self._level(op.context), op.eqn)
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
    return outside_nbytes(lowered.program) + timeline(lowered).peak_nbytes


@dataclass(frozen=True, slots=True)
class EstimatedPeak:
    """An estimated peak.

    Attributes:
      peak: the peak.
      live: what is live there, one by one, where `peak` has equal values as one.
      temporaries: each temporary that is live there, with the op that makes it.
    """

    peak: Peak
    live: tuple[LiveValue, ...]
    temporaries: tuple[tuple[LiveValue, Op], ...]


def peak(lowered: Lowered, places: OpSources) -> EstimatedPeak:
    """Return the estimated peak with its place and what is live there."""
    program, found = lowered.program, timeline(lowered)
    outside = outside_nbytes(program)
    told = Temporaries(program, found, places.source)
    temporaries = [told.value(span) for span in found.live]
    each = (
        *held_inputs(program),
        *(value for value, _ in held_outputs(program, places.source)),
        *(value for value, _ in temporaries),
    )
    live = _folded(each)
    breakdown: dict[LiveKind, int] = {}
    for value in live:
        breakdown[value.kind] = breakdown.get(value.kind, 0) + value.nbytes
    op = found.points[found.at].op if found.points else None
    curve, at, phases = curve_of(found, outside)
    result = Peak(
        nbytes=outside + found.peak_nbytes,
        profile=lowered.profile.name,
        source=NOWHERE if op is None else places.source(op),
        primitive=None if op is None else op.name,
        phase=PROGRAM if op is None else op.phase,
        arguments_nbytes=arguments_nbytes(program),
        outputs_nbytes=outputs_nbytes(program),
        temporaries_nbytes=found.peak_nbytes,
        aliased_nbytes=aliased_nbytes(program),
        host_nbytes=outside_nbytes(program, "host") + found.host_nbytes,
        live=live,
        breakdown=tuple(sorted(breakdown.items(), key=lambda item: -item[1])),
        curve=curve,
        curve_at=at,
        uncounted=uncounted(program),
        phases=phases,
    )
    return EstimatedPeak(result, each, tuple(temporaries))


def uncounted(program: Program) -> tuple[str, ...]:
    """Return the primitives of a program whose memory is not known.

    One that no row is of is a library's, or of a JAX that is newer than this.
    """
    each = {op.name: op for op in all_ops(program.block.ops)}
    return tuple(sorted((each.keys() & _OPAQUE) | _unknown(each).keys()))


def untraced(program: Program) -> tuple[str, ...]:
    """Return, for the primitives of libraries whose Python cannot be traced, why not, in words."""
    found = []
    for name, op in sorted(_unknown({op.name: op for op in all_ops(program.block.ops)}).items()):
        try:
            implementation(op.eqn)
        except RetraceError as e:
            found.append(
                f"what {name} takes is not known, as JAX cannot trace the Python that it is"
                f" implemented by: {e}"
            )
    return tuple(found)


def _unknown(ops: Mapping[str, Op]) -> dict[str, Op]:
    """Return those of some ops that are of no primitive of JAX's."""
    return {
        name: op
        for name, op in ops.items()
        if not op.bodies and jax_compat.primitive_name(op.eqn) not in PRIMITIVES
    }


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
