"""A comparison of policies for a terminal: the table, the frontier, and the takeaways."""

from __future__ import annotations

import string
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from jaxresid.base.text.safe_text import safe_value
from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.compiled import MAY_FIT_TEXT, verdict_text, warned_texts
from jaxresid.render.report.cost import added_text, at_least
from jaxresid.render.report.estimates import about_text, interval_remarks
from jaxresid.render.report.heading import about, target_line
from jaxresid.render.report.next_step import next_step_lines
from jaxresid.render.report.offloading import render_rows
from jaxresid.render.report.policies import BrokenNames, lines, policy_text
from jaxresid.render.report.sparkline import can_encode
from jaxresid.render.report.times import NOT_CHECKED, time_remark, time_text
from jaxresid.render.style.columns import (
    Column,
    Unit,
    bytes_unit,
    flops_unit,
    headings,
    room_for,
    width_of,
)
from jaxresid.render.style.words import percent
from jaxresid.render.style.wrapping import FlowingParts
from jaxresid.render.tables.frontier import PlotPoint, plot, plotted
from jaxresid.results import (
    Answer,
    Comparison,
    ComparisonRow,
    Compiled,
    Interval,
    PlaceInfo,
    Timing,
)

_FIRST = ("none", "as-written")
_LETTERS = string.ascii_uppercase + string.ascii_lowercase
_NO_LETTER = "."
_PLACES = 6
_FITS, _FITS_NOT, _MAY_FIT = " fits", " no", " may"
_RANK_CHANGED = "~"
_MARKS: dict[Answer | None, str] = {"does not fit": "x", "too close": "?"}


@dataclass(frozen=True, slots=True)
class TableEntry:
    """Rows with the same figures, which are one line of the table.

    Attributes:
      letter: what the plot calls the entry.
      row: the row that is shown.
      same: the other rows.
    """

    letter: str
    row: ComparisonRow
    same: tuple[ComparisonRow, ...] = ()

    @property
    def rows(self) -> tuple[ComparisonRow, ...]:
        """All rows of the entry, the one that is shown first."""
        return (self.row, *self.same)

    @property
    def pareto(self) -> bool:
        """Whether one of the rows is on the Pareto front."""
        return any(r.pareto for r in self.rows)

    @property
    def knee(self) -> bool:
        """Whether one of the rows is the point beyond which saving more memory gets expensive."""
        return any(r.knee for r in self.rows)

    @property
    def suggested(self) -> bool:
        """Whether one of the rows is the one to take."""
        return any(r.suggested for r in self.rows)

    @property
    def name(self) -> str:
        """The letter and the policy: `C dots_saveable`."""
        return f"{self.letter} {policy_text(self.row.policy)}".strip(f"{_NO_LETTER} ")


def entries(comparison: Comparison) -> tuple[TableEntry, ...]:
    """Return the rows that have figures as entries of the table.

    No checkpoint and the code as written come first, the others are sorted by peak, highest first.
    Rows that do not differ in any figure are one entry.
    """
    groups: dict[Hashable, list[ComparisonRow]] = {}
    for row in sorted((r for r in comparison.rows if r.error is None), key=_order):
        groups.setdefault(_figures(row), []).append(row)
    letters = (*_LETTERS, *_NO_LETTER * len(groups))
    return tuple(
        TableEntry(letter, group[0], tuple(group[1:]))
        for letter, group in zip(letters, groups.values(), strict=False)
    )


