"""The wording of differences, shared by text and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from jaxresid.base.text.units import format_bytes, format_flops
from jaxresid.render.report.heading import asked
from jaxresid.render.style.words import aval_text, place_text, verdict_text
from jaxresid.results import (
    Aval,
    Checkpoint,
    CheckpointDifference,
    Difference,
    DiffSide,
    LineDifference,
    Location,
    ValueDifference,
)

MINUS = "−"
EARLIER = "(before)"


def headline(difference: Difference) -> str:
    """Return what changed in one sentence, without the target."""
    after = difference.after
    if difference.is_same:
        same = []
        if after.peak_nbytes is not None:
            same.append(f"peak {_about(after)}{format_bytes(_peak(after))}")
        if after.target.has_gradient:
            same.append(f"keeps {format_bytes(after.totals.computed_nbytes)}")
        return f"No difference{': ' * bool(same)}{', '.join(same)}."
    text = "; ".join(_clauses(difference))
    return f"{text[0].upper()}{text[1:]}."


def _clauses(difference: Difference) -> Iterator[str]:
    peak = difference.peak_growth_nbytes
    if difference.differs_in_peak and peak is not None:
        share = share_text(difference.before.peak_nbytes or 0, peak)
        much = f"{format_bytes(abs(peak))} {'higher' if peak > 0 else 'lower'}"
        where = _most_of(difference, peak, lambda line: line.peak_growth_nbytes)
        yield f"the peak is {much}{share}{where}"
    elif peak is not None:
        yield f"the peak stays at {_about(difference.after)}{format_bytes(_peak(difference.after))}"
    if difference.before.target.has_gradient or difference.after.target.has_gradient:
        yield _kept_clause(difference)
    host = difference.after.totals.host_nbytes - difference.before.totals.host_nbytes
    if host:
        yield f"{format_bytes(abs(host))} {'more' if host > 0 else 'less'} in host memory"
    flops = difference.recompute_growth_flops
    if difference.differs_in_recompute:
        yield f"recomputes {format_flops(abs(flops))} {'more' if flops > 0 else 'less'}"
    yield from _other_clauses(difference)


def _kept_clause(difference: Difference) -> str:
    kept = difference.kept_growth_nbytes
    if not kept:
        moved = any(line.growth_nbytes for line in difference.lines)
        return "keeps as much in all, at other lines" if moved else "keeps the same"
    share = share_text(difference.before.totals.computed_nbytes, kept)
    much = f"{format_bytes(abs(kept))} {'more' if kept > 0 else 'less'}"
    where = _most_of(difference, kept, lambda line: line.growth_nbytes)
    said = f"keeps {much}{share}{where}"
    return f"for information: {said}" if is_information(difference) and kept > 0 else said


def is_information(difference: Difference) -> bool:
    """Return whether keeping more does no harm: the peaks are known, and it is not higher."""
    return difference.peak_growth_nbytes is not None and not difference.has_higher_peak


def _other_clauses(difference: Difference) -> Iterator[str]:
    verdicts = sum("verdict" in each.changes for each in difference.checkpoints)
    if verdicts:
        yield f"{_count(verdicts, 'verdict')} changed"
    for word in ("added", "removed"):
        count = sum(word in each.changes for each in difference.checkpoints)
        if count:
            yield f"{_count(count, 'checkpoint')} {word}"
    others = len(difference.checkpoints) - sum(
        bool({"verdict", "added", "removed"} & {*each.changes}) for each in difference.checkpoints
    )
    if others:
        yield f"{_count(others, 'checkpoint')} changed"
    if difference.inputs and not difference.lines:
        yield "the backward pass reads other arguments"
    if difference.found or difference.gone:
        new, gone = len(difference.found), len(difference.gone)
        yield (
            f"{_count(new, 'finding')} more, {gone} gone"
            if new
            else f"{_count(gone, 'finding')} gone"
        )


def _most_of(difference: Difference, growth: int, of: Callable[[LineDifference], int]) -> str:
    """Return the line that has most of a growth; '' where there is none in the user's code."""
    lines = [line for line in difference.lines if line.location is not None and of(line)]
    if not lines:
        return ""
    line = (max if growth > 0 else min)(lines, key=of)
    if of(line) * growth <= 0 or line.location is None:
        return ""
    function = f" in {line.location.function}" if line.location.function else ""
    return f", {'most of it ' * (len(lines) > 1)}at {place_text(line.location)}{function}"


