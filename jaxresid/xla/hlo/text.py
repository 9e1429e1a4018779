"""Read HLO modules from their text, as `xla_dump_to` writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from jaxresid.xla.hlo.metadata import Metadata, metadata_of
from jaxresid.xla.hlo.module import BITS, HloModule, Instruction, Shape, stacks
from jaxresid.xla.job import Line

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.-]+)(?: \(.*)? \{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.-]+) = ")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|branch_computations|true_computation|false_computation"
    r"|called_computations|select|scatter)=(\{[^{}]*\}|%?[\w.-]+)"
)
_ARRAY = re.compile(r"(\w+)\[([^\]]*)\]")
_MEMORY = re.compile(r"S\((\d{1,3})\)")
_WIDTH = re.compile(r"E\((\d{1,3})\)")
_NAME = re.compile(r"%?(?<![\w.-])([\w.-]++)(?:#(\d{1,9}))?$")
_INDEX = re.compile(r"\bindex=(\d{1,9})")
_DIRECTION = re.compile(r"\bdirection=(\w+)")
_ROW = re.compile(r'(\d{1,9}) (?:"(.*)"|\{(.*)\})$')
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_DEEPEST = 50  # of tuples in tuples


@dataclass(slots=True)
class _Computation:
    name: str
    instructions: list[int] = field(default_factory=list)
    root: int = 0


def module_of_text(text: str) -> HloModule:
    return _Reader().read(text)


class _Reader:
    def __init__(self) -> None:
        self._computations: dict[str, _Computation] = {}
        self._instructions: list[Instruction] = []
        self._operands: list[tuple[str, ...]] = []
        self._called: list[tuple[str, ...]] = []
        self._ids: dict[str, int] = {}
        self._tables: dict[str, dict[int, str]] = {name: {} for name in _TABLES}

    def read(self, text: str) -> HloModule:
        lines = iter(text.splitlines())
        if not next(lines, "").startswith("HloModule"):
            raise ValueError("no HLO module")
        entry, current, table = "", None, None
        for line in lines:
            if current is None and line in _TABLES:
                table = self._tables[line]
            elif current is None and table is not None and (row := _ROW.match(line)):
                table[int(row[1])] = row[2] if row[2] is not None else row[3]
            elif match := _COMPUTATION.match(line):
                current = self._computations.setdefault(match[2], _Computation(match[2]))
                entry = match[2] if match[1] else entry
            elif line == "}":
                current = None
            elif current is not None and (match := _INSTRUCTION.match(line)):
                self._take(current, match[2], line[match.end() :], is_root=bool(match[1]))
        if entry not in self._computations:
            raise ValueError("no entry computation")
        return self._module(entry)

    def _take(self, computation: _Computation, name: str, text: str, *, is_root: bool) -> None:
        shape, at = _shape(text, 0, 0)
        opcode, _, rest = text[at:].lstrip().partition("(")
        end = _closing(rest)
        inside, after = rest[:end], rest[end + 1 :]
        operands = () if opcode in ("parameter", "constant") else _operands(inside)
        index = _INDEX.search(after)
        direction = _DIRECTION.search(after)
        metadata = metadata_of(after)
        stack = self._stack(metadata)
        file, line = stack[0]
        instruction = Instruction(
            id=0,
            opcode=opcode,
            shape=shape,
            index=int(inside) if opcode == "parameter" and inside.isdigit() else _int(index),
            op_name=metadata.op_name,
            file=file,
            line=line,
            literal=_literal(opcode, inside),
            direction="" if direction is None else direction[1],
            name=name,
            callers=stack[1:],
        )
        for operand in operands:
            self._element(computation, operand)
        called = tuple(
            _bare(called_name)
            for group in _CALLED.findall(after)
            for called_name in group.strip("{}").split(",")
            if called_name.strip()
        )
        self._add(computation, instruction, operands, called)
        if is_root:
            computation.root = self._ids[name]

    def _element(self, computation: _Computation, operand: str) -> None:
        """Add the get-tuple-element that `%loop#4` stands for, unless it is there."""
        name, _, index = operand.partition("#")
        if not index or operand in self._ids or name not in self._ids:
            return
        of = self._instructions[self._ids[name]]
        element = Instruction(
            0, "get-tuple-element", of.shape.at((int(index),)), index=int(index), name=operand
        )
        self._add(computation, element, (name,), ())

    def _add(
        self,
        computation: _Computation,
        instruction: Instruction,
        operands: tuple[str, ...],
        called: tuple[str, ...],
    ) -> None:
        self._ids[instruction.name] = len(self._instructions)
        computation.instructions.append(len(self._instructions))
        self._instructions.append(instruction)
        self._operands.append(operands)
        self._called.append(called)

    def _stack(self, metadata: Metadata) -> tuple[Line, ...]:
        """Return the lines in an instruction's metadata, the innermost first; ("", 0) for none."""
        if metadata.file:
            return ((metadata.file, metadata.line),)
        number = metadata.frame
        return self._stacks[number - 1] if 0 < number <= len(self._stacks) else (("", 0),)

    @cached_property
    def _stacks(self) -> tuple[tuple[Line, ...], ...]:
        """The stacks of the table of frames, which comes before the computations."""
        names, places, frames = (
            self._tables[name] for name in ("FileNames", "FileLocations", "StackFrames")
        )
        # XLA writes a caller's number plus one: the outermost frames name themselves (jaxlib 0.12).
        off = any(_value(frame, "parent_frame_id") == number for number, frame in frames.items())
        lines = []
        for number in range(1, len(frames) + 1):
            frame = frames.get(number, "")
            place = places.get(_value(frame, "file_location_id"), "")
            file = names.get(_value(place, "file_name_id"), "")
            line = file, _value(place, "line") if file else 0
            lines.append((line, _value(frame, "parent_frame_id") - off))
        return stacks(lines)

    def _module(self, entry: str) -> HloModule:
        numbers = {name: n for n, name in enumerate(self._computations)}
        instructions = [
            replace(
                instruction,
                id=n,
                operands=tuple(self._ids[name] for name in operands if name in self._ids),
                called=tuple(numbers[name] for name in called if name in numbers),
            )
            for n, (instruction, operands, called) in enumerate(
                zip(self._instructions, self._operands, self._called, strict=True)
            )
        ]
        return HloModule(
            {
                numbers[name]: tuple(instructions[n] for n in computation.instructions)
                for name, computation in self._computations.items()
            },
            {numbers[name]: computation.root for name, computation in self._computations.items()},
            numbers[entry],
        )


