"""Match the buffers that a compiler holds at its peak with the residuals of the report.

A buffer is taken for a residual if the forward pass makes it, the residual's primitive made it (or
one of those that the report looks through), on a line of the residual's stack, with the residual's
elements on one device. What a loop stacks needs no line: little but residuals is stacked up there.
A wrong match is worse than none; what is computed again in the backward pass is no residual.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxresid.base.home import FOLDER
from jaxresid.base.text.layer_paths import folded, folded_scopes, pattern, scope_key
from jaxresid.base.text.notebook_cells import cell_name
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.levels import scope_of
from jaxresid.results import (
    NOWHERE,
    CompiledBuffer,
    CompilerWarning,
    Computed,
    Location,
    Residual,
    Source,
)
from jaxresid.xla.job import CompilerMessage, Line, PeakBuffer

_OURS = FOLDER
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
# Where gradients and what is computed again for them come from: `transpose(jvp(...))`.
_BACKWARD = re.compile(r"\btranspose\(|rematted_computation")
# Of the functions and loops that a name in the metadata leads through.
_CALLS = re.compile(r"\b(jit|pjit)\([^()]*\)|\b(while|body|cond|branch_\d+_fun|closed_call)\b")
# Primitives that are lowered to others, which the HLO metadata then names in their place.
_LOWERED = {"one_minus_square": ("mul",)}
# Names of dtypes: of HLO, and of numpy where the rule `f32` -> `float32` does not give it.
_KINDS = {"f": "float", "s": "int", "u": "uint", "c": "complex"}
_NAMES = {"pred": "bool", "bf16": "bfloat16", "c64": "complex64", "c128": "complex128"}


@dataclass(frozen=True, slots=True)
class _Array:
    dtype: str
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def sides(self) -> tuple[int, ...]:
        """The lengths of its axes that a layout or a transpose leaves alone."""
        return tuple(sorted(n for n in self.dims if n != 1))


@dataclass(slots=True)
class _Candidate:
    """A residual, and how many of its elements no buffer holds yet."""

    residual: Residual
    array: _Array
    primitives: frozenset[str]
    lines: frozenset[tuple[str, int]]
    left: int


def matched(
    buffers: Sequence[PeakBuffer], residuals: Sequence[Residual], paths: Sequence[str] = ()
) -> tuple[tuple[CompiledBuffer, ...], int]:
    """Return the buffers in a user's terms, and how many of their bytes are accounted for.

    Equal buffers are folded, and the biggest comes first. The bytes are the device bytes of those
    that are residuals, arguments or outputs.

    Args:
      buffers: the buffers that the compiler holds at its peak.
      residuals: the residuals of the report.
      paths: the paths of the arguments in the order in which the program takes them, to say which
        they are.
    """
    rows = rows_of(buffers, residuals, paths)
    nbytes = sum(row.nbytes for row in rows if is_accounted_for(row))
    return fold(rows), nbytes


def rows_of(
    buffers: Sequence[PeakBuffer], residuals: Sequence[Residual], paths: Sequence[str] = ()
) -> tuple[CompiledBuffer, ...]:
    """Return each buffer in a user's terms, in the same order.

    Args:
      buffers: the buffers that the compiler holds at its peak.
      residuals: the residuals of the report.
      paths: as in `matched`.
    """
    found = _labels(buffers, residuals)
    known = _known(residuals)
    return tuple(
        CompiledBuffer(
            buffer.kind,
            buffer.nbytes,
            shape=buffer.shape,
            opcode=buffer.opcode,
            source=_source(buffer, candidate, known),
            residual=_name(candidate.residual) if candidate else _path(buffer, paths),
            origin=_origin(candidate) if candidate else None,
            memory="host" if buffer.memory == "host" else "device",
        )
        for buffer, candidate in ((buffer, found.get(n)) for n, buffer in enumerate(buffers))
    )


def is_accounted_for(row: CompiledBuffer) -> bool:
    """Return whether a buffer of device memory is a residual, an argument or an output."""
    return row.memory == "device" and (row.origin is not None or row.kind in ("argument", "output"))


def fold(rows: Sequence[CompiledBuffer]) -> tuple[CompiledBuffer, ...]:
    """Return equal buffers as one, the biggest first."""
    groups: dict[CompiledBuffer, list[CompiledBuffer]] = defaultdict(list)
    for row in rows:
        groups[_alike(row)].append(row)
    found = [_folded(group) for group in groups.values()]
    return tuple(sorted(found, key=lambda row: -row.nbytes))


def _alike(row: CompiledBuffer) -> CompiledBuffer:
    """Return a key, equal for rows that are one to a reader, such as those of repeated layers."""
    return replace(
        row,
        nbytes=0,
        source=replace(row.source, scope=scope_key(row.source.scope)),
        residual=row.residual and pattern(row.residual),
        origin=row.origin
        and replace(row.origin, path=row.origin.path and pattern(row.origin.path)),
    )


def _folded(group: Sequence[CompiledBuffer]) -> CompiledBuffer:
    first = group[0]
    origin = first.origin
    if origin is not None and origin.path:
        paths = (row.origin.path for row in group if row.origin and row.origin.path)
        origin = replace(origin, path=folded(paths))
    return replace(
        first,
        nbytes=sum(row.nbytes for row in group),
        count=len(group),
        source=replace(first.source, scope=folded_scopes(row.source.scope for row in group)),
        residual=first.residual and folded(row.residual for row in group if row.residual),
        origin=origin,
    )


def _labels(buffers: Sequence[PeakBuffer], residuals: Sequence[Residual]) -> dict[int, _Candidate]:
    """Return, by the number of a buffer, the residual that it holds.

    The surest matches are taken first.
    """
    candidates = defaultdict(list)
    for residual in residuals:
        if isinstance(residual.origin, Computed):
            candidate = _candidate(residual, residual.origin)
            for primitive in candidate.primitives:
                candidates[primitive].append(candidate)
    found: dict[int, _Candidate] = {}
    arrays = {
        n: array
        for n, buffer in enumerate(buffers)
        if buffer.kind in ("temporary", "output") and not _BACKWARD.search(buffer.op_name)
        if (array := _array(buffer.shape)) is not None
    }
    for holds in _HOLDS:
        for n, array in arrays.items():
            if n in found:
                continue
            for candidate in candidates.get(_primitive(buffers[n]), ()):
                if array.size <= candidate.left and holds(buffers[n], array, candidate):
                    candidate.left -= array.size
                    found[n] = candidate
                    break
    return found


def _candidate(residual: Residual, origin: Computed) -> _Candidate:
    aval = residual.aval
    array = _Array(aval.dtype, aval.shape if aval.shard is None else aval.shard)
    places = (origin.location, origin.library, origin.named_at, *origin.stack)
    return _Candidate(
        residual,
        array,
        frozenset({origin.primitive, *origin.through, *_LOWERED.get(origin.primitive, ())}),
        frozenset((os.path.abspath(p.file), p.line) for p in places if p is not None),
        array.size,
    )


def _same_place(buffer: PeakBuffer, candidate: _Candidate) -> bool:
    return (os.path.abspath(buffer.file), buffer.line) in candidate.lines


def _is_exactly(buffer: PeakBuffer, array: _Array, candidate: _Candidate) -> bool:
    return array == candidate.array and _same_place(buffer, candidate)


def _is_moved(buffer: PeakBuffer, array: _Array, candidate: _Candidate) -> bool:
    """Return whether a buffer is the residual with its axes in another order, or merged."""
    return (
        array.dtype == candidate.array.dtype
        and (array.sides == candidate.array.sides or array.size == candidate.array.size)
        and _same_place(buffer, candidate)
    )


def _is_passed_on(buffer: PeakBuffer, array: _Array, candidate: _Candidate) -> bool:
    """Return whether a buffer is exactly the residual, made by an op that the report looks through.

    It is made on another line of the file than the value that it is a view of.
    """
    origin = candidate.residual.origin
    return (
        array == candidate.array
        and isinstance(origin, Computed)
        and _primitive(buffer) in origin.through
        and any(file == buffer.file for file, _ in candidate.lines)
    )


def _is_stacked(buffer: PeakBuffer, array: _Array, candidate: _Candidate) -> bool:
    """Return whether a loop stacked the buffer, on a line that the report does not know."""
    return (
        candidate.residual.trips > 1
        and array.dtype == candidate.array.dtype
        and array.sides == candidate.array.sides
    )


def _is_cast(buffer: PeakBuffer, array: _Array, candidate: _Candidate) -> bool:
    """Return whether a buffer is the residual in another width.

    XLA:CPU keeps bf16 as f32, a TPU keeps f32 as bf16 for a dot.
    """
    return (
        _is_float(array.dtype)
        and _is_float(candidate.array.dtype)
        and array.sides == candidate.array.sides
        and (_same_place(buffer, candidate) or candidate.residual.trips > 1)
    )


def _is_slice(buffer: PeakBuffer, array: _Array, candidate: _Candidate) -> bool:
    """Return whether a buffer is the residual of one trip, where a loop was unrolled."""
    trips = candidate.residual.trips
    return (
        trips > 1
        and array.dtype == candidate.array.dtype
        and array.size * trips == candidate.array.size
        and _same_place(buffer, candidate)
        and not re.search(r"\bwhile\b", buffer.op_name)
    )


_HOLDS: tuple[Callable[[PeakBuffer, _Array, _Candidate], bool], ...] = (
    *(_is_exactly, _is_moved, _is_passed_on, _is_stacked, _is_cast, _is_slice),
)


def _primitive(buffer: PeakBuffer) -> str:
    """Return the primitive that made a buffer: `tanh` for `jit(f)/jvp()/while/body/tanh`.

    For several merged ops it is the last.
    """
    return buffer.op_name.rpartition(";")[2].rpartition("/")[2].partition("[")[0]


def _array(shape: str) -> _Array | None:
    found = _SHAPE.fullmatch(shape)
    if found is None:
        return None
    return _Array(_dtype(found[1]), tuple(int(n) for n in found[2].split(",") if n))


def _dtype(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    kind, rest = name[:1], name[1:]
    small = re.fullmatch(r"(\d)(e\d.*)", rest)
    if small:
        return f"{_KINDS.get(kind, kind)}{small[1]}_{small[2]}"
    return f"{_KINDS.get(kind, kind)}{rest}"


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def _name(residual: Residual) -> str:
    origin = residual.origin
    assert isinstance(origin, Computed)
    return origin.name or origin.primitive


def _path(buffer: PeakBuffer, paths: Sequence[str]) -> str | None:
    """Return the path of the argument that a buffer is; None if it is none.

    Parameters of the lowered program are called `operands[3]`.
    """
    found = re.fullmatch(r"operands\[(\d+)\]", buffer.op_name)
    if buffer.kind != "argument" or found is None or int(found[1]) >= len(paths):
        return None
    return paths[int(found[1])]


def _origin(candidate: _Candidate) -> Computed | None:
    """Return what a residual is, without where it is made: the row says that."""
    origin = candidate.residual.origin
    return replace(origin, source=NOWHERE, stack=()) if isinstance(origin, Computed) else None


@dataclass(frozen=True, slots=True)
class _Known:
    """The lines that residuals are made through.

    Attributes:
      stacks: each such line, with the user's lines that lead there and the scopes of those
        residuals.
      lines: the lines of the user's and the libraries' code.
      users: the files of the user's code.
      kind: what a file and a function in it are, see `Frames`.
    """

    stacks: Mapping[Line, Mapping[Source, set[str]]]
    lines: Mapping[Line, Location]
    users: frozenset[str]
    kind: Callable[[str, str], str]

    def at(self, line: Line) -> Location:
        """Return a line as the report has it."""
        file = cell_name(line[0]) or line[0]
        return self.lines.get(line) or Location(file, line[1], None, "")

    def is_user(self, file: str) -> bool:
        """Return whether a file is one of the user's own."""
        # Without residuals there may be no JAX, by whose folder its files are known.
        return bool(self.users) and (file in self.users or self.kind(file, "") == "user")


