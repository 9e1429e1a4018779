"""Find activations that each device keeps whole, and what one sharding constraint would do."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxresid.base.errors import RetraceError
from jaxresid.base.text.units import format_bytes
from jaxresid.base.thresholds import WORTH_SAYING_ON_MESH
from jaxresid.inspector.call.splits import Split, parts, split_of_text, text
from jaxresid.inspector.findings.logits import may_be_in_vector_memory
from jaxresid.inspector.findings.proposals import Proposal, proposal, rewrite_effect
from jaxresid.inspector.findings.search import FindingContext, FindingSearch
from jaxresid.inspector.holes.loss import LossHole
from jaxresid.inspector.memory.intervals import kind_of
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.program.collectives import sent_nbytes, without
from jaxresid.inspector.trace.function import Trace
from jaxresid.inspector.trace.retracing import retracing
from jaxresid.inspector.variants.rewrites.effects import Figures, Rewrites, figures_of
from jaxresid.inspector.variants.rewrites.split_values import constrained, made_on
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import Computed, Finding, Location, Report, Residual

# Of the lines that keep whole values those with the most are tried, and of each value these dims:
# each trial differentiates the program once more.
_LINES, _DIMS = 3, 3
# Times what is sent without it; what takes more exchanges is not worth its peak, which XLA then had
# higher in one of two programs (5.6 for 3.9 GiB on a v5e, jaxlib 0.10.2).
_MOST_SENT = 1.5
# What differs by less counts as the same: of peaks, and then of what devices send.
_SAME = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """The program with what one line makes split further.

    Attributes:
      value: what the line makes, as one trip of the loops around it has it.
      axis: the axis that splits it further.
      dim: the dim that it splits.
      split: how it is split then.
      jaxpr: the rewritten open jaxpr.
      sent_nbytes: what one device sends.
    """

    line: _Line
    value: _Value
    axis: str
    dim: int
    split: Split
    jaxpr: Jaxpr
    trace: Trace
    peak_nbytes: int
    sent_nbytes: float


def whole_activations(context: FindingContext) -> Iterator[Proposal]:
    """Yield the finding of the constraint that takes most off the peak, if it is worth it."""
    report, subject, peak = context.report, context.subject, context.peak_nbytes
    loss, rewrites = subject.holes.alone, subject.rewrites
    assert loss is not None
    assert report.mesh is not None
    assert subject.split_again is not None
    if rewrites is None or may_be_in_vector_memory(peak, subject.profile):
        return
    kind = kind_of(subject.program)
    if kind.is_checkpointed and not kind.has_loop:
        # XLA may keep what the gradients of several such layers are made of: of four constraints it
        # confirmed two, and with one its peak rose from 1.19 to 1.95 GiB (v5e, jaxlib 0.10.2).
        return
    sizes = {axis: size for axis, size in report.mesh.axes if size > 1}
    least = WORTH_SAYING_ON_MESH * peak
    lines = _lines(report.residuals, sizes)
    if sum(line.whole_nbytes for line in lines) < least:
        return
    hole, values = LossHole(loss), _values(report.residuals)
    sent = sent_nbytes(subject.program.block, subject.program.trips)
    trials = [
        trial
        for line in lines[:_LINES]
        for trial in _trials(line, values, hole, sizes, subject.profile)
        if trial.sent_nbytes <= _MOST_SENT * sent
    ]
    if not trials:
        return
    lowest = min(trial.peak_nbytes for trial in trials)
    low = [t for t in trials if t.peak_nbytes <= lowest * (1 + _SAME)]
    least_sent = min(trial.sent_nbytes for trial in low)
    best = next(t for t in low if t.sent_nbytes <= least_sent * (1 + _SAME))
    if best.peak_nbytes > peak - least:
        return
    trace, reason = subject.split_again(best.trace)
    if reason is not None:
        return
    program = hole.program(trace)
    figures = figures_of(hole, trace, program, subject.profile)
    if figures.peak_nbytes <= peak - least:
        after = sent_nbytes(program.block, program.trips)
        finding = _finding(report, rewrites, best, figures, (sent, after))
        yield proposal(finding, rewrites, 0, best.jaxpr)


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """A source line that keeps values which could be split further.

    Attributes:
      residuals: what it keeps whole along some axis, the largest first.
      axes: the axes along which it is whole.
    """

    location: Location
    residuals: tuple[Residual, ...]
    axes: tuple[str, ...]
    whole_nbytes: int


def _lines(residuals: Sequence[Residual], sizes: Mapping[str, int]) -> list[_Line]:
    """Return the lines that keep what could be split further, those with the most first."""
    by_line = defaultdict[Location, list[Residual]](list)
    axes = defaultdict[Location, set[str]](set)
    for residual in residuals:
        origin, is_on_device = residual.origin, residual.aval.memory == "device"
        if not isinstance(origin, Computed) or origin.location is None or not is_on_device:
            continue
        if whole := _whole_along(_value(residual), sizes):
            by_line[origin.location].append(residual)
            axes[origin.location] |= whole
    lines = [
        _Line(
            location,
            tuple(sorted(whole_residuals, key=lambda r: -r.nbytes)),
            tuple(axis for axis in sizes if axis in axes[location]),
            sum(r.nbytes for r in whole_residuals),
        )
        for location, whole_residuals in by_line.items()
    ]
    return sorted(lines, key=lambda line: -line.whole_nbytes)


@dataclass(frozen=True, slots=True)
class _Value:
    """A value that is kept, as one trip of the loops around it has it.

    Attributes:
      shape: its shape on all devices.
    """

    dtype: str
    shape: tuple[int, ...]
    split: Split

    @property
    def text(self) -> str:
        """The value as `bfloat16[32,2048]`."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def _value(residual: Residual) -> _Value:
    shape, stacked = residual.aval.shape, 1
    while stacked < residual.trips and shape:
        stacked *= shape[0]
        shape = shape[1:]
    whole = split_of_text(residual.aval.spec, len(residual.aval.shape))
    return _Value(residual.aval.dtype, shape, whole[len(whole) - len(shape) :])


