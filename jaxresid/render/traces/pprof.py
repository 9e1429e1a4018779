"""Results as profiles for pprof: bytes and FLOPs by the stacks of the code that they come from."""

from __future__ import annotations

import functools
import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jaxresid.base.text.safe_text import visible
from jaxresid.render.traces.wire import data, integer, packed
from jaxresid.results import (
    Aval,
    Checkpoint,
    Compiled,
    CompiledBuffer,
    CompiledReport,
    Lifetime,
    Location,
    Report,
    Residual,
)

_KEPT: Final = ("kept", "bytes")
_PEAK: Final = ("peak", "bytes")
_RECOMPUTE: Final = ("recompute", "FLOPs")
# The numbers of fields of profile.proto, by message.
_PROFILE: Final = {
    **{"sample_type": 1, "sample": 2, "mapping": 3, "location": 4, "function": 5},
    **{"string_table": 6, "comment": 13, "default_sample_type": 14},
}


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of code in a function; without a file it stands for what no code makes."""

    function: str
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """What comes from one stack.

    Attributes:
      stack: the frames, outermost first.
      values: the figures by the name of their type; what is not there is 0.
      labels: what else is known, by name.
    """

    stack: tuple[Frame, ...]
    values: Mapping[str, int]
    labels: Mapping[str, str]


@functools.singledispatch
def profile(value: object) -> bytes:
    """Return a result as a profile, compressed.

    Raises:
      TypeError: there is no profile of it.
      ValueError: it was made without what the profile is of.
    """
    raise TypeError(f"there is no profile of a value of type {type(value).__name__}")


@profile.register
def profile_of_report(report: Report) -> bytes:
    """Return a report as a profile, compressed.

    Its types are the bytes kept for the backward pass, the bytes at the peak (the estimate's, else
    XLA's, if it was asked) and the FLOPs that each checkpoint adds; without a gradient it has the
    bytes at the peak alone.

    Args:
      report: the report; the estimate's bytes at the peak are those of its lifetimes.

    Raises:
      ValueError: it has an estimate and no lifetimes.
    """
    if report.peak is not None and not report.lifetimes:
        raise ValueError(
            "the stacks of what is live at the peak are not known; inspect with lifetimes=True"
        )
    samples = [_kept(each) for each in report.residuals if _is_kept(each)]
    said = "nothing is known of the peak"
    if report.lifetimes:
        first = report.lifetimes[0]
        samples += [_live(each) for each in first.live_at(first.at)]
        said = "peak: an estimate"
    elif report.compiled and report.compiled[0].buffers:
        samples += _buffers(report.compiled[0])
        said = "peak: XLA's"
    samples += [_recompute(each) for each in report.checkpoints if each.recompute_flops]
    comments = [f"{report.target.name} on {report.place.name}, JAX {report.jax.version}", said]
    types = (_KEPT, _PEAK, _RECOMPUTE) if report.target.has_gradient else (_PEAK,)
    return _profile(report.target.name, types, _PEAK, samples, comments)


@profile.register
def profile_of_compiled(result: CompiledReport) -> bytes:
    """Return what XLA has live at the peak of a program as a profile, compressed.

    Args:
      result: the result, for one place, of which XLA's buffers are known.

    Raises:
      ValueError: it is of several places, or the buffers are not known.
    """
    if len(result.compiled) != 1:
        raise ValueError("a profile is of one place: compile for one")
    (compiled,) = result.compiled
    if not compiled.buffers:
        raise ValueError(
            f"the compiler of {compiled.on} does not list its buffers, of which a profile is made;"
            " that of a report has the estimate's"
        )
    comments = [f"{result.target.name} on {compiled.on}, {compiled.compiler}", "peak: XLA's"]
    return _profile(result.target.name, (_PEAK,), _PEAK, list(_buffers(compiled)), comments)


def _is_kept(residual: Residual) -> bool:
    return residual.origin.kind == "computed" and residual.aval.memory == "device"


def _kept(residual: Residual) -> Sample:
    origin = residual.origin
    assert origin.kind == "computed"
    stack = tuple(map(_frame, origin.stack))
    labels = {
        "kind": "residual",
        "primitive": origin.primitive,
        "module": origin.source.scope,
        "checkpoint_name": origin.name or "",
        **_array(residual.aval),
    }
    return Sample(stack or (Frame("<no line known>"),), {"kept": residual.nbytes}, labels)


def _live(value: Lifetime) -> Sample:
    live = value.live
    stack = tuple(map(_frame, value.stack))
    if not stack:
        outer = Frame(f"<{live.kind}>")
        stack = (outer, Frame(live.path)) if live.path else (outer,)
    labels = {
        "kind": live.kind,
        "primitive": live.primitive or "",
        "module": live.source.scope,
        "pass": live.phase or "",
        **({} if live.aval is None else _array(live.aval)),
    }
    return Sample(stack, {"peak": live.nbytes}, labels)


def _buffers(compiled: Compiled) -> Iterator[Sample]:
    """Yield XLA's buffers that are live at the peak; those that are not listed as one."""
    listed = [each for each in compiled.buffers if each.memory == "device"]
    yield from map(_buffer, listed)
    left = (compiled.live_nbytes or 0) - sum(each.nbytes for each in listed)
    if left > 0:
        yield Sample((Frame("<buffers that are not listed>"),), {"peak": left}, {})


def _buffer(buffer: CompiledBuffer) -> Sample:
    source = buffer.source
    frames = buffer.origin.stack if buffer.origin is not None else ()
    if not frames:
        each = (source.location, source.caller, source.library)
        frames = tuple(place for place in each if place is not None)
    stack = tuple(map(_frame, frames))
    if not stack:
        outer = Frame(f"<{buffer.kind}>")
        stack = (outer, Frame(buffer.residual)) if buffer.residual else (outer,)
    labels = {
        "kind": buffer.kind,
        "primitive": buffer.opcode,
        "module": source.scope,
        "shape": buffer.shape,
    }
    return Sample(stack, {"peak": buffer.nbytes}, labels)


def _recompute(checkpoint: Checkpoint) -> Sample:
    source, defined = checkpoint.source, checkpoint.defined
    stack = [_frame(place) for place in (source.location, source.library) if place is not None]
    if defined is None:
        stack.append(Frame(checkpoint.function))
    else:
        stack.append(Frame(checkpoint.function, defined.file, defined.line))
    labels = {
        "kind": "checkpoint",
        "policy": checkpoint.policy or "",
        "verdict": checkpoint.verdict.value,
        "module": source.scope,
    }
    return Sample(tuple(stack), {"recompute": checkpoint.recompute_flops or 0}, labels)


def _frame(place: Location) -> Frame:
    # XLA tells the line of what it makes itself, and no function.
    return Frame(place.function or place.file, place.file, place.line)


def _array(aval: Aval) -> dict[str, str]:
    return {"dtype": aval.dtype, "shape": ",".join(map(str, aval.shape)) or "scalar"}


def _profile(
    target: str,
    types: Sequence[tuple[str, str]],
    default: tuple[str, str],
    samples: Sequence[Sample],
    comments: Sequence[str],
) -> bytes:
    """Return a profile of samples, those with the same stack and labels added up."""
    table = _Table()
    for kind, unit in types:
        table.put("sample_type", integer(1, table.text(kind)) + integer(2, table.text(unit)))
    # One mapping, which says that there is nothing to look up in any binary.
    table.put("mapping", b"".join([integer(1, 1), integer(5, table.text(target)), *_KNOWN]))
    added: dict[tuple[tuple[Frame, ...], tuple[tuple[str, str], ...]], list[int]] = {}
    for sample in samples:
        labels = tuple((name, text) for name, text in sample.labels.items() if text)
        values = added.setdefault((sample.stack, labels), [0] * len(types))
        for i, (kind, _) in enumerate(types):
            values[i] += sample.values.get(kind, 0)
    for (stack, labels), values in added.items():
        # The innermost comes first.
        fields = [packed(1, map(table.location, reversed(stack))), packed(2, values)]
        for name, text in labels:
            fields.append(data(3, integer(1, table.text(name)) + integer(2, table.text(text))))
        table.put("sample", b"".join(fields))
    for comment in comments:
        table.put("comment", table.text(comment))
    table.put("default_sample_type", table.text(default[0]))
    return gzip.compress(table.message(), mtime=0)


# Functions, files and lines are known.
_KNOWN: Final = tuple(integer(number, 1) for number in (7, 8, 9))


class _Table:
    """The message of a profile, in which texts, functions and locations have numbers."""

    def __init__(self) -> None:
        self._fields: list[bytes] = []
        self._texts: dict[str, int] = {"": 0}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[Frame, int] = {}

    def put(self, name: str, value: bytes | int) -> None:
        """Add a field of the profile."""
        number = _PROFILE[name]
        made = integer(number, value) if isinstance(value, int) else data(number, value)
        self._fields.append(made)

    def text(self, text: str) -> int:
        """Return the number of a text."""
        return self._texts.setdefault(visible(text), len(self._texts))

    def location(self, frame: Frame) -> int:
        """Return the number of a frame's location."""
        found = self._locations.get(frame)
        if found is None:
            found = self._locations[frame] = len(self._locations) + 1
            line = integer(1, self._function(frame)) + integer(2, frame.line)
            self.put("location", integer(1, found) + integer(2, 1) + data(4, line))
        return found

    def _function(self, frame: Frame) -> int:
        key = frame.function, frame.file
        found = self._functions.get(key)
        if found is None:
            found = self._functions[key] = len(self._functions) + 1
            name = self.text(frame.function)
            fields = integer(1, found), integer(2, name), integer(4, self.text(frame.file))
            self.put("function", b"".join(fields))
        return found

    def message(self) -> bytes:
        """Return the whole profile."""
        texts = (data(_PROFILE["string_table"], text) for text in self._texts)
        return b"".join([*self._fields, *texts])
