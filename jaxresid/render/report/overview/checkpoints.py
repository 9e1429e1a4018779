"""Checkpoints with their verdicts, identical ones as one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.checkpoints import STYLES
from jaxresid.render.style.words import percent, short_path, verdict_text
from jaxresid.render.style.wrapping import FlowingParts
from jaxresid.results import Checkpoint, Verdict

GOOD = (Verdict.EARNS, Verdict.NOT_JUDGED)


@dataclass(frozen=True, slots=True)
class CheckpointGroup:
    """Checkpoints that a reader cannot tell apart but by their lines; the first stands for all."""

    checkpoints: tuple[Checkpoint, ...]

    @property
    def first(self) -> Checkpoint:
        """The first of them."""
        return self.checkpoints[0]


def grouped(checkpoints: Sequence[Checkpoint]) -> tuple[CheckpointGroup, ...]:
    """Return checkpoints in groups: first those that are not worth it, then those that save most.

    Of one function with one policy, verdict and reason there is one group.
    """
    groups: dict[Hashable, list[Checkpoint]] = {}
    for c in checkpoints:
        key = (c.verdict, c.function, c.policy, c.prevent_cse, c.shape, c.by)
        groups.setdefault(key, []).append(c)
    found = [CheckpointGroup(tuple(group)) for group in groups.values()]
    return tuple(
        sorted(found, key=lambda g: (g.first.verdict in GOOD, -(g.first.saved_nbytes or 0)))
    )


def places_text(group: CheckpointGroup, at_most: int = 4) -> str:
    """Return where the checkpoints of a group are: `model.py:35, 41, 52`."""
    lines: dict[str, list[str]] = {}
    for c in group.checkpoints:
        if c.location is not None:
            found = lines.setdefault(short_path(c.location.file), [])
            if str(c.location.line) not in found:
                found.append(str(c.location.line))
    each = []
    for file, numbers in lines.items():
        more = f" and {len(numbers) - at_most} more" if len(numbers) > at_most else ""
        each.append(f"{file}:{', '.join(numbers[:at_most])}{more}")
    return "; ".join(each)


def saved_text(group: CheckpointGroup) -> str:
    """Return what the checkpoints of a group save, and what that costs.

    An example is `saves 1.45 GiB for 20.1% more FLOPs`; of several it begins with `each`.
    """
    known = [c.saved_nbytes for c in group.checkpoints if c.saved_nbytes is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    each = "each " if len(group.checkpoints) > 1 else ""
    word = "saves" if high >= 0 else "adds"
    sizes = sorted(map(abs, (low, high)))
    figures = " to ".join(dict.fromkeys(map(format_bytes, sizes)))
    if low < 0 < high:
        figures = f"between -{format_bytes(-low)} and {format_bytes(high)}"
    fractions = [c.recompute_fraction for c in group.checkpoints if c.recompute_fraction]
    cost = ""
    if fractions:
        shares = [percent(share, 1) for share in (min(fractions), max(fractions))]
        cost = f" for {' to '.join(dict.fromkeys(shares))} more FLOPs"
    return f"{each}{word} {figures}{cost}" if low or high else f"the peak stays{cost}"


def render_groups(groups: Sequence[CheckpointGroup], most: int) -> Iterator[RenderableType]:
    """Yield a line for each of the first groups, and one for the others.

    Args:
      groups: the groups.
      most: show at most so many.
    """
    count = sum(len(group.checkpoints) for group in groups)
    yield Text(f"{count} checkpoint{'s' * (count != 1)}", style="bold")
    for group in groups[:most]:
        c = group.first
        style = STYLES.get(c.verdict, "bold yellow")
        parts = [Text(verdict_text(c.verdict), style=style), Text(_name(group), style="bold")]
        for text in (places_text(group), c.policy or "", saved_text(group)):
            parts += [Text(text)] * bool(text)
        yield FlowingParts(parts, separator="  ", indent=2)
    hidden = [c for group in groups[most:] for c in group.checkpoints]
    if hidden:
        bad = sum(c.verdict not in GOOD for c in hidden)
        more = f", {bad} of them below" if bad else ""
        yield Text(f"{len(hidden)} more{more}: --view checkpoints", style="dim")


def _name(group: CheckpointGroup) -> str:
    c, count = group.first, len(group.checkpoints)
    times = c.calls * count if c.calls > 1 or count > 1 else c.trips
    return f"{c.function} ×{times}" if times > 1 else c.function
