"""Estimated times in words: how often as long about, between what, and whether that was checked."""

from __future__ import annotations

from collections.abc import Sequence

from jaxresid.results import TimeBasis, TimeInterval

NOT_CHECKED = "not checked"
_SHARES = {0.9: "nine in ten", 0.8: "four in five"}


def time_text(fraction: float, interval: TimeInterval | None, times: str) -> str:
    """Return how often as long it takes as without a checkpoint: `×1.35 (1.18-1.54)`.

    Where the interval includes that it takes as long it is `about the same`.

    Args:
      fraction: the estimated time over that without a checkpoint, as a share of the latter.
      interval: the interval around it; None where it was not checked.
      times: the sign for "times".
    """
    about = f"{times}{1 + fraction:.2f}"
    if interval is None or interval.low == interval.high:  # it is the same program
        return about
    if interval.is_about_the_same:
        return "about the same"
    return f"{about} ({1 + interval.low:.2f}-{1 + interval.high:.2f})"


def time_remark(
    place: str, basis: TimeBasis | None, checked_on: Sequence[str], *, is_all: bool = True
) -> str:
    """Return a line on what the intervals of times are, or that there are none.

    Args:
      place: the place of the times.
      basis: what they were held against; None: nothing.
      checked_on: the places whose times were held against something, in words.
      is_all: whether all of the times have one.
    """
    if basis is None:
        where = f"; it was for {', '.join(checked_on)}" if checked_on else ""
        return f"The time was {NOT_CHECKED} for {place}{where}."
    name, versions = list(basis.compilers.items())[-1]  # the one that compiles
    share = _SHARES.get(basis.coverage, f"{basis.coverage:.0%}")
    source = f"measured on {basis.place} with {name} {', '.join(versions)}"
    if basis.by == "compiler":
        source = f"by XLA's cost analysis for {basis.place} ({name} {', '.join(versions)})"
    rest = "" if is_all else f"; with transfers or communication it was {NOT_CHECKED}"
    return (
        f"Range of time: {share} pairs of placements in {basis.models} models, {source}; a"
        f" difference within it is about the same{rest}."
    )