def _values(residuals: Sequence[Residual]) -> dict[tuple[int, ...], _Value]:
    """Return of each shape that is kept how the largest residual of it is split."""
    values: dict[tuple[int, ...], _Value] = {}
    for residual in sorted(residuals, key=lambda r: -r.nbytes):
        if isinstance(residual.origin, Computed):
            value = _value(residual)
            values.setdefault(value.shape, value)
    return values


def _whole_along(value: _Value, sizes: Mapping[str, int]) -> set[str]:
    """Return the axes along which a value is whole, and which divide one of its dims."""
    used = {axis for axes in value.split for axis in axes}
    return {axis for axis in sizes.keys() - used if any(_splits(value, axis, sizes))}


def _splits(value: _Value, axis: str, sizes: Mapping[str, int]) -> Iterator[tuple[int, Split]]:
    """Yield the dims of a value that an axis may split, and how the value is split then."""
    rest = without(value.split, {axis})
    # Dims that nothing else splits first, as people write it.
    for d in sorted(range(len(rest)), key=lambda d: len(rest[d])):
        axes = (*rest[d], axis)
        split = (*rest[:d], axes, *rest[d + 1 :])
        if value.shape[d] % parts(axes, sizes) == 0 and split != value.split:
            yield d, split


def _trials(
    line: _Line,
    values: Mapping[tuple[int, ...], _Value],
    hole: LossHole,
    sizes: Mapping[str, int],
    profile: Profile,
) -> Iterator[_Trial]:
    """Yield the program with what a line makes split further, each value in each way."""
    traced, jaxpr = hole.traced, hole.traced.written
    for shape, sites in made_on(traced.levels, jaxpr, line.location).items():
        # How other values are split is not known.
        kept = values.get(shape)
        if kept is None:
            continue
        value = replace(kept, dtype=sites[0].dtype)
        ways = (
            (axis, *way)
            for axis in line.axes
            for way in itertools.islice(_splits(value, axis, sizes), _DIMS)
        )
        for axis, dim, split in ways:
            changed = constrained(jaxpr, sites, traced.arguments.mesh, split)
            try:
                with retracing("a constraint"):
                    trace = hole.trace({0: changed})
            except RetraceError:
                continue
            program = hole.program(trace)
            nbytes = peak_nbytes(lower(program, profile))
            sent = sent_nbytes(program.block, program.trips)
            yield _Trial(line, value, axis, dim, split, changed, trace, nbytes, sent)


def _finding(
    report: Report,
    rewrites: Rewrites,
    best: _Trial,
    figures: Figures,
    sent: tuple[float, float],
) -> Finding:
    origin = best.line.residuals[0].origin
    assert isinstance(origin, Computed)
    nbytes = sum(r.nbytes for r in best.line.residuals)
    effect, measured = rewrite_effect(report, rewrites, figures)
    before, after = map(round, sent)
    spec = ", ".join(map(_entry, best.split[: max(d for d, a in enumerate(best.split) if a) + 1]))
    return Finding(
        "activations-left-whole",
        f"{format_bytes(nbytes)} that this line keeps are whole along `{best.axis}`. With the"
        f" {best.value.text} that it makes split along that, in dimension {best.dim}, the {effect};"
        f" each device sends {format_bytes(after)} instead of {format_bytes(before)}",
        origin.source,
        help=f"constrain the {best.value.text}:"
        " jax.lax.with_sharding_constraint(value, jax.sharding.NamedSharding(mesh,"
        f" jax.sharding.PartitionSpec({spec})))",
        measured={
            "nbytes": nbytes,
            "axis": best.axis,
            "dimension": best.dim,
            "spec": text(best.split),
            "sent_nbytes": after,
            "sent_before_nbytes": before,
            **measured,
        },
    )


def _entry(axes: tuple[str, ...]) -> str:
    """Return the axes of one dim as in a `PartitionSpec`."""
    if not axes:
        return "None"
    return repr(axes[0]) if len(axes) == 1 else repr(axes)


def _is_split_by_compiler(context: FindingContext) -> bool:
    loss, is_asked = context.subject.holes.alone, context.subject.split_again is not None
    return context.has_peak and is_asked and loss is not None and bool(loss.pieces)


SEARCH = FindingSearch(
    ["activations-left-whole"], "proposal", 100, whole_activations, _is_split_by_compiler
)