def takeaways(comparison: Comparison) -> tuple[str, ...]:
    """Return conclusions from the figures, one sentence each.

    The first says what fits: the row to take, or that none does and which is the smallest. Then
    come the knee, the policy with the lowest peak, and what beats the code as written.
    """
    found = entries(comparison)
    plain = next((e for e in found if _holds(e, "none")), None)
    bare = plain.row if plain is not None else None
    knee = next((e for e in found if e.knee), None)
    frontier = [e for e in found if e.pareto]
    sentences = list(_compiled_takeaways(found))
    first = next((e for e in found if e.suggested), None)
    if first is not None and not sentences:
        sentences.append(_fitting(first, found, comparison.place, bare))
    if knee is not None and knee is not first:
        over = ", does not fit" if knee.row.answer == "does not fit" else ""
        sentences.append(f"knee: {knee.name}: {_best_trade(knee.row, bare)}{over}")
    if frontier:
        lowest = min(frontier, key=lambda e: e.row.compared_nbytes or 0)
        if plain is not None and lowest.row.compared_nbytes == plain.row.compared_nbytes:
            if len(found) > 1:
                sentences.append("no policy lowers the peak of this function")
        elif lowest not in (knee, first):
            least = lowest.row.compared_nbytes or 0
            lower = any(
                e.row.host_nbytes
                and e.row.compared_nbytes is not None
                and e.row.compared_nbytes < least
                for e in found
            )
            which = "lowest peak without host memory" if lower else "lowest peak"
            sentences.append(f"{which}: {lowest.name}: {_best_trade(lowest.row, bare)}")
    written = next((e for e in found if _holds(e, "as-written")), None)
    if written is not None and written is not plain:
        better = [e for e in frontier if _dominates(e.row, written.row)]
        if better:
            best = min(better, key=lambda e: e.row.compared_nbytes or 0)
            sentences.append(f"{written.name}: {best.name} {_advantage(best.row, written.row)}")
    return tuple(sentences)


def _fitting(
    first: TableEntry,
    found: Sequence[TableEntry],
    place: PlaceInfo,
    plain: ComparisonRow | None,
) -> str:
    """Return what fits by the estimates, or that nothing does for sure, with the row to take."""
    budget = format_bytes(place.memory_nbytes or 0)
    if first.row.answer == "fits":
        least = _least(first.row, [e.row for e in found if e.row.answer == "fits"])
        return f"fits {budget}{least}: {first.name}: {_best_trade(first.row, plain)}"
    trade = _best_trade(first.row, plain, first.row.interval)
    if first.row.answer == "too close":
        return f"nothing is sure to fit {budget}; {first.name} may: {trade}"
    return f"nothing fits {budget}; the smallest is {first.name}: {trade}"


def _compiled_takeaways(found: Sequence[TableEntry]) -> tuple[str, ...]:
    """Return a sentence for each place: what fits there, and which of that recomputes least."""
    rows = [e.row for e in found]
    return tuple(
        sentence for on in compiled_places(rows) if (sentence := _fitting_at(on, found)) is not None
    )


def _fitting_at(on: str, found: Sequence[TableEntry]) -> str | None:
    told = [(e, c) for e in found if (c := compiled_for(on, e.row)) is not None]
    judged = [(e, c) for e, c in told if c.fits is not None and c.peak_nbytes is not None]
    if not judged:
        return None
    fitting = [(e, c) for e, c in judged if c.fits]
    is_all = len(judged) == sum(e.row.error is None for e in found)
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
    least = _least(e.row, [each.row for each, _ in fitting])
    return f"{on}: {how_many} {verb}{least}: {e.name}, {verdict_text(c).removeprefix('fits: ')}"


def _least(row: ComparisonRow, fitting: Sequence[ComparisonRow]) -> str:
    """Return what sets a row apart from the others that fit; '' where it is the only one."""
    if len(fitting) == 1:
        return ""
    offloading = (other for other in fitting if other.host_nbytes and not row.host_nbytes)
    is_cheaper = any(_costs(other)[1] < _costs(row)[1] for other in offloading)
    return f", with the least recompute{' without host memory' * is_cheaper}"


def compiled_places(rows: Sequence[ComparisonRow]) -> tuple[str, ...]:
    """Return the places that rows were compiled for, each once."""
    return tuple(dict.fromkeys(c.on for row in rows for c in row.compiled))


def compiled_for(on: str, row: ComparisonRow) -> Compiled | None:
    """Return what XLA says of a row for a place; None where it was not compiled for it."""
    return next((c for c in row.compiled if c.on == on), None)


