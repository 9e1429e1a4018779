"""A comparison of policies for a terminal: the takeaways, the table, and the frontier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from jaxresid.base.text.safe_text import safe_value
from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.compiled import MAY_FIT_TEXT
from jaxresid.render.report.cost import at_least
from jaxresid.render.report.heading import about, places_line, target_line
from jaxresid.render.report.next_step import next_step_lines
from jaxresid.render.report.offloading import render_rows
from jaxresid.render.report.policies import BrokenNames, lines, policy_text
from jaxresid.render.report.times import NOT_CHECKED, time_text
from jaxresid.render.style.columns import (
    Column,
    Unit,
    bytes_unit,
    flops_unit,
    headings,
    room_for,
    width_of,
)
from jaxresid.render.style.encodings import can_encode
from jaxresid.render.style.words import percent
from jaxresid.render.style.wrapping import FlowingParts
from jaxresid.render.tables.entries import FIRST, TableEntry, compiled_for, compiled_places, entries
from jaxresid.render.tables.frontier import PlotPoint, plot, plotted
from jaxresid.render.tables.takeaways import gradients_text, remarks, takeaways
from jaxresid.results import (
    Answer,
    Comparison,
    ComparisonRow,
    PlaceInfo,
    Timing,
)

_FITS, _FITS_NOT, _MAY_FIT = " fits", " no", " may"
_RANK_CHANGED = "~"
_MARKS: dict[Answer | None, str] = {"does not fit": "x", "too close": "?"}


def render_comparison(comparison: Comparison, encoding: str = "utf-8") -> RenderableType:
    """Return the whole text of a comparison."""
    comparison = safe_value(comparison)
    table = entries(comparison)
    parts: list[RenderableType] = [
        target_line(comparison.target, [comparison.place], comparison.mesh),
    ]
    sentences = [s for s in (*takeaways(comparison), gradients_text(comparison)) if s]
    if not table:
        sentences.append("no policy gave figures")
    parts += [BrokenNames(Text(s, "bold")) for s in sentences]
    parts += next_step_lines(comparison.next_step)
    parts += [Text(), places_line(comparison.at, comparison.places)]
    if table:
        parts += [Text(), _Table(comparison, table, encoding)]
        parts.append(
            FlowingParts(_legend(table, comparison.place), separator=" · ", style="dim", indent=2)
        )
        if host := render_rows([(_mark(e), e.row) for e in table]):
            parts += [Text(), *host]
    failed = [row for row in comparison.rows if row.error is not None]
    if failed:
        parts += [Text(), *_failed(failed)]
    parts += _not_compiled(comparison.rows)
    points = tuple(_points(table))
    if plotted(points):
        title = "XLA's peak" if all(e.row.by == "xla" for e in table) else "peak"
        parts += [Text(), _Plot(points, _bytes_unit(table), encoding, title)]
    parts += [Text()]
    parts += [Text(f"warning: {warning}", style="yellow") for warning in comparison.warnings]
    parts += about(comparison.target, comparison.jax, [comparison.place], comparison.mesh)
    parts += [Text(remark, style="dim") for remark in remarks(comparison) if table]
    return Group(*parts)


def _legend(table: Sequence[TableEntry], place: PlaceInfo) -> list[str]:
    without_host = " without host memory" * any(e.row.host_nbytes for e in table)
    legend = ["no checkpoint and as written first, then by peak, highest first"]
    if any(e.pareto for e in table):
        legend.append(f"* Pareto-optimal{without_host}")
    if any(e.knee for e in table):
        legend.append("[ ] knee: beyond it, saving more memory gets expensive")
    changed = sum(e.row.rank_changed for e in table)
    if changed:
        legend.append(
            f"{_RANK_CHANGED} XLA's rank by peak is not the estimate's: {changed} of {len(table)}"
        )
    if any(c.may_fit for e in table for c in e.row.compiled):
        legend.append(f"{_MAY_FIT.strip()}: {MAY_FIT_TEXT}")
    answers = {_estimated_answer(e.row) for e in table}
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
    groups: dict[str, list[str]] = {}
    for row in failed:
        groups.setdefault(" ".join((row.error or "").split()), []).append(policy_text(row.policy))
    yield Text("without figures", style="bold")
    for error, policies in groups.items():
        yield BrokenNames(Text.assemble((", ".join(policies), "yellow"), f": {error}"))


def _not_compiled(rows: Sequence[ComparisonRow]) -> Iterator[RenderableType]:
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


def _points(table: Sequence[TableEntry]) -> Iterator[PlotPoint]:
    for e in table:
        r = e.row
        if r.compared_nbytes is not None and r.recompute_fraction is not None:
            yield PlotPoint(r.recompute_fraction, r.compared_nbytes, e.letter, e.pareto, e.knee)


def _bytes_unit(table: Sequence[TableEntry]) -> Unit:
    return bytes_unit(
        n for e in table for n in (e.row.peak_nbytes, e.row.kept_nbytes, e.row.host_nbytes) if n
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
    left = start.cell_len
    first, *rest = (line for text in texts for line in lines(text, width - left))
    return Text("\n").join([start + first, *(Text(" " * left) + line for line in rest)])


def _columns(table: Sequence[TableEntry], place: PlaceInfo, encoding: str) -> list[Column]:
    rows = [e.row for e in table]
    unit = _bytes_unit(table)
    flops = flops_unit(r.recompute_flops or 0 for r in rows)
    times = "×" if can_encode("×", encoding) else "x"

    def of_bytes(name: str, values: Sequence[int | None], style: str = "") -> Column:
        return Column((name, unit.name), tuple(unit.text(v or 0) for v in values), style)

    columns = [Column(("", ""), tuple(_mark(e) for e in table))]
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
    with_figures = {c.on for row in rows for c in row.compiled if c.error is None}
    columns += [_place(on, rows) for on in compiled_places(rows) if on in with_figures]
    if any(r.measured for r in rows):
        texts = tuple(_ratio(r.measured, times) if r.measured else "" for r in rows)
        columns.append(Column(("", "measured"), texts))
    return columns


def _intervals(rows: Sequence[ComparisonRow], place: PlaceInfo, unit: Unit) -> Column:
    marks = [_MARKS.get(_estimated_answer(row), "") for row in rows]
    width = 2 * any(marks)
    texts = []
    for row, mark in zip(rows, marks, strict=True):
        ends = row.interval
        text = f"{unit.short(ends.low_nbytes)}-{unit.short(ends.high_nbytes)}" if ends else ""
        texts.append(text + f" {mark}".ljust(2)[:width])
    return Column(("interval" + " " * width, unit.name + " " * width), tuple(texts))


def _place(on: str, rows: Sequence[ComparisonRow]) -> Column:
    by_row = [compiled_for(on, row) for row in rows]
    unit = bytes_unit(c.peak_nbytes for c in by_row if c is not None and c.peak_nbytes is not None)
    unit_name = unit.name + " " * len(_FITS)
    texts = []
    for compiled in by_row:
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
    for i, row in enumerate(entry.rows):
        text = Text("" if i == 0 else "= ", style="dim" if i else "")
        text.append(policy_text(row.policy), style="bold" if i == 0 and entry.pareto else "")
        if row.at != at and row.policy not in FIRST:
            text.append(f" at {row.at}", style="dim")
        if row.offloading is not None and row.offloading.without_effect:
            text.append("  offloads nothing", style="yellow")
        yield text


def _notes(row: ComparisonRow) -> Iterator[Text]:
    if row.measure_error is not None:
        error = " ".join(row.measure_error.split())
        yield Text(f"not measured: {error}", style="yellow")
    timing = row.measured
    if timing is not None and timing.agrees is False:
        yield Text(
            f"gradients differ by {timing.gradient_error:.1e} (tolerance {timing.tolerance:.0e})",
            style="bold red",
        )
