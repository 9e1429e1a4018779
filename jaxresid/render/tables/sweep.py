"""A sweep for a terminal: for each place a table of policies by batch sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from jaxresid.base.text.safe_text import safe_value
from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.compiled import MAY_FIT_TEXT, warned_texts
from jaxresid.render.report.heading import about, target_line
from jaxresid.render.report.policies import BrokenNames, lines, policy_text
from jaxresid.render.style.columns import Column, Unit, bytes_unit, headings, room_for, width_of
from jaxresid.render.style.words import percent
from jaxresid.render.style.wrapping import FlowingParts
from jaxresid.results import Compiled, Sweep, SweepRow

_PLACES = 6
_TOO_MUCH, _MAY_FIT = "x", "?"
_ERROR = "error"
_NOTHING = "-"

Table = Mapping[tuple[str, int | None], SweepRow]


def render_sweep(sweep: Sweep) -> RenderableType:
    """Return the whole text of a sweep."""
    sweep = safe_value(sweep)
    parts: list[RenderableType] = [target_line(sweep.target, sweep.on, None)]
    if sweep.at:
        parts.append(_where(sweep))
    for on in (place.name for place in sweep.on):
        table = {(row.policy, row.batch): row for row in sweep.rows if row.on == on}
        if any(_peak(row) is not None for row in table.values()):
            parts += [Text(), _place(on, table), _Table(sweep, table), *_remarks(table)]
    failed = [row for row in sweep.rows if row.error is not None]
    if failed:
        parts += [Text(), Text("not compiled", style="bold"), *_failed(failed, sweep)]
    parts.append(Text())
    parts += [Text(f"warning: {warning}", style="yellow") for warning in sweep.warnings]
    parts += about(sweep.target, sweep.jax, sweep.on)
    parts.append(Text(_counts(sweep), style="dim"))
    return Group(*parts)


def print_sweep(sweep: Sweep) -> None:
    """Print a sweep to stdout, or into the notebook's cell."""
    Console(highlight=False).print(render_sweep(sweep))


def largest(policy: str, batches: Sequence[int], table: Table) -> int | None:
    """Return the largest batch size that fits with a policy; None where none fits."""
    return max((b for b in batches if _fits(table.get((policy, b)))), default=None)


def _where(sweep: Sweep) -> RenderableType:
    places = list(sweep.places[:_PLACES])
    more = len(sweep.places) - len(places)
    if more:
        places.append(f"and {more} more")
    at = Text.assemble(("policies at ", "dim"), (sweep.at, "bold"))
    return FlowingParts([at, *places], separator="  ", indent=2)


def _place(on: str, table: Table) -> Text:
    text = Text.assemble((on, "bold"))
    capacities = {c.capacity_nbytes for c in _compiled(table)} - {None}
    if len(capacities) == 1:
        text.append(f"  {format_bytes(capacities.pop() or 0)} per device")
    devices = sorted({c.devices for c in _compiled(table)})
    if devices and devices[-1] > 1:
        text.append(f"  split over {' or '.join(map(str, devices))}")
    return text


def _remarks(table: Table) -> Iterator[RenderableType]:
    legend = [
        "memory at XLA's peak" + " on one device" * any(c.devices > 1 for c in _compiled(table))
    ]
    if any(c.fits is False and not c.may_fit for c in _compiled(table)):
        legend.append(f"{_TOO_MUCH} does not fit")
    if any(c.may_fit for c in _compiled(table)):
        legend.append(f"{_MAY_FIT} {MAY_FIT_TEXT}")
    if all(c.fits is None and not c.may_fit for c in _compiled(table)):
        legend.append("the available memory is not known")
    legend += dict.fromkeys(c.compiler for c in _compiled(table) if c.compiler)
    yield FlowingParts(legend, style="dim", indent=2)
    for note in dict.fromkeys(note for c in _compiled(table) for note in c.notes):
        yield BrokenNames(f"note: {note}", "dim")
    named = [(policy_text(policy), row.compiled) for (policy, _), row in table.items()]
    for text in warned_texts([(policy, compiled) for policy, compiled in named if compiled]):
        yield BrokenNames(f"note: {text}; the compile command names the lines", "dim")


def _failed(failed: Sequence[SweepRow], sweep: Sweep) -> Iterator[RenderableType]:
    """Yield one line for each error, after the places, policies and batch sizes that have it."""
    groups: dict[str, list[SweepRow]] = {}
    for row in failed:
        groups.setdefault(" ".join((row.error or "").split()), []).append(row)
    for error, rows in groups.items():
        policies = dict.fromkeys(policy_text(row.policy) for row in rows)
        batches = dict.fromkeys(str(row.batch) for row in rows if row.batch is not None)
        which = [", ".join(dict.fromkeys(row.on for row in rows))]
        which += [", ".join(policies)] if sweep.at else []
        which += [f"{sweep.size_name} {', '.join(batches)}"] if batches else []
        yield BrokenNames(Text.assemble(("; ".join(which), "yellow"), f": {error}"))


