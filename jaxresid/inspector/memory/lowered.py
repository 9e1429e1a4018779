"""A program as a compiler runs it, which its peak and its time are both read from."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.memory.rules.kernels import Kernels, kernels
from jaxresid.inspector.memory.rules.stacked_copies import without_stacked_copies
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.ops import Op


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """A program with the layers that were left out.

    Attributes:
      program: its inputs and outputs; the ops are not there.
      order: for each of them the one that it is like, of the program with layers left out.
    """

    program: Program
    block: Kernels
    order: tuple[Op, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """A program, lowered for one compiler.

    Attributes:
      block: the program's block as this compiler runs it; bodies of loops are as they were.
      whole: the kernels of the whole program, where layers are left out of this.
    """

    program: Program
    profile: Profile
    block: Kernels
    whole: Whole | None = None

    @property
    def ops(self) -> tuple[Op, ...]:
        """The kernels in the order in which they run."""
        return self.block.ops if self.whole is None else self.whole.order


def lower(program: Program, profile: Profile) -> Lowered:
    """Return a program as the compiler of a profile runs it."""
    block = program.block
    if profile.unifies_stacked_copies:
        block = without_stacked_copies(block)
    return Lowered(program, profile, kernels(block, None, profile))
