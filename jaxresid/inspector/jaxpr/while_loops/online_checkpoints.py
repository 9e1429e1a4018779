"""Count the steps that a checkpointed while loop runs again in its backward pass.

Equinox' `checkpointed_while_loop`, and so diffrax and optimistix, keep the carry of a few steps
while the number of steps is not known yet, by Algorithm I of Stumm and Walther, "New Algorithms for
Optimal Online Checkpointing" (2010), and from step (c + 1)(c + 2) / 2 - 1 on, of c checkpoints, by
Wang and Moin, "Minimal repetition dynamic checkpointing algorithm" (2008). The backward pass runs
forward from the last checkpoint, keeps more of them on the way (halving the distance, and one after
the other where there is room), and takes one step back where it has met the gradient.
"""

from __future__ import annotations

import functools
import heapq

# Beyond these the backward pass is not played through, and its steps are not told.
MOST_STEPS = 1 << 18


@functools.lru_cache(maxsize=1024)
def iterations(steps: int, checkpoints: int) -> int:
    """Return how often the backward pass of a checkpointed while loop runs the body.

    Each of the `steps` is run once to be differentiated; the others are recomputed on the way.

    Args:
      steps: the steps of the forward pass, at most `MOST_STEPS`.
      checkpoints: how many carries are kept, at least one.
    """
    stack = kept_steps(steps, checkpoints)
    total, gradient = 0, steps
    while gradient > 0:
        now = stack[-1]
        if now + 1 == gradient:
            stack.pop()
        while now + 1 < gradient:
            target = _next_kept(now, gradient, checkpoints - len(stack))
            if target is None:
                total += gradient - 1 - now
                break
            total += target - now
            stack.append(target)
            now = target
        total += 1
        gradient -= 1
    return total


def _next_kept(now: int, gradient: int, free: int) -> int | None:
    """Return the step that is kept next on the way from a kept one to the gradient, if any."""
    distance = gradient - now
    if free == 0 or distance <= 2:
        return None
    return now + 1 if distance - 2 <= free else now + distance // 2


def kept_steps(steps: int, checkpoints: int) -> list[int]:
    """Return the steps whose carries are kept at the end of the forward pass, in order."""
    slots: list[int | None] = [None] * checkpoints
    within = min(steps, (checkpoints + 1) * (checkpoints + 2) // 2 - 1)
    for step in range(min(within, checkpoints)):
        slots[step] = step
    # Rows of steps, each a checkpoint shorter: one is left out, the first of the others takes the
    # place of the last checkpoint that may go, the next ones those of the earlier ones.
    start = checkpoints
    for row in range(checkpoints - 1, 0, -1):
        for slot, step in enumerate(range(start + 1, min(start + 1 + row, within))):
            slots[slot or row] = step
        start += 1 + row
    kept = [step for step in slots if step is not None]
    if steps > within and checkpoints > 1:
        kept = _replaced(kept, within, steps)
    return sorted(kept)


def _replaced(kept: list[int], start: int, stop: int) -> list[int]:
    """Return the kept steps after more steps, each of which takes the place of another.

    That is the newest one of a lower level than one kept after it, or else the newest of all, whose
    level then rises by one.
    """
    # The first step is never given up.
    levels = {step: 0 for step in kept if step}
    lower: list[int] = []
    newest = max(levels)
    for step in range(start, stop):
        if lower:
            gone, level = -heapq.heappop(lower), 0
        else:
            gone, level = newest, levels[newest] + 1
            for other, at in levels.items():
                if other != newest and at < levels[newest]:
                    heapq.heappush(lower, -other)
        del levels[gone]
        levels[step] = level
        newest = step
    return [0, *levels]