def _known(residuals: Sequence[Residual]) -> _Known:
    stacks: dict[Line, dict[Source, set[str]]] = defaultdict(lambda: defaultdict(set))
    lines: dict[Line, Location] = {}
    for residual in residuals:
        origin = residual.origin
        if isinstance(origin, Computed):
            for line in origin.stack:
                at = os.path.abspath(line.file), line.line
                lines[at] = line
                source = Source(origin.location, None if line == origin.location else line)
                stacks[at][source].add(scope_key(origin.source.scope))
    users = {
        os.path.abspath(s.location.file) for each in stacks.values() for s in each if s.location
    }
    return _Known(stacks, lines, frozenset(users), Frames().kind)


def _source(
    buffer: PeakBuffer,
    candidate: _Candidate | None,
    known: _Known,
) -> Source:
    """Return where a buffer comes from: for a residual what its row says, else its metadata."""
    if candidate is not None and isinstance(candidate.residual.origin, Computed):
        return candidate.residual.origin.source
    return _metadata_source(buffer, known)


def _metadata_source(named: PeakBuffer | CompilerMessage, known: _Known) -> Source:
    """Return the source in the HLO metadata of something.

    It has the scope, the innermost line of the user's, and that of the library that it called.
    What has no code of the user's behind it XLA attributes to the call of their function, which is
    in our code.
    """
    scope = scope_of(_CALLS.sub("", named.op_name.rpartition("/")[0]))
    if not named.file or named.file.startswith(_OURS):
        return Source(scope=scope) if named.file else NOWHERE
    at = named.file, named.line
    through = known.stacks.get(at, {})
    user = next((line for line in (at, *named.callers) if known.is_user(line[0])), None)
    if user is not None:
        location = known.at(user)
        sources = {s for s in through if s.location == location}
        library = None if user == at else known.at(at)
        return replace(
            sources.pop() if len(sources) == 1 else Source(location, library), scope=scope
        )
    # The callers are not known: of the same library's layer the scope tells the calls apart.
    sources = {s for s, scopes in through.items() if not scope or scope_key(scope) in scopes}
    found = sources.pop() if len(sources) == 1 else Source(known.at(at))
    return replace(found, scope=scope)


