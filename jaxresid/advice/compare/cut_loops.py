"""The rows of a comparison of loops cut into segments, and of Python loops in groups."""

from __future__ import annotations

import math
from collections.abc import Iterator

from jaxresid.advice.compare.policy_targets import SEGMENTS, PolicyTarget
from jaxresid.base.errors import InputsError
from jaxresid.inspector.variants.choices import Choice, Choices, Nest, Variants, everywhere

# How many sizes are compared: those nearest to the square root of the length.
_MOST = 5


def loops_target(variants: Variants) -> PolicyTarget:
    """Return the loops that may be cut into segments.

    Raises:
      InputsError: There are none.
    """
    nests = variants.nests()
    if not nests:
        raise InputsError(
            "no loop was found that can be cut into segments: a jax.lax.scan or a fori_loop that"
            " carries something, or a Python loop that makes much of the memory, of four"
            " iterations or more"
        )
    sites = tuple(p for p in variants.places() if p.kind == "checkpoint")
    return PolicyTarget(SEGMENTS, tuple(nest.place for nest in nests), sites)


def cut_loops(variants: Variants, target: PolicyTarget) -> Iterator[tuple[str, Choices]]:
    """Yield the ways to cut all loops alike, with the bodies as they are and checkpointed.

    Args:
      variants: The variants of the function.
      target: Its loops, as `loops_target` returns them.
    """
    nests = variants.nests()
    plain = target.choices(None)
    word = "groups" if all(nest.place.kind == "groups" for nest in nests) else "segments"
    for size in _sizes(nests):
        cut = Choice(segments=(size,))
        made = {n.place: everywhere(n.place, cut) for n in nests if 2 * size <= n.length}
        yield f"{word} of {size}", {**plain, **made}
        inside = [p for n in nests for p in n.inside]
        if inside:
            bodies = {p: everywhere(p, Choice()) for p in inside}
            yield f"{word} of {size}, checkpointed inside", {**plain, **made, **bodies}


def _sizes(nests: tuple[Nest, ...]) -> list[int]:
    """Return the sizes to compare: of the divisors of the lengths those that keep least."""
    divisors = {
        (abs(math.log(size * size / n.length)), size)
        for n in nests
        for size in range(2, n.length // 2 + 1)
        if n.length % size == 0
    }
    if not divisors:
        divisors = {(0.0, max(2, round(math.sqrt(n.length)))) for n in nests}
    nearest = dict.fromkeys(size for _, size in sorted(divisors))
    return sorted(list(nearest)[:_MOST])
