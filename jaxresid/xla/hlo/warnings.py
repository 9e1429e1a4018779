"""Read what a compiler says of a program's memory: in its log, and in the names that it gives.

Whatever else a log holds is left out. Texts are those of jaxlib 0.8.3 to 0.12.0.1 (XLA:CPU and
XLA:GPU) and of libtpu 0.0.52.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal as OneOf

from jaxresid.xla.hlo import module as hlo
from jaxresid.xla.hlo.metadata import metadata_of, shortened
from jaxresid.xla.job import CompilerMessage, Line

# Before 2025 an operation was named after "without doing a full rematerialization of the tensor".
_RESHARDING = re.compile(
    r"Involuntary full rematerialization\. The compiler (?:cannot|was not able to) (?P<said>"
    r"go from sharding (?P<held>\{(?:(?!\} to \{|Involuntary ).)*+\}) to"
    r" \{(?:(?!\} (?:efficiently|without)|Involuntary ).)*+\}) (?:efficiently|without doing a full"
    r" rematerialization of the tensor) for HLO operation:? (?P<operation>.*)"
)
_REPLICATED = re.compile(
    r"\[SPMD\] (?P<said>Falling back to replicated execution for (?:(?!\. |\[SPMD\]).)*+)\. "
    r"(?:(?!Operation: |\[SPMD\]).)*+Operation: (?P<operation>.*)"
)
_LIMIT = re.compile(
    r"(?P<said>Can't reduce memory use below \S+ \((?P<limit>-?\d+) bytes\) by rematerialization;"
    r" only reduced to \S+ \((?P<nbytes>\d+) bytes\), down from .* originally)"
)
_ON_HOST = re.compile(
    r'(?P<said>Found an instruction \("(?P<name>[^"]*)"\) which does device compute in host memory'
    r" space\. Converting into host compute)"
)
# Of what HloRematerialization clones; it logs nothing of what it did.
_CLONE = re.compile(r"\.remat\d*(\.\d+)*$")
_UNKNOWN: tuple[Line, ...] = (("", 0),)
_PASSED_ON = ("get-tuple-element", "tuple", "bitcast")


@dataclass(frozen=True, slots=True)
class _Lines:
    """The lines of a module's metadata.

    Attributes:
      frames: the lines of each stack, innermost first; their numbers count from 1.
      named: the lines, innermost first, of the instructions with an op name.
    """

    frames: tuple[tuple[Line, ...], ...] = ()
    named: Mapping[str, set[tuple[Line, ...]]] = field(default_factory=dict)
    by_name: Mapping[str, hlo.Instruction] = field(default_factory=dict)

    def of(self, op_name: str, frame: int) -> tuple[Line, ...]:
        """Return the lines of an operation, innermost first; ("", 0) where they are not known."""
        if 0 < frame <= len(self.frames) and self.frames[frame - 1][0][0]:
            return self.frames[frame - 1]
        stacks = self.named.get(op_name, set())
        return next(iter(stacks)) if len(stacks) == 1 else _UNKNOWN


def messages(
    log: str, module: bytes = b"", *, numbers_frames: bool = True
) -> tuple[CompilerMessage, ...]:
    """Return what a compiler says that bears on memory, equal messages once; never raises.

    Args:
      module: the HloModuleProto that it made, which tells the lines of what the log names, and what
        was made to be computed again; empty where there is none.
      numbers_frames: whether the stack frames in the log are numbered as those of the module.
    """
    hlo_module = _module(module)
    lines = _Lines() if hlo_module is None or not numbers_frames else _lines(hlo_module)
    logged = (message for line in log.splitlines() for message in _logged(line, lines))
    counted: dict[CompilerMessage, int] = {}
    for message in logged:
        counted[message] = counted.get(message, 0) + 1
    counted_messages = [replace(message, count=count) for message, count in counted.items()]
    return (
        (*counted_messages, *_recomputed(hlo_module))
        if hlo_module is not None
        else tuple(counted_messages)
    )


def _module(data: bytes) -> hlo.HloModule | None:
    try:
        return hlo.module(data) if data else None
    except (ValueError, IndexError, KeyError, RecursionError):
        return None


def _lines(module: hlo.HloModule) -> _Lines:
    named: dict[str, set[tuple[Line, ...]]] = {}
    by_name = {}
    for i in module.instructions.values():
        by_name[i.name] = i
        if i.op_name and i.file:
            named.setdefault(i.op_name, set()).add(((i.file, i.line), *i.callers))
    return _Lines(module.frames, named, by_name)


def _logged(line: str, lines: _Lines) -> Iterator[CompilerMessage]:
    if match := _RESHARDING.search(line):
        shape = _shape(match["operation"])
        whole = _whole(shape, match["held"])
        yield _operation("resharding", f"cannot {match['said']}", match["operation"], whole, lines)
    elif match := _REPLICATED.search(line):
        shape = _shape(match["operation"])
        yield _operation("replicated", match["said"], match["operation"], shape, lines)
    elif match := _LIMIT.search(line):
        yield CompilerMessage(
            kind="memory-limit",
            said=shortened(match["said"]),
            nbytes=int(match["nbytes"]),
            limit_nbytes=max(int(match["limit"]), 0),
        )
    elif match := _ON_HOST.search(line):
        words = shortened(match["said"])
        instruction = lines.by_name.get(match["name"])
        if instruction is None:
            yield CompilerMessage(kind="host-compute", said=words)
        else:
            yield CompilerMessage(
                kind="host-compute",
                said=words,
                op_name=instruction.op_name,
                file=instruction.file,
                line=instruction.line,
                callers=instruction.callers,
            )


def _operation(
    kind: OneOf["resharding", "replicated"],
    said: str,
    operation: str,
    shape: hlo.Shape | None,
    lines: _Lines,
) -> CompilerMessage:
    op_name, file, line, frame = metadata_of(operation)
    (file, at), *callers = ((file, line),) if file else lines.of(op_name, frame)
    return CompilerMessage(
        kind=kind,
        said=shortened(said),
        nbytes=None if shape is None else shape.nbytes,
        shape="" if shape is None else str(shape),
        op_name=op_name,
        file=file,
        line=at,
        callers=tuple(callers),
    )


def _recomputed(module: hlo.HloModule) -> Iterator[CompilerMessage]:
    """Yield what a module computes again, since it would need too much memory otherwise.

    Each is the instructions of one line that make arrays of one shape.
    """
    groups: dict[tuple[object, ...], list[hlo.Instruction]] = {}
    for home, body in module.computations.items():
        caller = module.callers.get(home)
        if caller is not None and caller.opcode not in hlo.CALLERS:
            continue
        for i in body:
            if _CLONE.search(i.name) and i.opcode not in _PASSED_ON:
                at = i.op_name, i.file, i.line, i.callers, str(i.shape)
                groups.setdefault(at, []).append(i)
    for group in groups.values():
        first = group[0]
        yield CompilerMessage(
            kind="recomputed",
            count=len(group),
            said=shortened(first.name),
            nbytes=sum(i.shape.nbytes for i in group),
            shape=str(first.shape),
            op_name=first.op_name,
            file=first.file,
            line=first.line,
            callers=first.callers,
        )


def _shape(operation: str) -> hlo.Shape | None:
    array = re.search(r" = (\w+\[[\d,]*\])", operation)
    return None if array is None else hlo.shape_of(array[1])


def _whole(shape: hlo.Shape | None, sharding: str) -> hlo.Shape | None:
    """Return the shape of a whole array, padding included, given that of its part on a device.

    None where its sharding is not one that is known, `{devices=[2,1,4]<=[8]}` or, since jaxlib
    0.12, `{mesh['a'=2,'b'=4], [{'a'}, {}, {'b'}]}`.
    """
    if shape is None:
        return None
    parts: list[int] = []
    if tiles := re.match(r"\{devices=\[([\d,]+)\]", sharding):
        parts = [int(n) for n in tiles[1].split(",")]
    elif tiles := re.match(r"\{mesh\[([^\]]*)\], \[(.*?)\]", sharding):
        sizes = {name: int(n) for name, n in re.findall(r"'([^']*)'=(\d+)", tiles[1])}
        for axes in re.findall(r"\{([^{}]*)\}", tiles[2]):
            split = re.findall(r"'([^']*)'(?::\(\d+\)(\d+))?", axes)
            parts.append(
                math.prod(int(part) if part else sizes.get(name, 1) for name, part in split)
            )
    if len(parts) < len(shape.dims):
        return None
    dims = tuple(n * part for n, part in zip(shape.dims, parts, strict=False))
    return replace(shape, dims=dims)