def compiler_warnings(
    messages: Sequence[CompilerMessage], residuals: Sequence[Residual]
) -> tuple[CompilerWarning, ...]:
    """Return what a compiler says in a user's terms, what is of the most bytes first.

    What it says of several operations of one line is one warning.

    Args:
      messages: the compiler's messages.
      residuals: the residuals of the report, which tell the lines that lead into libraries.
    """
    known = _known(residuals)
    groups: dict[CompilerWarning, list[CompilerMessage]] = defaultdict(list)
    for message in messages:
        found = CompilerWarning(
            message.kind,
            limit_nbytes=message.limit_nbytes,
            shape=message.shape,
            op_name="" if message.file else message.op_name,
            source=_metadata_source(message, known),
        )
        groups[found].append(message)
    rows = [_folded_warning(found, group) for found, group in groups.items()]
    return tuple(sorted(rows, key=lambda row: -(row.nbytes or 0)))


def _folded_warning(warning: CompilerWarning, group: Sequence[CompilerMessage]) -> CompilerWarning:
    sizes = [message.nbytes for message in group if message.nbytes is not None]
    nbytes = sum(sizes) if warning.kind == "recomputed" else max(sizes, default=None)
    return replace(
        warning,
        count=sum(message.count for message in group),
        said=group[0].said,
        nbytes=nbytes,
        op_name=group[0].op_name,
    )
