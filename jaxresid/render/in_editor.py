"""What editors show beside the code: what a line keeps, and what a checkpoint is worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jaxresid.base.text.layer_paths import folded_scopes, scope_key
from jaxresid.base.text.safe_text import one_line
from jaxresid.base.text.units import format_bytes
from jaxresid.render.style.words import (
    aval_text,
    computed_text,
    kind_text,
    mark_text,
    percent,
    source_notes,
    verdict_text,
)
from jaxresid.results import Checkpoint, Computed, LiveValue, Plan, Report, Residual

STALE = "(before the last edit)"
# Of what is kept and of the peak: lines with less have no hint, and a hover all the same.
_SMALL = 0.01
_MOST_ROWS = 12


@dataclass(frozen=True, slots=True)
class LineFigures:
    """What a line of code keeps, and what else it makes that is there at the peak.

    Attributes:
      kept: the residuals that it computes.
      live: the other values that it makes and that are live at the peak.
      all_kept_nbytes: the bytes of all residuals that are computed.
      peak_nbytes: the peak; None where none is estimated.
      is_at_peak: whether what is kept is live at the peak, so that it is a share of it.
    """

    kept: tuple[Residual, ...]
    live: tuple[LiveValue, ...]
    all_kept_nbytes: int
    peak_nbytes: int | None
    is_at_peak: bool

    @property
    def kept_nbytes(self) -> int:
        """The bytes that it keeps in device memory."""
        return sum(r.nbytes for r in self.kept if r.aval.memory == "device")

    @property
    def host_nbytes(self) -> int:
        """The bytes that it keeps in host memory."""
        return sum(r.nbytes for r in self.kept if r.aval.memory == "host")

    @property
    def live_nbytes(self) -> int:
        """The bytes of `live`."""
        return sum(v.nbytes for v in self.live)

    @property
    def kept_share(self) -> float:
        """What it keeps as a share of all that is computed and kept."""
        nbytes = self.kept_nbytes + self.host_nbytes
        return nbytes / self.all_kept_nbytes if self.all_kept_nbytes else 0.0


def hint_text(figures: LineFigures) -> str:
    """Return what stands behind a line; '' for too little.

    Examples are `3.00 GiB kept · 21.0% of the peak` and `96.00 MiB at the peak (6.8%)`.
    """
    parts = []
    peak = figures.peak_nbytes or 0
    if figures.kept_share >= _SMALL:
        device, host = figures.kept_nbytes, figures.host_nbytes
        parts += [f"{format_bytes(device)} kept"] * bool(device)
        if device and peak and figures.is_at_peak:
            parts.append(f"{percent(device, peak)} of the peak")
        parts += [f"{format_bytes(host)} kept in host memory"] * bool(host)
    if peak and figures.live_nbytes >= _SMALL * peak:
        more = "more " if parts else ""
        live = format_bytes(figures.live_nbytes)
        parts.append(f"{live} {more}at the peak ({percent(figures.live_nbytes, peak)})")
    return " · ".join(parts)


def checkpoint_text(checkpoint: Checkpoint) -> str:
    """Return the verdict on a checkpoint with its figures, without the checkpoint → with it.

    An example is `earns its keep: peak 14.10 GiB → 2.90 GiB for 4.9% more FLOPs`.
    """
    c = checkpoint
    said = verdict_text(c.verdict)
    if c.peak_nbytes is None or c.peak_without_nbytes is None:
        return f"{said}: {c.reason}"
    whose = "XLA's peak" if c.by == "xla" else "peak"
    before, after = map(format_bytes, (c.peak_without_nbytes, c.peak_nbytes))
    change = f"{before} → {after}" if before != after else f"stays {after}"
    known = c.recompute_fraction and c.recompute_flops
    about = "at least " if known and c.uncosted else ""
    cost = f" for {about}{percent(c.recompute_fraction or 0.0, 1)} more FLOPs" if known else ""
    return f"{said}: {whose} {change}{cost}"


def function_text(lines: Sequence[LineFigures]) -> str:
    """Return what the lines of a function keep; '' for too little.

    An example is `keeps 3.00 GiB, 26.5% of all that is kept`.
    """
    share = sum(line.kept_share for line in lines)
    if share < _SMALL:
        return ""
    nbytes = sum(line.kept_nbytes + line.host_nbytes for line in lines)
    return f"keeps {format_bytes(nbytes)}, {percent(share, 1)} of all that is kept"


def report_text(report: Report) -> str:
    """Return the figures of a target: `peak about 1.38 GiB · 176.00 MiB kept · tpu:v5e`.

    What is kept is not among those of a program that takes no gradient.
    """
    parts = []
    if report.compiled and report.compiled[0].peak_nbytes is not None:
        parts.append(f"peak {format_bytes(report.compiled[0].peak_nbytes)} by XLA")
    elif report.peak is not None:
        parts.append(f"peak about {format_bytes(report.peak.nbytes)}")
    if report.target.has_gradient:
        parts.append(f"{format_bytes(report.totals.computed_nbytes)} kept")
    return " · ".join((*parts, report.place.name))


def plan_text(plan: Plan) -> str:
    """Return what a plan is worth.

    An example is `peak about 2.90 GiB, within 3.00 GiB, 4.9% recomputed`.
    """
    whose = "XLA's peak" if plan.confirmed else "peak about"
    budget = format_bytes(plan.budget_nbytes)
    if not plan.is_within:
        lowest = format_bytes(plan.lowest_nbytes)
        return f"nothing that was tried fits {budget}: the lowest peak is {lowest}"
    within = "too close to" if plan.answer == "too close" else "within"
    share = percent(plan.recompute_fraction, 1) or "0%"
    return f"{whose} {format_bytes(plan.peak_nbytes)}, {within} {budget}, {share} recomputed"


def hover_page(title: str, figures: LineFigures) -> str:
    """Return what a line keeps in Markdown: its bytes, then a table of the values.

    Args:
      title: what was traced.
      figures: the figures of the line.
    """
    return "\n".join((f"**{title}**", "", *_sums(figures), *_table(figures), ""))


def _sums(figures: LineFigures) -> Iterator[str]:
    parts = []
    if figures.kept:
        device, host = figures.kept_nbytes, figures.host_nbytes
        nbytes = [format_bytes(device)] * bool(device or not host)
        nbytes += [f"{format_bytes(host)} in host memory"] * bool(host)
        parts.append(
            f"This line keeps {' and '.join(nbytes)} for the backward pass,"
            f" {percent(figures.kept_share, 1) or '0%'} of all that is kept."
        )
    if figures.live and figures.peak_nbytes:
        what = "What else it makes" if parts else "What this line makes"
        share = percent(figures.live_nbytes, figures.peak_nbytes)
        parts.append(
            f"{what} takes {format_bytes(figures.live_nbytes)} of the peak of"
            f" {format_bytes(figures.peak_nbytes)} ({share})."
        )
    yield " ".join(parts)
    yield ""


def _table(figures: LineFigures) -> Iterator[str]:
    rows = sorted(_rows(figures), key=lambda row: -row[0])
    if not rows:
        return
    yield "| bytes | value | what | |"
    yield "|---:|---|---|---|"
    for nbytes, *cells in rows[:_MOST_ROWS]:
        yield f"| {format_bytes(nbytes)} | {' | '.join(cells)} |"
    if len(rows) > _MOST_ROWS:
        rest = sum(row[0] for row in rows[_MOST_ROWS:])
        yield f"| {format_bytes(rest)} | | {len(rows) - _MOST_ROWS} more | |"
    yield ""


def _rows(figures: LineFigures) -> Iterator[tuple[int, str, str, str]]:
    """Yield bytes, value, origin and notes, of equal values and of repeated layers once."""
    kept: dict[tuple[object, ...], list[Residual]] = {}
    for residual in figures.kept:
        origin = residual.origin
        if isinstance(origin, Computed):
            what = computed_text(origin, origin.path or "")
            calls = replace(origin.source, scope="")
            key = (residual.aval, what, residual.marks, calls, scope_key(origin.scope))
            kept.setdefault(key, []).append(residual)
    for same in kept.values():
        origins = [r.origin for r in same if isinstance(r.origin, Computed)]
        origin = origins[0]
        source = replace(origin.source, scope=folded_scopes(o.scope for o in origins))
        marks = [mark_text(mark) for mark in same[0].marks]
        notes = _cell("; ".join(("kept", *source_notes(source), *marks)))
        what = _cell(computed_text(origin, origin.path or ""))
        value = _code(aval_text(same[0].aval), len(same))
        yield sum(r.nbytes for r in same), value, what, notes
    for live in figures.live:
        value = "" if live.aval is None else _code(aval_text(live.aval), live.count)
        yield live.nbytes, value, _cell(live.primitive or ""), f"{kind_text(live.kind)} at the peak"


def _code(value: str, count: int) -> str:
    times = f" ×{count}" if count > 1 else ""
    return f"`{one_line(value).replace('`', '').replace('|', chr(92) + '|')}`{times}"


def _cell(text: str) -> str:
    return one_line(text).replace("|", "\\|").replace("<", "\\<")
