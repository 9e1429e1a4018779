"""What a compiler decides, and which buffers the values of a block are in.

What is materialised differs between compilers, so a profile lowers a block to what its compiler
runs: see `storage_cpu` and `storage_accelerator`. Of a lowered block every value is a buffer.
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
    outputs_lend_room: bool
    """Whether temporaries may be in an output's buffer until the output is written."""

    carries_stay: bool
    """Whether a trip may write a carry's next value where the carry is."""

    @property
    def removes_barriers(self) -> str:
        """The compiler, in words, where it removes the optimization barriers that keep apart what a
        checkpoint recomputes: `XLA:CPU of jaxlib 0.10.2`. Else empty.
        """

    def lowered(self, block: Block, nest: Nest | None) -> Block:
        """The block as this compiler runs it; `nest` if it is the body of a loop."""

    def nbytes(self, value: Value, block: Block) -> int:
        """Bytes of a stored value of a lowered block."""

    def in_place(self, op: Op, value: Value) -> bool:
        """Whether the op may write a result over `value`, which it reads and nobody reads again."""


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """Where the values of a lowered block are.

    Attributes:
      roots: value -> the buffer that it is in, named by the value that was first in it; none for
        a literal behind a barrier.
    """

    roots: dict[Value, tuple[Value, ...]] = field(default_factory=dict)

    def of(self, values: Iterable[Value]) -> list[Value]:
        """The buffers of some values, each once."""
        found: dict[Value, None] = {}
        for v in values:
            if v.literal is None:
                found.update(dict.fromkeys(self.roots[v]))
        return list(found)

    def is_stored(self, value: Value) -> bool:
        return self.roots.get(value) == (value,)


def storage(block: Block) -> Storage:
    """The buffers of a lowered block: one for each value, but that a barrier's results are its
    operands.
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
