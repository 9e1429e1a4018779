"""Match the checkpoints and the findings of two reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from jaxresid.advice.diff.line_text import likeness
from jaxresid.results import Checkpoint, CheckpointDifference, Finding, Location
from jaxresid.results.comparison.difference import is_more_than

_TEXT, _FUNCTION, _POLICY, _ORDER = 2.0, 2.0, 0.5, 0.5
_ENOUGH_TEXT = 0.5


def checkpoint_differences(
    before: Sequence[Checkpoint],
    after: Sequence[Checkpoint],
    tolerance: float,
    negligible_flops: float,
) -> tuple[CheckpointDifference, ...]:
    """Return the checkpoints that differ, in the order of the later program, gone ones last.

    Args:
      before: the checkpoints of the earlier report.
      after: those of the later one.
      tolerance: recomputations that differ by no more than this share of the larger are the same.
      negligible_flops: so are those that differ by no more than this.
    """
    partner = _paired(before, after)
    found = []
    for j, now in enumerate(after):
        if j not in partner:
            found.append(CheckpointDifference(None, now, ("added",)))
            continue
        was = before[partner[j]]
        if changes := tuple(_changes(was, now, tolerance, negligible_flops)):
            found.append(CheckpointDifference(was, now, changes))
    gone = set(range(len(before))) - set(partner.values())
    found += [CheckpointDifference(before[i], None, ("removed",)) for i in sorted(gone)]
    return tuple(found)


def finding_differences(
    before: Sequence[Finding], after: Sequence[Finding]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return the findings that are new, and those that are no more.

    A finding is the same as one of its rule at a line that was the same, or in the same function.
    """
    scored = []
    for i, was in enumerate(before):
        for j, now in enumerate(after):
            text, is_function = _where(was.location, now.location)
            if was.name == now.name and (text >= _ENOUGH_TEXT or is_function):
                scored.append((-_TEXT * text - _FUNCTION * is_function, abs(i - j), i, j))
    partner = _assigned(scored)
    old = {*partner.values()}
    return (
        tuple(each for j, each in enumerate(after) if j not in partner),
        tuple(each for i, each in enumerate(before) if i not in old),
    )


def _where(one: Location | None, other: Location | None) -> tuple[float, bool]:
    """Return how alike the code at two places is, and whether it is in functions of one name."""
    if one is None or other is None:
        return float(one is other), False
    return likeness(one.code, other.code), one.function == other.function


def _assigned(scored: Iterable[tuple[float, int, int, int]]) -> dict[int, int]:
    """Return pairs of indices, later -> earlier, each in one pair, those of least score first.

    Args:
      scored: the score of a pair, how far its indices are apart, the earlier and the later index.
    """
    found: dict[int, int] = {}
    used: set[int] = set()
    for _, _, i, j in sorted(scored):
        if i not in used and j not in found:
            used.add(i)
            found[j] = i
    return found


def _paired(before: Sequence[Checkpoint], after: Sequence[Checkpoint]) -> dict[int, int]:
    """Return for each later checkpoint that was there earlier its index there, by its own."""
    scored = []
    for i, was in enumerate(before):
        for j, now in enumerate(after):
            text = likeness(_code(was), _code(now)) if _code(was) or _code(now) else 1.0
            is_function = was.function == now.function
            if text < _ENOUGH_TEXT and not is_function:
                continue
            score = _TEXT * text + _FUNCTION * is_function
            score += _POLICY * (_policy(was) == _policy(now))
            score += _ORDER * (1 - abs(i / len(before) - j / len(after)))
            scored.append((-score, abs(i - j), i, j))
    return _assigned(scored)


def _code(checkpoint: Checkpoint) -> str:
    return checkpoint.location.code if checkpoint.location else ""


def _policy(checkpoint: Checkpoint) -> str:
    """Return the policy; without one nothing is saveable."""
    return checkpoint.policy or "nothing_saveable"


def _changes(
    was: Checkpoint, now: Checkpoint, tolerance: float, negligible_flops: float
) -> Iterator[str]:
    if was.verdict != now.verdict:
        yield "verdict"
    if _policy(was) != _policy(now):
        yield "policy"
    for name in ("prevent_cse", "calls", "trips"):
        if getattr(was, name) != getattr(now, name):
            yield name
    before, after = was.dropped_nbytes, now.dropped_nbytes
    if before is not None and after is not None and before != after:
        yield "dropped"
    if was.recompute_flops is None or now.recompute_flops is None:
        return
    if abs(now.recompute_flops - was.recompute_flops) <= negligible_flops:
        return
    if is_more_than(tolerance, was.recompute_flops, now.recompute_flops):
        yield "recompute"