def figures(difference: Difference) -> Iterator[tuple[str, str, str, str]]:
    """Yield rows of what is compared: its name, before, after and what it grew by.

    The peak is first. What there is nothing of on either side has no row.
    """
    before, after = difference.before, difference.after
    if before.peak_nbytes is not None or after.peak_nbytes is not None:
        yield _peak_row(difference)
    for name, was, now, always in (
        ("kept", before.totals.computed_nbytes, after.totals.computed_nbytes, True),
        ("in host memory", before.totals.host_nbytes, after.totals.host_nbytes, False),
        ("arguments read", before.totals.arguments_nbytes, after.totals.arguments_nbytes, False),
        ("constants", before.totals.constants_nbytes, after.totals.constants_nbytes, False),
    ):
        if was != now or (always and was):
            growth = growth_text(was, now) if was != now else "the same"
            yield name, format_bytes(was), format_bytes(now), growth
    if not before.recompute_flops and not after.recompute_flops:
        return
    recompute = "the same"
    if difference.differs_in_recompute:
        flops = difference.recompute_growth_flops
        recompute = f"{'+' if flops > 0 else MINUS}{format_flops(abs(flops))}"
    elif _recompute(before) != _recompute(after):
        recompute = _within(difference)
    yield "recompute", _recompute(before), _recompute(after), recompute


def _peak_row(difference: Difference) -> tuple[str, str, str, str]:
    before, after = difference.before, difference.after
    name = "peak (XLA)" if {before.peak_by, after.peak_by} == {"xla"} else "peak (estimate)"
    was, now = (
        "?" if side.peak_nbytes is None else format_bytes(side.peak_nbytes)
        for side in (before, after)
    )
    if difference.peak_growth_nbytes is None:
        return name, was, now, "not compared"
    if difference.differs_in_peak:
        return name, was, now, growth_text(before.peak_nbytes or 0, after.peak_nbytes or 0)
    same = before.peak_nbytes == after.peak_nbytes
    return name, was, now, "the same" if same else _within(difference)


def _within(difference: Difference) -> str:
    return f"within {100 * difference.tolerance:g}%"


def _recompute(side: DiffSide) -> str:
    fraction = side.recompute_fraction
    return "?" if fraction is None else f"{100 * fraction:.1f}%"


def _peak(side: DiffSide) -> int:
    return side.peak_nbytes or 0


def _about(side: DiffSide) -> str:
    return "about " if side.peak_by == "estimate" else ""


def signed_bytes(nbytes: int) -> str:
    """Return a growth in bytes with its sign: `+16.00 MiB`, `−3 B`, `0 B`."""
    sign = "+" if nbytes > 0 else MINUS if nbytes < 0 else ""
    return f"{sign}{format_bytes(abs(nbytes))}"


def growth_text(before: int, after: int) -> str:
    """Return by how much something grew, with its share: `+16.00 MiB (+2.9%)`."""
    return signed_bytes(after - before) + share_text(before, after - before)


def share_text(before: int, growth: int) -> str:
    """Return ` (+2.9%)`; '' where there was nothing before."""
    if not before:
        return ""
    share = 100 * growth / before
    shown = f"{abs(share):.1f}" if abs(share) >= 0.1 else "<0.1"
    return f" ({'+' if share > 0 else MINUS}{shown}%)"


def is_gone(line: LineDifference) -> bool:
    """Return whether the place of a line is that of the earlier side: it has nothing any more."""
    return line.after is None and line.before is not None


def line_figures(line: LineDifference) -> tuple[int, int]:
    """Return the bytes of a line before and after: of what it keeps, else of what differs."""
    if line.growth_nbytes:
        return line.kept_before_nbytes, line.kept_after_nbytes
    if line.host_growth_nbytes:
        return line.host_before_nbytes, line.host_after_nbytes
    return line.peak_before_nbytes, line.peak_after_nbytes


def line_growth(line: LineDifference) -> str:
    """Return by how much a line grew: in what it keeps, else at the peak."""
    before, after = line_figures(line)
    return signed_bytes(after - before)


