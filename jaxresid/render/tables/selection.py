"""What a plan was chosen from: the plans that no other beats, and why this one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.estimates import about_text
from jaxresid.render.report.policies import BrokenNames
from jaxresid.render.style.grids import bytes_grid
from jaxresid.render.style.words import aval_text, percent, place_text
from jaxresid.results import (
    Growth,
    Largest,
    LiveValue,
    ParetoPoint,
    Plan,
    RejectedAlternative,
    SizePeak,
)

# How many plans, and how many of the configurations that fit and that do not, are shown.
_MOST_ROWS = 8
_MOST_BEATEN = 6
_MOST_REFUSED = 3
# How many of the values that grow.
_MOST_GROWING = 5

# A policy of that many names is not written out.
_MOST_NAMED = 2
_POLICY = re.compile(r"(?<!\w)\w++\([^()]*+\)")

_AIMS = {
    "recompute": "least recomputation",
    "time": "least time per item",
    "memory": "lowest peak",
    "throughput": "most items per second",
    "batch": "largest that fits",
}


def recommendation_text(plan: Plan) -> str | None:
    """Return what is recommended of several configurations, and of how many; None for one."""
    selection = plan.selection
    if not selection.rejected:
        return None
    count = 1 + len(selection.rejected)
    parts = [f"{selection.searched} searched"]
    if selection.followed:
        parts.append(f"{selection.followed} followed from those with equal microbatches")
    if selection.skipped:
        parts.append(f"{selection.skipped} not traced, as smaller ones do not fit")
    what = _AIMS[plan.aim] if plan.is_within else "lowest peak"
    return f"{selection.configuration}: {what} of {count} configurations ({', '.join(parts)})"


def shown_rows(rows: Sequence[ParetoPoint], most: int = _MOST_ROWS) -> list[ParetoPoint]:
    """Return the rows to show: the first, the last and the chosen one, and some between."""
    if len(rows) <= most:
        return list(rows)
    step = (len(rows) - 1) / (most - 2)
    picked = {round(i * step) for i in range(most - 1)}
    picked |= {i for i, row in enumerate(rows) if row.chosen}
    return [rows[i] for i in sorted(picked)]


def checkpoints_text(checkpoints: str) -> str:
    """Return what is done at each place in short: long lists of names are counted."""

    def counted(match: re.Match[str]) -> str:
        count = match[0].count("'") // 2
        return match[0] if count < _MOST_NAMED else f"policy of {count} names"

    return _POLICY.sub(counted, checkpoints)


def render_selection(plan: Plan) -> Iterator[RenderableType]:
    """Yield what a plan was chosen from; nothing where there was nothing to choose."""
    selection = plan.selection
    if selection.largest is not None:
        yield from _largest(plan, selection.largest)
    recommendation = None if selection.largest is not None else recommendation_text(plan)
    if recommendation is not None:
        yield Text()
        yield Text(recommendation, style="bold")
    for text in selection.to_set:
        if "\n" in text:
            # Not wrapped: it is there to be copied.
            yield Text(text, "green", no_wrap=True, overflow="ignore")
        else:
            yield Text(f"  {text}")
    if selection.rejected:
        yield Text()
        yield Text("it beats" if selection.largest is None else "beside it", style="bold")
        yield from _rejected(selection.rejected)
    if len(selection.front) > 1:
        yield Text()
        yield from _front(plan)


def largest_texts(plan: Plan, largest: Largest) -> Iterator[str]:
    """Yield sentences on the search for the largest size: how it was told, and what is beyond."""
    name, tried = largest.name, f"{largest.tried} of {largest.count} tried"
    sizes = f"{tried}, from {largest.first} to {largest.last}"
    if largest.size is None:
        yield f"no {name} is known to fit ({sizes})"
        return
    how = "by XLA" if plan.confirmed else "by the estimate"
    if not plan.target.has_gradient and not plan.confirmed:
        how = "by the whole range of its estimate"
    if largest.next is None:
        yield f"it is the largest that there was to choose from ({sizes})"
    else:
        yield f"the largest {name} that fits {how} ({sizes})"
        yield _next_text(plan, name, largest.next)
    if largest.possible is not None:
        most = f"{name} {largest.possible}"
        yield f"up to {most} may fit by the range of its estimate; --compile decides"


def _next_text(plan: Plan, name: str, beyond: SizePeak) -> str:
    if beyond.interval is None:
        by = " by XLA" if plan.confirmed else ""
        return f"{name} {beyond.size} does not: {format_bytes(beyond.peak_nbytes)}{by}"
    verb = "does" if beyond.interval.low_nbytes > plan.budget_nbytes else "may"
    return f"{name} {beyond.size} {verb} not: {about_text(beyond.peak_nbytes, beyond.interval)}"


def growth_text(name: str, growth: Growth) -> str:
    """Return how the peak grows: `each further context takes 153 KiB of the estimated peak`."""
    if growth.nbytes <= 0:
        return (
            f"the estimated peak does not grow from {name} {growth.low_size} to {growth.high_size}"
        )
    return (
        f"each further {name} takes {format_bytes(round(growth.each_nbytes))} of the estimated peak"
    )


def _value_text(value: LiveValue) -> str:
    line = f"{place_text(value.location)}  " if value.location else ""
    shape = f"{aval_text(value.aval)}  " if value.aval else ""
    return f"{line}{shape}{value.primitive or value.path or value.kind}"


def _largest(plan: Plan, largest: Largest) -> Iterator[RenderableType]:
    yield from (Padding(Text(text), (0, 0, 0, 2)) for text in largest_texts(plan, largest))
    beyond, growth = largest.next, largest.growth
    if plan.confirmed:  # what the estimate says of its peak is not of XLA's
        if beyond is not None and largest.size is not None:
            each_nbytes = (beyond.peak_nbytes - plan.peak_nbytes) / (beyond.size - largest.size)
            each_text = format_bytes(round(each_nbytes))
            yield Text(f"  each further {largest.name} takes {each_text} by XLA")
        return
    if growth is None:
        return
    yield Text()
    between = f"between {growth.low_size} and {growth.high_size}"
    yield Text.assemble((growth_text(largest.name, growth), "bold"), (f"  {between}", "dim"))
    if growth.nbytes <= 0:
        return
    step = growth.high_size - growth.low_size
    yield bytes_grid(
        (round(growing.nbytes / step), Text(_value_text(growing.value)))
        for growing in growth.values[:_MOST_GROWING]
    )


def _rejected(rejected: Sequence[RejectedAlternative]) -> Iterator[RenderableType]:
    fitting = [plan for plan in rejected if plan.fits]
    others = [plan for plan in rejected if not plan.fits]
    shown = [*fitting[:_MOST_BEATEN], *others[:_MOST_REFUSED]]
    for plan in shown:
        yield Padding(Text(f"{plan.configuration}: {plan.reason}"), (0, 0, 0, 2))
    more = len(rejected) - len(shown)
    if more:
        yield Text(f"  and {more} more (--format json lists them)", style="dim")


def _front(plan: Plan) -> Iterator[RenderableType]:
    selection = plan.selection
    rows = shown_rows(selection.front)
    more = len(selection.front) - len(rows)
    heading = "no other plan tried has a lower peak and costs less"
    if more:
        heading += f"; {more} more in --format json"
    yield Text.assemble(("Pareto front", "bold"), (f"  {heading}", "dim"))
    columns = _columns(rows)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name, _ in columns:
        right = name not in ("mesh", "checkpoints")
        is_wide = name == "checkpoints"
        table.add_column(name, justify="right" if right else "left", no_wrap=not is_wide)
    for row in rows:
        style = "bold" if row.chosen else "" if row.peak_nbytes <= plan.budget_nbytes else "dim"
        *figures, (_, checkpoints) = columns
        cells = [Text(text(row), style=style) for _, text in figures]
        table.add_row(*cells, BrokenNames(checkpoints(row), style=style))
    yield table


def _figure(number: float) -> str:
    """Return a number to four digits, with the others of a large one as zeros: 2,571,000."""
    rounded = float(f"{number:.4g}")
    return f"{rounded:,.0f}" if rounded >= 1000 else f"{rounded:g}"


def _columns(
    rows: Sequence[ParetoPoint],
) -> list[tuple[str, Callable[[ParetoPoint], str]]]:
    columns: list[tuple[str, Callable[[ParetoPoint], str]]] = [
        ("peak", lambda row: about_text(row.peak_nbytes, row.interval).removeprefix("about ")),
        ("recompute", lambda row: percent(row.recompute_fraction, 1)),
    ]
    if all(row.items_per_s is not None for row in rows):
        columns.append(("items/s", lambda row: _figure(row.items_per_s or 0)))
    elif all(row.seconds is not None for row in rows):
        columns.append(("ms", lambda row: _figure((row.seconds or 0) * 1e3)))
    if len({row.configuration.batch for row in rows}) > 1:
        columns.append(("batch", lambda row: str(row.configuration.batch)))
    if len({row.configuration.microbatches for row in rows}) > 1:
        columns.append(("micro", lambda row: str(row.configuration.microbatches)))
    if len({row.configuration.mesh for row in rows}) > 1:
        columns.append(("mesh", lambda row: row.configuration.mesh or ""))
    return [*columns, ("checkpoints", lambda row: checkpoints_text(row.checkpoints))]