def _counts(sweep: Sweep) -> str:
    """Return how the results came about: `30 results: 22 compiled, 6 there already, 2 failed`."""
    failed = sum(row.error is not None for row in sweep.rows)
    resumed = sum(row.resumed for row in sweep.rows if row.error is None)
    counts = (
        (len(sweep.rows) - failed - resumed, "compiled"),
        (resumed, "already in the file"),
        (failed, "failed"),
    )
    listed = ", ".join(f"{n} {words}" for n, words in counts if n)
    return f"{len(sweep.rows)} result{'s' * (len(sweep.rows) != 1)}: {listed}"


def _compiled(table: Table) -> Iterator[Compiled]:
    for row in table.values():
        if row.compiled is not None and row.error is None:
            yield row.compiled


def _peak(row: SweepRow | None) -> int | None:
    return row.compiled.peak_nbytes if row is not None and row.compiled is not None else None


def _fits(row: SweepRow | None) -> bool | None:
    return row.compiled.fits if row is not None and row.compiled is not None else None


@dataclass(frozen=True, slots=True)
class _Table:
    """The table: figures on the left, policies on the right in the remaining width."""

    sweep: Sweep
    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for n, columns in enumerate(_blocks(_columns(self.sweep, self.table), options.max_width)):
            if n:
                yield Text()
            yield from self._block(columns, options.max_width)

    def _block(self, columns: Sequence[Column], max_width: int) -> Iterator[RenderableType]:
        width = width_of(columns)
        beside = width <= room_for(max_width)
        yield from headings(columns, beside=beside and bool(self.sweep.at))
        for i, policy in enumerate(self.sweep.policies):
            text = policy_text(policy) if self.sweep.at else ""
            figures = Text().join(column.cell(i) for column in columns)
            if beside:
                first, *rest = lines(Text(text), max_width - width)
                yield figures + first
                yield from (Text(" " * width) + line for line in rest)
            else:
                yield from [BrokenNames(text)] * bool(text)
                figures.rstrip()
                yield figures


def _blocks(columns: Sequence[Column], max_width: int) -> list[list[Column]]:
    """Return the columns in as many tables as they need, one under the other."""
    blocks: list[list[Column]] = [[]]
    room = max_width if width_of(columns) <= max_width else room_for(max_width)
    for column in columns:
        if blocks[-1] and width_of([*blocks[-1], column]) > room:
            blocks.append([])
        blocks[-1].append(column)
    return blocks


def _columns(sweep: Sweep, table: Table) -> list[Column]:
    batches: tuple[int | None, ...] = sweep.batches or (None,)
    unit = bytes_unit(peak for row in table.values() if (peak := _peak(row)) is not None)
    is_marked = any(_mark(row) for row in table.values())
    columns = []
    for batch in batches:
        rows = [table.get((policy, batch)) for policy in sweep.policies]
        name = (
            "peak"
            if batch is None
            else f"{sweep.size_name} {batch}"
            if batch == batches[0]
            else f"{batch}"
        )
        pad = f" {' ' * len(_TOO_MUCH)}" * is_marked
        texts = tuple(_figure(row, unit, is_marked) for row in rows)
        styles = tuple("red" if _fits(row) is False else "" for row in rows)
        columns.append(Column((name + pad, unit.name + pad), texts, styles=styles))
    if any(_fits(row) is not None for row in table.values()):
        columns.append(_verdicts(sweep, table))
    if sweep.at:
        columns.append(_recompute(sweep, table))
    return columns


def _figure(row: SweepRow | None, unit: Unit, is_marked: bool) -> str:
    peak = _peak(row)
    text = _ERROR if peak is None else unit.text(peak)
    return f"{text} {_mark(row).ljust(len(_TOO_MUCH))}" if is_marked else text


def _mark(row: SweepRow | None) -> str:
    """Return the mark of a figure that does not fit, or may not; '' for others."""
    if row is None or row.compiled is None:
        return ""
    if row.compiled.may_fit:
        return _MAY_FIT
    return _TOO_MUCH if row.compiled.fits is False else ""


def _verdicts(sweep: Sweep, table: Table) -> Column:
    if not sweep.batches:
        words = {True: "yes", False: "no", None: _NOTHING}
        rows = [table.get((policy, None)) for policy in sweep.policies]
        texts = tuple(_MAY_FIT if _mark(r) == _MAY_FIT else words[_fits(r)] for r in rows)
        return Column(("", "fits"), texts)
    fitting = [largest(policy, sweep.batches, table) for policy in sweep.policies]
    texts = tuple(_NOTHING if batch is None else str(batch) for batch in fitting)
    styles = tuple("bold" if b else "" for b in fitting)
    return Column(("largest", "that fits"), texts, styles=styles)


def _recompute(sweep: Sweep, table: Table) -> Column:
    """Return the column of recomputed FLOPs.

    They are a share of the FLOPs without any checkpoint, at the largest batch size with a figure.
    """
    texts = []
    for policy in sweep.policies:
        of_batches = (table.get((policy, b)) for b in reversed(sweep.batches or (None,)))
        shares = (r.recompute_fraction for r in of_batches if r is not None)
        share = next((s for s in shares if s is not None), None)
        texts.append("" if share is None else percent(share, 1))
    return Column(("recompute", "FLOPs"), tuple(texts))