def remarks(comparison: Comparison) -> tuple[str, ...]:
    """Return remarks on what the figures are, and on the intervals of the estimates."""
    found = [_what_figures_are(comparison)]
    if comparison.measured_on is not None:
        rounds = [r.measured.rounds for r in comparison.rows if r.measured is not None]
        times = f", {max(rounds)} rounds: median (lowest-highest)" if rounds else ""
        found.append(f"Measured on {comparison.measured_on}{times}, against no checkpoint.")
    uncosted = sorted({name for row in comparison.rows for name in row.uncosted})
    if uncosted:
        found.append(
            f"No FLOPs known for {', '.join(uncosted)}: recompute is a lower bound, shares and"
            " times are approximate."
        )
    found += _compiled_remarks(comparison)
    timed = [row for row in comparison.rows if row.time_fraction is not None]
    if timed:
        is_all = all(row.time_interval for row in timed)
        basis, where = comparison.time_basis, comparison.times_checked_on
        found.append(time_remark(comparison.place.name, basis, where, is_all=is_all))
    return (*found, *interval_remarks([comparison.place]))


def _what_figures_are(comparison: Comparison) -> str:
    no_time = "; the chip's figures are not known, so the time is not."
    if comparison.place.profile is None:
        return f"FLOPs are estimates{no_time}"
    if comparison.chip:
        return "Peak, FLOPs and time are estimates, the time from the chip's published figures."
    return f"Peak and FLOPs are estimates{no_time}"


def _compiled_remarks(comparison: Comparison) -> Iterator[str]:
    for on in compiled_places(comparison.rows):
        told = [c for row in comparison.rows if (c := compiled_for(on, row)) and c.error is None]
        if not told:
            continue
        each = max(c.devices for c in told)
        of = "one device" if each == 1 else f"each of {each} devices"
        compilers = ", ".join(dict.fromkeys(c.compiler for c in told if c.compiler))
        by = f" by {compilers}" if compilers else ""
        yield f"{on}: XLA's peak on {of}, compiled{by}; if it does not fit, the memory it needs."
        yield from dict.fromkeys(f"{on}: {note}." for c in told for note in c.notes)
        named = [(row.policy, compiled_for(on, row)) for row in comparison.rows]
        warned = warned_texts([(policy_text(policy), c) for policy, c in named if c])
        yield from (f"{on}: {text}; the compile command names the lines." for text in warned)


def gradients_text(comparison: Comparison) -> str:
    """Return whether the gradients agree: `gradients agree in all 9 that ran: ...`.

    The text says so where that cannot be told; it is '' where none was compared or one differs.
    """
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


def render_comparison(comparison: Comparison, encoding: str = "utf-8") -> RenderableType:
    """Return the whole text of a comparison.

    Args:
      comparison: the comparison to show.
      encoding: the encoding of the stream that the text is for.
    """
    comparison = safe_value(comparison)
    found = entries(comparison)
    parts: list[RenderableType] = [
        target_line(comparison.target, [comparison.place], comparison.mesh),
    ]
    sentences = [s for s in (*takeaways(comparison), gradients_text(comparison)) if s]
    if not found:
        sentences.append("no policy gave figures")
    parts += [BrokenNames(Text(s, "bold")) for s in sentences]
    parts += next_step_lines(comparison.next_step)
    parts += [Text(), *_where(comparison)]
    if found:
        parts += [Text(), _Table(comparison, found, encoding)]
        parts.append(
            FlowingParts(_legend(found, comparison.place), separator=" · ", style="dim", indent=2)
        )
        if host := render_rows([(_mark(e), e.row) for e in found]):
            parts += [Text(), *host]
    failed = [row for row in comparison.rows if row.error is not None]
    if failed:
        parts += [Text(), *_failed(failed)]
    parts += _not_compiled(comparison.rows)
    points = tuple(_points(found))
    if plotted(points):
        title = "XLA's peak" if all(e.row.by == "xla" for e in found) else "peak"
        parts += [Text(), _Plot(points, _bytes_unit(found), encoding, title)]
    parts += [Text()]
    parts += [Text(f"warning: {warning}", style="yellow") for warning in comparison.warnings]
    parts += about(comparison.target, comparison.jax, [comparison.place], comparison.mesh)
    parts += [Text(remark, style="dim") for remark in remarks(comparison) if found]
    return Group(*parts)


def print_comparison(comparison: Comparison) -> None:
    """Print a comparison to stdout, or into the notebook's cell."""
    console = Console(highlight=False)
    console.print(render_comparison(comparison, console.encoding))


