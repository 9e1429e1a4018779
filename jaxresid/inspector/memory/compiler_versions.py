"""Record what compilers were measured to do, by version.

`tests/benchmarks/barriers.py` measures it: each of its programs is compiled with and without its
checkpoints, and what the optimised HLO computes is counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CpuCompiler:
    """XLA:CPU of one jaxlib.

    Attributes:
      jaxlib: the version.
      keeps_barriers: whether what a checkpoint recomputes is still computed again in the optimised
        program. Where not, XLA:CPU removes the optimization barriers before it fuses and merges
        equal computations: outside of loops the recomputation is merged with the forward pass, or
        runs along with it, and the temporaries are those of the program without the checkpoint.
        Loops keep their recomputation either way: the passes are two loops.
    """

    jaxlib: str
    keeps_barriers: bool


# Oldest first. With jax_remat3 off and, where there is one, on: the same.
MEASURED = (
    CpuCompiler("0.7.0", keeps_barriers=False),
    CpuCompiler("0.8.3", keeps_barriers=False),
    CpuCompiler("0.9.2", keeps_barriers=False),
    CpuCompiler("0.10.2", keeps_barriers=False),
    CpuCompiler("0.11.0", keeps_barriers=False),
    CpuCompiler("0.11.1", keeps_barriers=True),
    CpuCompiler("0.11.2", keeps_barriers=True),
    CpuCompiler("0.12.0", keeps_barriers=True),
    CpuCompiler("0.12.0.1", keeps_barriers=True),
)


def cpu_compiler(jaxlib: str) -> CpuCompiler:
    """Return the row of a jaxlib.

    For a jaxlib that was not measured it is that of the nearest before it, or the oldest.
    """
    before = [row for row in MEASURED if numbers(row.jaxlib) <= numbers(jaxlib)]
    return before[-1] if before else MEASURED[0]


def not_measured(jaxlib: str) -> str | None:
    """Return the note on a jaxlib that was not measured; None for one that was."""
    row = cpu_compiler(jaxlib)
    if numbers(row.jaxlib) == numbers(jaxlib):
        return None
    return (
        f"whether XLA:CPU undoes checkpoints was measured with jaxlib {row.jaxlib}; jaxlib"
        f" {jaxlib} is assumed to do the same"
    )


def numbers(version: str) -> tuple[int, ...]:
    """Return a version such as `0.12.0.1` as a key to compare by.

    What follows a letter or a plus does not count.
    """
    release = re.match(r"\d+(\.\d+)*", version)
    found = [int(n) for n in release.group().split(".")] if release else []
    while found and found[-1] == 0:
        found.pop()
    return tuple(found)