def _shape(text: str, at: int, depth: int) -> tuple[Shape, int]:
    """Return the shape at a place of a text, and where it ends.

    Raises:
      ValueError: There is none.
    """
    if depth > _DEEPEST:
        raise ValueError("a tuple that is too deep")
    if text.startswith("(", at):
        elements = []
        at = _skip(text, at + 1)
        while at < len(text) and text[at] != ")":
            element, at = _shape(text, at, depth + 1)
            elements.append(element)
            at = _skip(text, at)
        return Shape(elements=tuple(elements)), at + 1
    array = _ARRAY.match(text, at)
    if array is None:
        raise ValueError("no shape")
    at, layout = array.end(), ""
    if text.startswith("{", at):
        end = text.index("}", at)
        layout, at = text[at:end], end + 1
    if array[1] not in BITS:  # a token
        return Shape(), at
    memory, width = _MEMORY.search(layout), _WIDTH.search(layout)
    return Shape(
        dtype=array[1],
        dims=tuple(int(n.strip("<= ")) for n in array[2].split(",") if n.strip("<= ")),
        bits=_int(width) or BITS[array[1]],
        memory=_int(memory),
    ), at


def _skip(text: str, at: int) -> int:
    while at < len(text):
        if text[at] in ", ":
            at += 1
        elif text.startswith("/*", at):
            at = text.index("*/", at) + 2
        else:
            break
    return at


def _closing(text: str) -> int:
    depth = 1
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return at
    raise ValueError("a parenthesis that does not close")


def _operands(text: str) -> tuple[str, ...]:
    return tuple(name for part in _parts(text) if (name := _bare(part)))


def _parts(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for at, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _bare(text: str) -> str:
    """Return the name that ends a text, `loop#4` for `f32[4]{0} %loop#4`; '' for none."""
    name = _NAME.search(text.strip())
    return "" if name is None else name[0].lstrip("%")


def _literal(opcode: str, text: str) -> int | None:
    return int(text) if opcode == "constant" and re.fullmatch(r"-?\d{1,18}", text) else None


def _int(match: re.Match[str] | None) -> int:
    return 0 if match is None else int(match[1])


def _value(row: str, name: str) -> int:
    """Return the number of a name in a row of a table, `{file_name_id=1 line=6}`."""
    return _int(re.search(rf"(?<![a-z_]){name}=(\d{{1,9}})", row))
