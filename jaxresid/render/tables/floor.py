"""The floor of a plan for a terminal: what no checkpoint can remove, and what lowers the peak."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from jaxresid.base.text.units import format_bytes
from jaxresid.results import FloorPart, Plan, Relief, TriedPlace

_KINDS = {
    "parameters": "parameters",
    "optimizer-state": "optimizer state",
    "frozen-weights": "frozen weights",
    "state": "state",
    "batch": "batch",
    "differentiated": "differentiated arguments",
    "argument": "other arguments",
    "constant": "arrays that the function closes over",
    "gradient": "gradients",
    "updated": "new values beside the old ones, which are not donated",
    "output": "outputs",
}
# How many policies are named, and of how many places it is said what was tried there.
_MOST_NAMED = 4
_MOST_PLACES = 3


def floor_text(plan: Plan) -> str:
    """Return how much no checkpoint can remove: `no checkpoint can remove 4.79 GiB`."""
    text = f"no checkpoint can remove {format_bytes(plan.floor.nbytes)}"
    if not plan.target.has_gradient:
        text = f"arguments and outputs take {format_bytes(plan.floor.nbytes)}"
    if plan.is_out_of_reach:
        text += f", which is more than {format_bytes(plan.budget_nbytes)}"
    return text


def part_text(part: FloorPart, *, has_gradient: bool = True) -> str:
    """Return what a part of the floor is: `optimizer state: state`."""
    text = _KINDS[part.kind]
    if part.kind == "argument" and not has_gradient:
        text = "arguments"
    if part.arguments:
        text += f": {', '.join(part.arguments)}"
    return f"{text}, until the update" if part.until_update else text


def relief_text(relief: Relief) -> str:
    """Return what to change and what it saves: `donate state ...: 2.30 GiB less, fits`."""
    fits = ", fits" if relief.answer == "fits" else ""
    by = " by XLA" if relief.confirmed else ""
    saved = relief.saved_nbytes
    less = f"{format_bytes(abs(saved))} {'less' if saved >= 0 else 'more'}"
    return f"{relief.change}: {less}{by}{fits}"


def without_text(plan: Plan) -> str | None:
    """Return what training takes besides what the function shows; None where that is nothing."""
    if not plan.floor.without:
        return None
    return f"not in this function, and on top of it in training: {', '.join(plan.floor.without)}"


def choices_text(plan: Plan) -> str:
    """Return what was tried where: `Tried at model.py:49 (layer): 5 policies, 3 selections ...`."""
    if not plan.choices:
        return "No place for a checkpoint was found, so none was tried."
    shown = [f"at {each.place}: {_tried_text(each)}" for each in plan.choices[:_MOST_PLACES]]
    more = len(plan.choices) - len(shown)
    if more:
        shown.append(f"and at {more} more place{'s' * (more > 1)}")
    return f"Tried {'; '.join(shown)}."


def render_floor(plan: Plan) -> Iterator[RenderableType]:
    """Yield what no checkpoint can remove from a plan's peak, and what lowers it besides."""
    if not plan.floor.parts:
        return
    yield Text()
    yield Text(floor_text(plan), style="bold")
    yield _table(
        [
            (part.nbytes, part_text(part, has_gradient=plan.target.has_gradient))
            for part in plan.floor.parts
        ]
    )
    without = without_text(plan)
    if without is not None:
        yield Text(without, style="dim")
    if plan.floor.reliefs:
        yield Text()
        found = "lowest peak" if not plan.is_within else "peak of this plan"
        heading = f"the {found if plan.target.has_gradient else 'peak'} with each"
        if plan.confirmed and plan.estimate_nbytes is not None:
            heading += f", estimated: {format_bytes(plan.estimate_nbytes)} without"
        yield Text.assemble(
            ("what else lowers it, cheapest first", "bold"), (f"  {heading}", "dim")
        )
        yield _table([(each.peak_nbytes, relief_text(each)) for each in plan.floor.reliefs])
    for text in plan.floor.left_out:
        yield Text(text, style="dim")


def _tried_text(tried: TriedPlace) -> str:
    parts = list(tried.policies)
    if len(parts) > _MOST_NAMED:
        parts = [f"{len(parts)} policies"]
    if tried.selections:
        of, count = tried.known_selections, str(tried.selections)
        if of is not None and of > 1:
            count = f"all {of}" if of == tried.selections else f"{count} of {of}"
        many = (tried.selections if of is None else of) > 1
        parts.append(f"{count} selection{'s' * many} of values")
    if tried.segments:
        parts.append(f"{tried.segments} way{'s' * (tried.segments > 1)} to cut it into segments")
    if tried.checkpoints:
        parts.append(f"checkpoints={' '.join(map(str, tried.checkpoints))}")
    return ", ".join(parts)


def _table(rows: list[tuple[int, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for nbytes, what in rows:
        table.add_row(Text(format_bytes(nbytes), style="cyan"), Text(what))
    return table