def _order(row: ComparisonRow) -> tuple[int, int, int]:
    first = _FIRST.index(row.policy) if row.policy in _FIRST else len(_FIRST)
    return first, -(row.compared_nbytes or 0), row.recompute_flops or 0


def _figures(row: ComparisonRow) -> Hashable:
    """Return the figures that two rows have to share to be one entry."""
    return (
        *(row.kept_nbytes, row.host_nbytes, row.peak_nbytes, row.recompute_flops),
        *(row.time_fraction, row.time_interval, row.uncosted, row.measured, row.measure_error),
        *((c.on, c.peak_nbytes, c.fits, c.may_fit, c.error) for c in row.compiled),
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
        shares = (_share(r) for r in (row, other))
        parts.append("recomputes less ({} of the FLOPs instead of {})".format(*shares))
    return " and ".join(parts)


def _share(row: ComparisonRow) -> str:
    return f"{'about ' * bool(row.uncosted)}{percent(row.recompute_fraction or 0, 1)}"


def _where(comparison: Comparison) -> Iterator[RenderableType]:
    places = list(comparison.places[:_PLACES])
    more = len(comparison.places) - len(places)
    if more:
        places.append(f"and {more} more")
    at = Text.assemble(("policies at ", "dim"), (comparison.at, "bold"))
    yield FlowingParts([at, *places], separator="  ", indent=2)


def _legend(found: Sequence[TableEntry], place: PlaceInfo) -> list[str]:
    without_host = " without host memory" * any(e.row.host_nbytes for e in found)
    legend = ["no checkpoint and as written first, then by peak, highest first"]
    if any(e.pareto for e in found):
        legend.append(f"* Pareto-optimal{without_host}")
    if any(e.knee for e in found):
        legend.append("[ ] knee: beyond it, saving more memory gets expensive")
    changed = sum(e.row.rank_changed for e in found)
    if changed:
        legend.append(
            f"{_RANK_CHANGED} XLA's rank by peak is not the estimate's: {changed} of {len(found)}"
        )
    if any(c.may_fit for e in found for c in e.row.compiled):
        legend.append(f"{_MAY_FIT.strip()}: {MAY_FIT_TEXT}")
    answers = {_estimated_answer(e.row) for e in found}
    budget = format_bytes(place.memory_nbytes or 0)
    if "does not fit" in answers:
        legend.append(f"{_MARKS['does not fit']} does not fit {budget}")
    if "too close" in answers:
        legend.append(f"{_MARKS['too close']} too close to {budget}: --compile decides")
    return legend


def _estimated_answer(row: ComparisonRow) -> Answer | None:
    """Return whether a row fits as far as its estimate can tell; None if XLA was asked."""
    return None if row.compiled else row.answer


def _failed(failed: Sequence[ComparisonRow]) -> Iterator[RenderableType]:
    """Yield one line for each error, after the policies that have it."""
    groups: dict[str, list[str]] = {}
    for row in failed:
        groups.setdefault(" ".join((row.error or "").split()), []).append(policy_text(row.policy))
    yield Text("without figures", style="bold")
    for error, policies in groups.items():
        yield BrokenNames(Text.assemble((", ".join(policies), "yellow"), f": {error}"))


def _not_compiled(rows: Sequence[ComparisonRow]) -> Iterator[RenderableType]:
    """Yield one line for each reason not to be compiled, after the policies that have it."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for c in row.compiled:
            if c.error is not None:
                groups.setdefault((c.on, c.error), []).append(policy_text(row.policy))
    if groups:
        yield Text()
        yield Text("not compiled", style="bold")
    for (on, error), policies in groups.items():
        names = "all" if len(policies) > 1 and len(policies) == len(rows) else ", ".join(policies)
        yield BrokenNames(Text.assemble((f"{on}: {names}", "yellow"), f": {error}"))


def _points(found: Sequence[TableEntry]) -> Iterator[PlotPoint]:
    for e in found:
        r = e.row
        if r.compared_nbytes is not None and r.recompute_fraction is not None:
            yield PlotPoint(r.recompute_fraction, r.compared_nbytes, e.letter, e.pareto, e.knee)


def _bytes_unit(found: Sequence[TableEntry]) -> Unit:
    return bytes_unit(
        n for e in found for n in (e.row.peak_nbytes, e.row.kept_nbytes, e.row.host_nbytes) if n
    )


@dataclass(frozen=True, slots=True)
class _Plot:
    """The frontier, drawn in the available width."""

    points: Sequence[PlotPoint]
    unit: Unit
    encoding: str
    title: str = "peak"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        peaks = sorted(p.peak for p in self.points)
        recomputes = sorted(p.recompute for p in self.points)
        drawn, hidden = plot(
            self.points,
            (self.unit.text(peaks[0]), self.unit.text(peaks[-1])),
            (percent(recomputes[0], 1), percent(recomputes[-1], 1)),
            options.max_width,
            self.encoding,
        )
        yield Text(f"{self.title}, {self.unit.name}", style="cyan")
        yield from drawn
        under = ["recompute, % of the FLOPs without checkpoints"]
        if hidden:
            under.append(f"hidden behind others: {' '.join(hidden)}")
        yield FlowingParts(under, separator="; ", style="dim")


@dataclass(frozen=True, slots=True)
class _Table:
    """The table: figures on the left, policies on the right in the remaining width."""

    comparison: Comparison
    entries: Sequence[TableEntry]
    encoding: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = _columns(self.entries, self.comparison.place, self.encoding)
        beside = width_of(columns) <= room_for(options.max_width)
        yield from headings(columns, beside=beside)
        for i, e in enumerate(self.entries):
            mark, *figures = (column.cell(i) for column in columns)
            if e.pareto:
                mark.stylize("bold green")
            names, notes = list(_names(e, self.comparison.at)), list(_notes(e.row))
            if beside:
                yield _hanging(Text().join([mark, *figures]), [*names, *notes], options.max_width)
            else:
                yield _hanging(mark, names, options.max_width)
                yield Text(" " * mark.cell_len) + Text().join(figures)
                if notes:
                    yield _hanging(Text(" " * mark.cell_len), notes, options.max_width)


def _hanging(start: Text, texts: Sequence[Text], width: int) -> Text:
    """Return texts under each other to the right of a start."""
    left = start.cell_len
    first, *rest = (line for text in texts for line in lines(text, width - left))
    return Text("\n").join([start + first, *(Text(" " * left) + line for line in rest)])


def _columns(found: Sequence[TableEntry], place: PlaceInfo, encoding: str) -> list[Column]:
    rows = [e.row for e in found]
    unit = _bytes_unit(found)
    flops = flops_unit(r.recompute_flops or 0 for r in rows)
    times = "×" if can_encode("×", encoding) else "x"

    def of_bytes(name: str, values: Sequence[int | None], style: str = "") -> Column:
        return Column((name, unit.name), tuple(unit.text(v or 0) for v in values), style)

    columns = [Column(("", ""), tuple(_mark(e) for e in found))]
    if place.profile is not None:  # otherwise it is XLA's, which has a column of its own
        columns.append(of_bytes("peak", [r.peak_nbytes for r in rows], "cyan"))
    if any(r.interval for r in rows):
        columns.append(_intervals(rows, place, unit))
    columns.append(of_bytes("kept", [r.kept_nbytes for r in rows]))
    if any(r.host_nbytes for r in rows):
        columns.append(of_bytes("host", [r.host_nbytes for r in rows]))
    columns.append(_recompute(rows, flops))
    if any(r.time_fraction is not None for r in rows):
        columns.append(_times(rows, times))
    columns += [_place(on, rows) for on in compiled_places(rows) if _has_figures(on, rows)]
    if any(r.measured for r in rows):
        texts = tuple(_ratio(r.measured, times) if r.measured else "" for r in rows)
        columns.append(Column(("", "measured"), texts))
    return columns


def _intervals(rows: Sequence[ComparisonRow], place: PlaceInfo, unit: Unit) -> Column:
    """Return the column of the intervals around the peaks, each marked where it may not fit."""
    marks = [_MARKS.get(_estimated_answer(row), "") for row in rows]
    width = 2 * any(marks)
    texts = []
    for row, mark in zip(rows, marks, strict=True):
        ends = row.interval
        text = f"{unit.short(ends.low_nbytes)}-{unit.short(ends.high_nbytes)}" if ends else ""
        texts.append(text + f" {mark}".ljust(2)[:width])
    return Column(("interval" + " " * width, unit.name + " " * width), tuple(texts))


def _has_figures(on: str, rows: Sequence[ComparisonRow]) -> bool:
    """Return whether XLA gave figures of any of the rows for a place."""
    return any(c.on == on and c.error is None for row in rows for c in row.compiled)


def _place(on: str, rows: Sequence[ComparisonRow]) -> Column:
    """Return the column of XLA's peak for a place, and whether it fits."""
    told = [compiled_for(on, row) for row in rows]
    unit = bytes_unit(c.peak_nbytes for c in told if c is not None and c.peak_nbytes is not None)
    unit_name = unit.name + " " * len(_FITS)
    texts = []
    for compiled in told:
        peak = None if compiled is None else compiled.peak_nbytes
        if compiled is None or (peak is None and compiled.fits is None):
            texts.append("?".ljust(1 + len(_FITS)))
            continue
        word = {True: _FITS, False: _FITS_NOT, None: ""}[compiled.fits]
        word = _MAY_FIT if compiled.may_fit else word
        texts.append(("?" if peak is None else unit.text(peak)) + word.ljust(len(_FITS)))
    if any(row.rank_changed for row in rows):
        marks = [_RANK_CHANGED if row.rank_changed else " " for row in rows]
        texts = [text + mark for text, mark in zip(texts, marks, strict=True)]
        unit_name += " "
    return Column((on, unit_name), tuple(texts), "cyan")


def _mark(entry: TableEntry) -> str:
    letter = f"[{entry.letter}]" if entry.knee else f" {entry.letter} "
    return letter + ("*" if entry.pareto else " ")


def _recompute(rows: Sequence[ComparisonRow], unit: Unit) -> Column:
    """Return one column with the FLOPs and their share."""
    flops = [at_least(r.uncosted) + unit.text(r.recompute_flops or 0) for r in rows]
    shares = [percent(r.recompute_fraction, 1) if r.recompute_fraction else "" for r in rows]
    wide, narrow = max(map(len, (*flops, unit.name))), max(map(len, (*shares, "%")))
    texts = [
        f"{f:>{wide}} {s:>{narrow}}".rstrip().ljust(wide + 1 + narrow)
        for f, s in zip(flops, shares, strict=True)
    ]
    units = f"{unit.name:>{wide}} {'%':>{narrow}}"
    return Column(("recompute", units), tuple(texts))


def _times(rows: Sequence[ComparisonRow], times: str) -> Column:
    """Return the column of the estimated times, marked where some were checked and one was not."""
    is_checked = any(row.time_interval for row in rows)
    texts = []
    for row in rows:
        text = ""
        if row.time_fraction is not None:
            text = time_text(row.time_fraction, row.time_interval, times)
            if is_checked and row.time_interval is None:
                text += f" {NOT_CHECKED}"
        texts.append(text)
    return Column(("time", "est."), tuple(texts))


def _ratio(timing: Timing, times: str) -> str:
    """Return how often as long it took as without checkpoints; where that did not run, how long."""
    if timing.ratio is None:
        return f"{timing.seconds:.3g} s"
    return f"{times}{timing.ratio:.2f} ({timing.low:.2f}-{timing.high:.2f})"


def _names(entry: TableEntry, at: str) -> Iterator[Text]:
    """Yield the policy of an entry, and those with the same figures."""
    for i, row in enumerate(entry.rows):
        text = Text("" if i == 0 else "= ", style="dim" if i else "")
        text.append(policy_text(row.policy), style="bold" if i == 0 and entry.pareto else "")
        if row.at != at and row.policy not in _FIRST:
            text.append(f" at {row.at}", style="dim")
        if row.offloading is not None and row.offloading.without_effect:
            text.append("  offloads nothing", style="yellow")
        yield text


def _notes(row: ComparisonRow) -> Iterator[Text]:
    """Yield what went wrong when a row was measured."""
    if row.measure_error is not None:
        error = " ".join(row.measure_error.split())
        yield Text(f"not measured: {error}", style="yellow")
    timing = row.measured
    if timing is not None and timing.agrees is False:
        yield Text(
            f"gradients differ by {timing.gradient_error:.1e} (tolerance {timing.tolerance:.0e})",
            style="bold red",
        )
