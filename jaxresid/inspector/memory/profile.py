"""Describe what a compiler decides, and which buffers the values of a block are in.

What is materialised differs between compilers, so a profile lowers a block to what its compiler
runs: see `cpu.profile` and `tpu.profile`. Every value of a lowered block is a buffer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from jaxresid.inspector.jaxpr.nesting import Nest
from jaxresid.inspector.program.ops import Block, Op, Value


class Profile(Protocol):
    """One compiler's decisions, each a rule about one mechanism."""

    name: str
    reuses_output_buffers: bool
    """Whether temporaries may be in an output's buffer until the output is written."""

    carries_stay: bool
    """Whether a trip may write a carry's next value where the carry is."""

    @property
    def removes_barriers(self) -> str:
        """The compiler, in words, where it removes optimization barriers; otherwise empty.

        An example is `XLA:CPU of jaxlib 0.10.2`. The barriers keep apart what a checkpoint
        recomputes.
        """

    def lowered(self, block: Block, nest: Nest | None) -> Block:
        """Return the block as this compiler runs it; `nest` is given for the body of a loop."""

    def nbytes(self, value: Value, block: Block) -> int:
        """Return the bytes of a stored value of a lowered block."""

    def in_place(self, op: Op, value: Value) -> bool:
        """Return whether the op may write a result over `value`, which it is the last to read."""


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """Where the values of a lowered block are.

    Attributes:
      roots: value -> the buffer that it is in, named by the value that was first in it; none for a
        literal behind a barrier.
    """

    roots: dict[Value, tuple[Value, ...]] = field(default_factory=dict)

    def of(self, values: Iterable[Value]) -> list[Value]:
        """Return the buffers of some values, each once."""
        found: dict[Value, None] = {}
        for v in values:
            if v.literal is None:
                found.update(dict.fromkeys(self.roots[v]))
        return list(found)

    def is_stored(self, value: Value) -> bool:
        """Return whether a value has a buffer, which it is the first in."""
        return self.roots.get(value) == (value,)


def storage(block: Block) -> Storage:
    """Return the buffers of a lowered block.

    There is one for each value, except that a barrier's results are in the buffers of its operands.
    """
    made = Storage()
    roots = made.roots
    for v in block.inputs:
        roots[v] = (v,)
    for op in block.ops:
        if op.name == "barrier":
            for a, b in zip(op.operands, op.results, strict=False):
                roots[b] = () if a.literal is not None else roots[a]
        else:
            roots.update((v, (v,)) for v in op.results)
    return made
