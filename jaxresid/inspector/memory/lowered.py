"""A program as a compiler runs it, which its peak and its time are both read from."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.memory.rules.kernels import Kernels, kernels
from jaxresid.inspector.program.build import Program


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """A program, lowered for one compiler.

    Attributes:
      program: the program.
      profile: the profile of the compiler.
      block: the program's block as this compiler runs it; bodies of loops are as they were.
    """

    program: Program
    profile: Profile
    block: Kernels


def lower(program: Program, profile: Profile) -> Lowered:
    """Return a program as the compiler of a profile runs it."""
    return Lowered(program, profile, kernels(program.block, None, profile))
