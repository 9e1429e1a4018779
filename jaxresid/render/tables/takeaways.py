"""What a comparison comes to, in sentences: what fits, what to take, and what the figures are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.compiled import verdict_text, warned_texts
from jaxresid.render.report.cost import added_text
from jaxresid.render.report.estimates import about_text, interval_remarks
from jaxresid.render.report.policies import policy_text
from jaxresid.render.report.times import time_remark
from jaxresid.render.style.words import percent
from jaxresid.render.tables.entries import TableEntry, compiled_for, compiled_places, entries
from jaxresid.results import Comparison, ComparisonRow, Interval, PlaceInfo


def takeaways(comparison: Comparison) -> tuple[str, ...]:
    """Return conclusions from the figures, one sentence each.

    The first says what fits: the row to take, or that none does and which is the smallest. Then
    come the knee, the policy with the lowest peak, and what beats the code as written.
    """
    table = entries(comparison)
    plain = next((e for e in table if _holds(e, "none")), None)
    bare = plain.row if plain is not None else None
    knee = next((e for e in table if e.knee), None)
    frontier = [e for e in table if e.pareto]
    sentences = list(_compiled_takeaways(table))
    first = next((e for e in table if e.suggested), None)
    if first is not None and not sentences:
        sentences.append(_fitting(first, table, comparison.place, bare))
    if knee is not None and knee is not first:
        over = ", does not fit" if knee.row.answer == "does not fit" else ""
        sentences.append(f"knee: {knee.name}: {_best_trade(knee.row, bare)}{over}")
    if frontier:
        lowest = min(frontier, key=lambda e: e.row.compared_nbytes or 0)
        if plain is not None and lowest.row.compared_nbytes == plain.row.compared_nbytes:
            if len(table) > 1:
                sentences.append("no policy lowers the peak of this function")
        elif lowest not in (knee, first):
            least = lowest.row.compared_nbytes or 0
            lower = any(
                e.row.host_nbytes
                and e.row.compared_nbytes is not None
                and e.row.compared_nbytes < least
                for e in table
            )
            which = "lowest peak without host memory" if lower else "lowest peak"
            sentences.append(f"{which}: {lowest.name}: {_best_trade(lowest.row, bare)}")
    written = next((e for e in table if _holds(e, "as-written")), None)
    if written is not None and written is not plain:
        better = [e for e in frontier if _dominates(e.row, written.row)]
        if better:
            best = min(better, key=lambda e: e.row.compared_nbytes or 0)
            sentences.append(f"{written.name}: {best.name} {_advantage(best.row, written.row)}")
    return tuple(sentences)


def _fitting(
    first: TableEntry,
    table: Sequence[TableEntry],
    place: PlaceInfo,
    plain: ComparisonRow | None,
) -> str:
    budget = format_bytes(place.memory_nbytes or 0)
    if first.row.answer == "fits":
        least = _least(first.row, [e.row for e in table if e.row.answer == "fits"])
        return f"fits {budget}{least}: {first.name}: {_best_trade(first.row, plain)}"
    trade = _best_trade(first.row, plain, first.row.interval)
    if first.row.answer == "too close":
        return f"nothing is sure to fit {budget}; {first.name} may: {trade}"
    return f"nothing fits {budget}; the smallest is {first.name}: {trade}"


def _compiled_takeaways(table: Sequence[TableEntry]) -> tuple[str, ...]:
    rows = [e.row for e in table]
    return tuple(
        sentence for on in compiled_places(rows) if (sentence := _fitting_at(on, table)) is not None
    )


def _fitting_at(on: str, table: Sequence[TableEntry]) -> str | None:
    compiled = [(e, c) for e in table if (c := compiled_for(on, e.row)) is not None]
    judged = [(e, c) for e, c in compiled if c.fits is not None and c.peak_nbytes is not None]
    if not judged:
        return None
    fitting = [(e, c) for e, c in judged if c.fits]
    is_all = len(judged) == sum(e.row.error is None for e in table)
    which = "one that was" if len(judged) == 1 else f"{len(judged)} that were"
    asked = "" if is_all else f" of the {which} compiled"
    if not fitting:
        e, c = min(judged, key=lambda pair: pair[1].peak_nbytes or 0)
        nothing = "nothing" if is_all else f"none{asked}"
        return f"{on}: {nothing} fits; the smallest is {e.name}: {verdict_text(c)}"
    e, c = min(fitting, key=lambda pair: (not pair[0].suggested, _costs(pair[0].row)[1]))
    if len(fitting) == len(judged) == 1:
        return f"{on}: {e.name} {verdict_text(c)}"
    how_many = "everything" if len(fitting) == len(judged) else f"{len(fitting)} of {len(judged)}"
    if not is_all:
        how_many = f"{len(fitting)}{asked}"
    verb = "fits" if how_many == "everything" or len(fitting) == 1 else "fit"
    least = _least(e.row, [entry.row for entry, _ in fitting])
    return f"{on}: {how_many} {verb}{least}: {e.name}, {verdict_text(c).removeprefix('fits: ')}"


def _least(row: ComparisonRow, fitting: Sequence[ComparisonRow]) -> str:
    """Return what sets a row apart from the others that fit; '' where it is the only one."""
    if len(fitting) == 1:
        return ""
    offloading = (other for other in fitting if other.host_nbytes and not row.host_nbytes)
    is_cheaper = any(_costs(other)[1] < _costs(row)[1] for other in offloading)
    return f", with the least recompute{' without host memory' * is_cheaper}"


def remarks(comparison: Comparison) -> tuple[str, ...]:
    """Return remarks on what the figures are, and on the intervals of the estimates."""
    sentences = [_what_figures_are(comparison)]
    if comparison.measured_on is not None:
        rounds = [r.measured.rounds for r in comparison.rows if r.measured is not None]
        times = f", {max(rounds)} rounds: median (lowest-highest)" if rounds else ""
        sentences.append(f"Measured on {comparison.measured_on}{times}, against no checkpoint.")
    uncosted = sorted({name for row in comparison.rows for name in row.uncosted})
    if uncosted:
        sentences.append(
            f"No FLOPs known for {', '.join(uncosted)}: recompute is a lower bound, shares and"
            " times are approximate."
        )
    sentences += _compiled_remarks(comparison)
    timed = [row for row in comparison.rows if row.time_fraction is not None]
    if timed:
        is_all = all(row.time_interval for row in timed)
        basis, where = comparison.time_basis, comparison.times_checked_on
        sentences.append(time_remark(comparison.place.name, basis, where, is_all=is_all))
    return (*sentences, *interval_remarks([comparison.place]))


def _what_figures_are(comparison: Comparison) -> str:
    no_time = "; the chip's figures are not known, so the time is not."
    if comparison.place.profile is None:
        return f"FLOPs are estimates{no_time}"
    if comparison.chip:
        return "Peak, FLOPs and time are estimates, the time from the chip's published figures."
    return f"Peak and FLOPs are estimates{no_time}"


def _compiled_remarks(comparison: Comparison) -> Iterator[str]:
    for on in compiled_places(comparison.rows):
        compiled = [
            c for row in comparison.rows if (c := compiled_for(on, row)) and c.error is None
        ]
        if not compiled:
            continue
        devices = max(c.devices for c in compiled)
        of = "one device" if devices == 1 else f"each of {devices} devices"
        compilers = ", ".join(dict.fromkeys(c.compiler for c in compiled if c.compiler))
        by = f" by {compilers}" if compilers else ""
        yield f"{on}: XLA's peak on {of}, compiled{by}; if it does not fit, the memory it needs."
        yield from dict.fromkeys(f"{on}: {note}." for c in compiled for note in c.notes)
        named = [(row.policy, compiled_for(on, row)) for row in comparison.rows]
        warned = warned_texts([(policy_text(policy), c) for policy, c in named if c])
        yield from (f"{on}: {text}; the compile command names the lines." for text in warned)


def gradients_text(comparison: Comparison) -> str:
    """Return whether the gradients agree, or are unknown; '' where one differs or none was."""
    timings = [r.measured for r in comparison.rows if r.measured is not None]
    is_referred = any(r.policy == "none" and r.measured for r in comparison.rows)
    compared = [(t.gradient_error, t.tolerance) for t in timings if t.gradient_error is not None]
    if not all(error <= tolerance for error, tolerance in compared):  # NaN too
        return ""
    unknown = len(timings) - len(compared)
    if unknown and is_referred:
        return (
            f"cannot tell whether the gradients agree in {unknown} of {len(timings)} that ran: they"
            " contain NaNs, or only zeros and infinities"
        )
    if not compared:
        return ""
    error, tolerance = max(compared)
    return (
        f"gradients agree in all {len(compared)} that ran: largest relative difference"
        f" {error:.1e}, tolerance {tolerance:.0e}"
    )


def _holds(entry: TableEntry, policy: str) -> bool:
    return any(row.policy == policy for row in entry.rows)


def _dominates(row: ComparisonRow, other: ComparisonRow) -> bool:
    """Return whether a row is better in peak or recompute and worse in neither."""
    if row.compared_nbytes is None or other.compared_nbytes is None:
        return False
    mine, theirs = _costs(row), _costs(other)
    return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))


def _costs(row: ComparisonRow) -> tuple[int, int]:
    return row.compared_nbytes or 0, row.recompute_flops or 0


def _best_trade(
    row: ComparisonRow, plain: ComparisonRow | None, interval: Interval | None = None
) -> str:
    shown = format_bytes(row.compared_nbytes or 0)
    peak = f"peak {shown}"
    if interval is not None:
        peak = f"peak {about_text(row.compared_nbytes or 0, interval)}"
    if plain is not None and plain.compared_nbytes is not None:
        before = format_bytes(plain.compared_nbytes)
        peak += f" instead of {before}" if before != shown else ""
    added = added_text(row.recompute_flops or 0, row.recompute_fraction or 0.0, row.uncosted)
    return f"{peak}, {added}"


def _advantage(row: ComparisonRow, other: ComparisonRow) -> str:
    parts = []
    if _costs(row)[0] < _costs(other)[0]:
        peaks = (format_bytes(r.compared_nbytes or 0) for r in (row, other))
        parts.append("has a lower peak ({} instead of {})".format(*peaks))
    if _costs(row)[1] < _costs(other)[1]:
        shares = (
            f"{'about ' * bool(r.uncosted)}{percent(r.recompute_fraction or 0, 1)}"
            for r in (row, other)
        )
        parts.append("recomputes less ({} of the FLOPs instead of {})".format(*shares))
    return " and ".join(parts)
