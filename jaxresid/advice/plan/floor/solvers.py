"""Choose how many carries a checkpointed while loop keeps, for a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxresid.inspector.variants.solver_checkpoints import CheckpointedLoop

# Each is a trace of the whole function.
_MOST_TRACES = 5


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """A number of checkpoints, with the peak that it was traced to have.

    Attributes:
      count: the number.
      peak_nbytes: the estimated peak.
    """

    count: int
    peak_nbytes: int


def most_that_fit(
    loop: CheckpointedLoop, peak_nbytes: int, budget_nbytes: int, peak_of: Callable[[int], int]
) -> Checkpoints:
    """Return the most checkpoints with which a program fits, as these recompute least.

    The peak of each that is tried is traced; between two of them it is taken to be a line. Where
    nothing fits, it is as many as the logarithm of the steps, below which recomputation grows much
    faster than memory falls.

    Args:
      loop: the loop.
      peak_nbytes: the peak with the checkpoints that it keeps.
      budget_nbytes: the budget.
      peak_of: traces the program with a number of checkpoints, and returns its peak.
    """
    least = max(1, min((loop.steps or 1).bit_length(), loop.checkpoints - 1))
    below = Checkpoints(least, peak_of(least))
    if below.peak_nbytes > budget_nbytes:
        return below
    above = Checkpoints(loop.checkpoints, peak_nbytes)
    for _ in range(_MOST_TRACES - 1):
        if above.count - below.count < 2:
            break
        slope = (above.peak_nbytes - below.peak_nbytes) / (above.count - below.count)
        room = (budget_nbytes - below.peak_nbytes) / slope if slope > 0 else 0
        count = min(max(below.count + int(room), below.count + 1), above.count - 1)
        tried = Checkpoints(count, peak_of(count))
        if tried.peak_nbytes <= budget_nbytes:
            below = tried
        else:
            above = tried
    return below


def change_text(loop: CheckpointedLoop, checkpoints: int) -> str:
    """Return in words what to write, and how often the body then runs."""
    text = f"{loop.written(checkpoints)}, {checkpoints} in place of {loop.checkpoints}"
    before, after = loop.runs(loop.checkpoints), loop.runs(checkpoints)
    if before is None or after is None:
        return text
    return (
        f"{text}: {loop.steps:,} steps run {after:,} times in the backward pass in place of"
        f" {before:,}"
    )
