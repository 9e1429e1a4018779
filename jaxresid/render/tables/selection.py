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
from jaxresid.render.style.words import aval_text, percent, place_text
from jaxresid.results import Beaten, FrontRow, Growth, Largest, LiveValue, Plan, SizePeak

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
    """Return what is recommended of several configurations; None where there was one.

    It says how many were searched: `batch 64 in 4 microbatches: most items per second of 12
    configurations (5 searched, ...)`.
    """
    made = plan.selection
    if not made.beaten:
        return None
    count = 1 + len(made.beaten)
    parts = [f"{made.searched} searched"]
    if made.followed:
        parts.append(f"{made.followed} followed from those with equal microbatches")
    if made.skipped:
        parts.append(f"{made.skipped} not traced, as smaller ones do not fit")
    what = _AIMS[plan.aim] if plan.is_within else "lowest peak"
    return f"{made.configuration}: {what} of {count} configurations ({', '.join(parts)})"


def shown_rows(rows: Sequence[FrontRow], most: int = _MOST_ROWS) -> list[FrontRow]:
    """Return the rows to show: the first, the last and the chosen one, and some between."""
    if len(rows) <= most:
        return list(rows)
    step = (len(rows) - 1) / (most - 2)
    picked = {round(i * step) for i in range(most - 1)}
    picked |= {i for i, row in enumerate(rows) if row.chosen}
    return [rows[i] for i in sorted(picked)]


def beaten_text(beaten: Beaten) -> str:
    """Return a configuration with why it was not chosen: `batch 64 ...: 3.1% slower per item`."""
    return f"{beaten.configuration}: {beaten.reason}"


def checkpoints_text(checkpoints: str) -> str:
    """Return what is done at each place in short: long lists of names are counted."""

    def counted(match: re.Match[str]) -> str:
        count = match[0].count("'") // 2
        return match[0] if count < _MOST_NAMED else f"policy of {count} names"

    return _POLICY.sub(counted, checkpoints)


def render_selection(plan: Plan) -> Iterator[RenderableType]:
    """Yield what a plan was chosen from; nothing where there was nothing to choose."""
    made = plan.selection
    if made.largest is not None:
        yield from _largest(plan, made.largest)
    told = None if made.largest is not None else recommendation_text(plan)
    if told is not None:
        yield Text()
        yield Text(told, style="bold")
    for text in made.to_set:
        if "\n" in text:
            # Not wrapped: it is there to be copied.
            yield Text(text, "green", no_wrap=True, overflow="ignore")
        else:
            yield Text(f"  {text}")
    if made.beaten:
        yield Text()
        yield Text("it beats" if made.largest is None else "beside it", style="bold")
        yield from _beaten(made.beaten)
    if len(made.front) > 1:
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
    """Return what is known of the next larger size."""
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
    """Return a value: its shape, and the argument that it is or the primitive that makes it."""
    shape = f"{aval_text(value.aval)}  " if value.aval else ""
    return f"{shape}{value.primitive or value.path or value.kind}"


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
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    if growth.nbytes <= 0:
        return
    step = growth.high_size - growth.low_size
    for each in growth.values[:_MOST_GROWING]:
        where = each.value.location
        line = "" if where is None else f"{place_text(where)}  "
        table.add_row(
            Text(format_bytes(round(each.nbytes / step)), style="cyan"),
            Text(f"{line}{_value_text(each.value)}"),
        )
    yield table


def _beaten(beaten: Sequence[Beaten]) -> Iterator[RenderableType]:
    fitting = [each for each in beaten if each.fits]
    others = [each for each in beaten if not each.fits]
    shown = [*fitting[:_MOST_BEATEN], *others[:_MOST_REFUSED]]
    for each in shown:
        yield Padding(Text(beaten_text(each)), (0, 0, 0, 2))
    more = len(beaten) - len(shown)
    if more:
        yield Text(f"  and {more} more (--format json lists them)", style="dim")


def _front(plan: Plan) -> Iterator[RenderableType]:
    """Yield the plans that no other beats, the lowest peak first."""
    made = plan.selection
    rows = shown_rows(made.front)
    more = len(made.front) - len(rows)
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
    rows: Sequence[FrontRow],
) -> list[tuple[str, Callable[[FrontRow], str]]]:
    """Return the columns of the table by their names: those in which there is something to tell."""
    found: list[tuple[str, Callable[[FrontRow], str]]] = [
        ("peak", lambda row: about_text(row.peak_nbytes, row.interval).removeprefix("about ")),
        ("recompute", lambda row: percent(row.recompute_fraction, 1)),
    ]
    if all(row.items_per_s is not None for row in rows):
        found.append(("items/s", lambda row: _figure(row.items_per_s or 0)))
    elif all(row.seconds is not None for row in rows):
        found.append(("ms", lambda row: _figure((row.seconds or 0) * 1e3)))
    if len({row.configuration.batch for row in rows}) > 1:
        found.append(("batch", lambda row: str(row.configuration.batch)))
    if len({row.configuration.microbatches for row in rows}) > 1:
        found.append(("micro", lambda row: str(row.configuration.microbatches)))
    if len({row.configuration.mesh for row in rows}) > 1:
        found.append(("mesh", lambda row: row.configuration.mesh or ""))
    return [*found, ("checkpoints", lambda row: checkpoints_text(row.checkpoints))]