def line_notes(line: LineDifference, most: int | None) -> tuple[str, ...]:
    """Return what differs at a line besides the bytes that it keeps, its values first.

    Args:
      line: the line.
      most: how many of its values to name; None: all.
    """
    notes = [value_text(value) for value in line.values[:most]]
    if rest := len(line.values) - len(notes):
        notes.append(f"{rest} more")
    if not line.growth_nbytes:
        notes.insert(0, "in host memory" if line.host_growth_nbytes else "at the peak")
    elif line.host_growth_nbytes:
        notes.append(f"{signed_bytes(line.host_growth_nbytes)} in host memory")
    if line.peak_growth_nbytes and (line.growth_nbytes or line.host_growth_nbytes):
        notes.append(f"{signed_bytes(line.peak_growth_nbytes)} at the peak")
    if line.scope:
        notes.append(f"scope {line.scope}")
    return tuple(notes)


def value_text(value: ValueDifference) -> str:
    """Return a difference of values: `+ ×8 f32[2,512] cos`, `×2 f32[4] → bf16[4] tanh`."""
    what = value.name and f"named {value.name!r}"
    what = what or value.primitive or value.path or "constant"
    count = f"×{value.count} " if value.count > 1 else ""
    if value.change == "changed" and value.before is not None and value.after is not None:
        return f"{count}{aval_text(value.before)} → {aval_text(value.after)} {what}"
    sign, aval = ("+", value.after) if value.change == "added" else (MINUS, value.before)
    return f"{sign} {count}{_aval(aval)} {what}"


def _aval(aval: Aval | None) -> str:
    return "" if aval is None else aval_text(aval)


def where_text(location: Location | None, scope: str = "") -> str:
    """Return a place in source with its function; of what is in none of the user's, the module."""
    if location is None:
        return f"scope {scope}" if scope else "in a library"
    return f"{place_text(location)} {location.function}".rstrip()


def checkpoint_heading(difference: CheckpointDifference) -> str:
    """Return what a checkpoint is of, and where it is: `layer at model.py:60`."""
    checkpoint = difference.either
    at = f" at {place_text(checkpoint.location)}" if checkpoint.location else ""
    return f"{checkpoint.function}{at}"


def checkpoint_notes(difference: CheckpointDifference) -> tuple[str, ...]:
    """Return what differs about a checkpoint, its verdict first."""
    was, now = difference.before, difference.after
    if was is None or now is None:
        word = "added" if was is None else "removed"
        found = [word, verdict_text(difference.either.verdict)]
        dropped, flops = difference.either.dropped_nbytes, difference.either.recompute_flops
        if dropped:
            found.append(f"drops {format_bytes(dropped)}")
        if flops:
            found.append(f"recomputes {format_flops(flops)}")
        return tuple(found)
    return tuple(_change_text(change, was, now) for change in difference.changes)


def _change_text(change: str, was: Checkpoint, now: Checkpoint) -> str:
    if change == "verdict":
        return f"{verdict_text(was.verdict)} → {verdict_text(now.verdict)}"
    if change == "policy":
        return f"policy {was.policy or 'none'} → {now.policy or 'none'}"
    if change == "dropped":
        dropped = (format_bytes(each.dropped_nbytes or 0) for each in (was, now))
        return f"drops {' → '.join(dropped)}"
    if change == "recompute":
        flops = (format_flops(each.recompute_flops or 0) for each in (was, now))
        return f"recomputes {' → '.join(flops)}"
    return f"{change} {getattr(was, change)} → {getattr(now, change)}"


def sides_parts(difference: Difference) -> tuple[str, ...]:
    """Return what is compared: the target and both labels, the place, the JAX and the question."""
    before, after = difference.before, difference.after
    target = after.target.name
    named = f"{target}: " if target == before.target.name else ""
    return (
        f"{named}{before.label} → {after.label}",
        f"on {_both(before.place.name, after.place.name)}",
        f"jax {_both(before.jax.version, after.jax.version)}",
        _both(asked(before.target), asked(after.target)),
    )


def _both(one: str, other: str) -> str:
    return one if one == other else f"{one} → {other}"


def by_size(lines: Sequence[LineDifference]) -> list[LineDifference]:
    """Return lines with those that differ most first."""
    return sorted(
        lines,
        key=lambda line: (
            -abs(line.growth_nbytes + line.host_growth_nbytes),
            -abs(line.peak_growth_nbytes),
        ),
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def lines_summary(lines: Sequence[LineDifference]) -> str:
    """Return how many lines there are, and what they grow by together: `3 lines, +1.00 KiB`."""
    growth = sum(line.growth_nbytes for line in lines)
    kept = f", {signed_bytes(growth)} kept" if growth else ""
    return f"{_count(len(lines), 'line')}{kept}"
