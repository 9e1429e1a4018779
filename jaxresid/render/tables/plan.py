"""A plan for a terminal: whether it fits, what it costs, what to do at each place, the code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jaxresid.base.text.safe_text import safe_value
from jaxresid.base.text.units import format_bytes, format_flops
from jaxresid.render.report.compiled import differs
from jaxresid.render.report.cost import added_text, at_least
from jaxresid.render.report.estimates import STYLES, about_text, interval_remarks
from jaxresid.render.report.heading import about, target_line
from jaxresid.render.report.next_step import next_step_lines
from jaxresid.render.report.policies import BrokenNames
from jaxresid.render.report.sparkline import can_encode
from jaxresid.render.report.times import NOT_CHECKED, time_remark, time_text
from jaxresid.render.style.columns import bytes_unit
from jaxresid.render.style.words import percent, place_text, short_path
from jaxresid.render.style.wrapping import FlowingParts
from jaxresid.render.tables.floor import choices_text, render_floor
from jaxresid.render.tables.selection import render_selection
from jaxresid.results import Expression, Plan, PlannedPart, PlannedSite, PlannedValue

_KINDS = {
    "checkpoint": "already checkpointed",
    "scan": "loop body",
    "call": "called",
    "block": "Python loop",
    "whole": "whole function",
    "segments": "loop",
    "groups": "Python loop",
    "solver": "solver's loop",
}


_FIGURES = {
    "plain_nbytes": "without any checkpoint",
    "written_nbytes": "as it is written",
    "peak_nbytes": "with this plan",
    "lowest_nbytes": "the lowest found",
}


def verdict_text(plan: Plan) -> str:
    """Return in one sentence whether the plan fits: `fits 12.00 GiB: peak about 11.2 GiB ...`.

    Where nothing fits it says by how much the lowest peak is too high, and where an estimate cannot
    tell, what can.
    """
    budget = format_bytes(plan.budget_nbytes)
    peak = about_text(plan.peak_nbytes, plan.interval)
    if plan.confirmed:
        peak = f"{format_bytes(plan.peak_nbytes)} by XLA"
        triton = plan.triton_peak_nbytes
        if triton is not None and differs(triton, plan.peak_nbytes):
            lower = format_bytes(triton)
            peak += f" with cuBLAS's matmuls ({lower} if the GPU takes Triton's)"
    decides = ""
    if plan.answer == "too close":
        is_asked = plan.compiles or plan.unconfirmed
        decides = f"; {'XLA did not decide in time' if is_asked else '--compile decides'}"
        safe = _safe_budget(plan)
        if safe is not None:
            decides += f", or plan with --budget {safe} for a range below {budget}"
    over = f", {format_bytes(plan.peak_nbytes - plan.budget_nbytes)} too much"
    if not plan.target.has_gradient:
        more = "" if plan.is_within else over
        how = "too close to" if decides else "fits" if plan.is_within else "does not fit"
        chosen = f"{plan.selection.configuration} " if plan.selection.largest else ""
        return f"{chosen}{how} {budget}: peak {peak}{decides or more}"
    chosen = f"{plan.selection.configuration}: " if plan.selection.largest else ""
    if not plan.is_within:
        verdict = f"too close to {budget}" if decides else f"nothing fits {budget}"
        return f"{chosen}{verdict}: the lowest peak found is {peak}{decides or over}"
    cost = added_text(plan.recompute_flops, plan.recompute_fraction, plan.uncosted)
    as_is = "" if any(site.changed for site in plan.sites) else " as it is written"
    doubt = "" if plan.verified else ", not verified"
    verdict = "too close to" if decides else "fits"
    return f"{chosen}{verdict} {budget}{as_is}{doubt}: peak {peak}, {cost}{decides}"


def _safe_budget(plan: Plan) -> str | None:
    """Return a budget whose plans have ranges that end below this one's budget, as they do here.

    None where no plan that was found has so low a peak.
    """
    if plan.high_nbytes is None:
        return None
    highest = int(plan.budget_nbytes * plan.peak_nbytes / plan.high_nbytes)
    unit = bytes_unit([highest])
    shown = math.floor(10 * highest / unit.scale) / 10
    return f"{shown:g}{unit.name}" if plan.lowest_nbytes <= shown * unit.scale else None


def peak_rows(plan: Plan) -> tuple[tuple[int, str], ...]:
    """Return peaks in bytes, each with what it is of: `as it is written, 1.00 GiB too much`.

    XLA's are marked where others are estimates.
    """
    by_xla = ", by XLA" if len(plan.by_xla) < len(_FIGURES) else ""
    names: dict[tuple[int, bool], list[str]] = {}
    for figure, name in _FIGURES.items():
        nbytes = getattr(plan, figure)
        if nbytes is not None and (plan.is_within or figure != "peak_nbytes"):
            names.setdefault((nbytes, figure in plan.by_xla), []).append(name)
    return tuple(
        (nbytes, f"{' and '.join(same)}, {_room(nbytes, plan)}{by_xla if is_by_xla else ''}")
        for (nbytes, is_by_xla), same in names.items()
    )


def figure_parts(plan: Plan, times: str = "×") -> tuple[str, ...]:
    """Return what the function keeps and recomputes with the plan, and its estimated time.

    Args:
      plan: the plan.
      times: the sign for "times" in the encoding of the stream.
    """
    bound = at_least(plan.uncosted)
    about = "about " if bound else ""
    share = f" ({about}{percent(plan.recompute_fraction, 1)})" if plan.recompute_flops else ""
    parts = [f"kept {format_bytes(plan.kept_nbytes)}"]
    if plan.host_nbytes or plan.offload:
        parts.append(f"host {format_bytes(plan.host_nbytes)}")
    parts.append(f"recompute {bound}{format_flops(plan.recompute_flops)}{share}")
    if plan.time_fraction is not None and plan.chip is not None:
        time = time_text(plan.time_fraction, plan.time_interval, times)
        doubt = f", {NOT_CHECKED}" if plan.time_interval is None else ""
        parts.append(f"time est. {time} on {plan.place.name}{doubt}")
    return tuple(parts)


def site_parts(site: PlannedSite) -> tuple[str, ...]:
    """Return the head of a site in parts: `layer`, `model.py:49`, `loop body`, `×48 trips`."""
    times = ""
    if site.calls > 1:
        times = f"×{site.calls} calls"
    if site.trips not in (1, site.calls):
        times += f"{', ' if times else '×'}{site.trips} trips"
    location = place_text(site.location) if site.location else ""
    return tuple(part for part in (site.function, location, _KINDS[site.kind], times) if part)


def part_texts(site: PlannedSite) -> tuple[tuple[str, PlannedPart], ...]:
    """Return what to do with a site's calls: `calls 1-20: no checkpoint`, each with its part."""
    texts, first = [], 1
    for part in site.parts:
        last = first + part.calls - 1
        which = f"call{'s' * (last > first)} {first}{f'-{last}' * (last > first)}: "
        length = site.trips // site.calls
        done = _treatment(part, length, "groups" if site.kind == "groups" else "segments")
        texts.append((which * (len(site.parts) > 1) + done, part))
        first = last + 1
    return tuple(texts)


def value_text(value: PlannedValue) -> str:
    """Return what to name: `'qkv': name the output of model.py:42 block  x @ wqkv`.

    A value that has the name already is `'qkv', named in the code`.
    """
    where = value.expression
    if where is None:
        return f"{value.name!r}, named in the code"
    code = " ".join(where.code.split())
    return f"{value.name!r}: name the output of {_place(where)} {where.function}  {code}".rstrip()


def search_text(plan: Plan) -> str:
    """Return a sentence on what was tried, and whether something cheaper may have been missed.

    "Proven" is said of what was proven alone.
    """
    tried = f"{plan.tried} variant{'s' * (plan.tried != 1)} traced"
    if plan.compiles:
        tried += f", {plan.compiles} compiled"
    if plan.is_out_of_reach:
        held = format_bytes(plan.floor.held_nbytes)
        return f"Proven: no checkpoint makes it fit, as arguments and outputs alone take {held}."
    if plan.interrupted:
        cheaper = "something cheaper may fit" if plan.is_within else "something may fit"
        return f"Stopped by Ctrl-C after {tried}: {cheaper}."
    if not plan.is_within:
        if plan.proven:
            return f"Nothing among the choices tried fits: each was traced ({tried})."
        return (
            f"Nothing among the choices tried fits ({tried}); not all combinations of them were, so"
            " something may fit."
        )
    if plan.aim == "memory":
        if plan.proven:
            return f"Nothing among the choices tried has a lower peak: each was traced ({tried})."
        return (
            f"Nothing among the choices tried has a lower peak ({tried}); not all combinations of"
            " them were, so something lower may exist."
        )
    if plan.proven and not plan.recompute_flops:
        return f"Nothing is cheaper: nothing is recomputed ({tried})."
    if plan.proven:
        return f"Proven: nothing cheaper among the choices tried fits ({tried})."
    return (
        f"Nothing cheaper among the choices tried fits ({tried}); not all combinations of them"
        " were, so something cheaper may fit."
    )


def verified_text(plan: Plan) -> str:
    """Return a sentence on whether a trace of the code gave the figures of the plan."""
    if plan.doubt is not None:
        return f"Not verified: {plan.doubt}"
    if plan.code and plan.confirmed:
        return "Verified: tracing this code gives the figures of what XLA compiled."
    if plan.code:
        return "Verified: tracing this code gives these figures."
    return "The figures are those of the code as it is written."


def without_gradient_text(plan: Plan) -> str:
    """Return what is possible for a program that takes no gradient, where no size was chosen."""
    text = "No gradient is taken, so there is nothing to checkpoint"
    if plan.fits:
        return f"{text}; --batch 8..512 finds the largest batch that fits."
    return (
        f"{text}. What may help: donating what is returned updated, a smaller batch (--batch 8..512"
        " finds the largest that fits), parts of it one after the other with"
        " jax.lax.map(f, xs, batch_size=N), or more devices to shard over."
    )


def helps(plan: Plan) -> str:
    """Return what may lower the peak besides checkpoints where none of it was traced."""
    offload = "" if plan.offload else "--offload, which moves values to the host, "
    return f"What may help: {offload}a smaller batch, or more devices to shard over."


def render_plan(plan: Plan, encoding: str = "utf-8") -> RenderableType:
    """Return the whole text of a plan.

    Args:
      plan: the plan to show.
      encoding: the encoding of the stream that the text is for.
    """
    plan = safe_value(plan)
    times = "×" if can_encode("×", encoding) else "x"
    verdict = BrokenNames(verdict_text(plan), style=STYLES[plan.answer])
    parts: list[RenderableType] = [
        target_line(plan.target, [plan.place], None),
        verdict,
        *next_step_lines(plan.next_step),
    ]
    if plan.target.has_gradient:
        parts += [_peaks(plan), FlowingParts(figure_parts(plan, times), indent=2)]
        if not plan.is_within and not plan.floor.reliefs:
            parts.append(Text(helps(plan)))
    elif plan.selection.largest is None:
        parts.append(Text(without_gradient_text(plan)))
    parts += render_selection(plan)
    parts += render_floor(plan)
    if plan.target.has_gradient:
        parts += [Text(), *_sites(plan)]
    if plan.code:
        title = "unverified code" if plan.is_untraced else "code to write"
        parts += [Text(), Text(title, style="bold")]
        # Not wrapped: it is there to be copied.
        parts += [Text(b, "green", no_wrap=True, overflow="ignore") for b in plan.code]
    if plan.unwritten:
        parts += [Text(), Text("not written", style="bold")]
        parts += [Text(each) for each in plan.unwritten]
    parts.append(Text())
    parts += [Text(f"warning: {warning}", style="yellow") for warning in plan.warnings]
    parts += about(plan.target, plan.jax, [plan.place])
    parts += [Text(remark, style="dim") for remark in _remarks(plan)]
    return Group(*parts)


def print_plan(plan: Plan) -> None:
    """Print a plan to stdout, or into the notebook's cell."""
    console = Console(highlight=False)
    console.print(render_plan(plan, console.encoding), crop=False)


def _room(nbytes: int, plan: Plan) -> str:
    over = nbytes - plan.budget_nbytes
    return f"{format_bytes(over)} too much" if over > 0 else f"{format_bytes(-over)} to spare"


def _peaks(plan: Plan) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for nbytes, what in peak_rows(plan):
        style = "bold" if nbytes <= plan.budget_nbytes else ""
        table.add_row(Text(format_bytes(nbytes), style="cyan"), Text(what, style=style))
    return table


def _treatment(part: PlannedPart, length: int, cut: str) -> str:
    """Return what to do with calls of a function, or with loops of so many iterations.

    Args:
      part: the calls.
      length: how many iterations.
      cut: what a loop is cut into.
    """
    if not part.checkpointed:
        return "no checkpoint"
    if part.checkpoints is not None:
        return f"checkpoints={part.checkpoints}"
    if part.segments:
        return _segments(part, length, cut)
    if part.policy is None:
        return "checkpoint without a policy: everything is recomputed"
    return f"checkpoint, policy {part.policy}"


def _segments(part: PlannedPart, length: int, cut: str) -> str:
    """Return how a loop is cut: `7 segments of 9 iterations, each in a checkpoint; 1 more`."""
    count, rest = divmod(length, part.segments[0])
    text = f"{count} {cut} of {part.segments[0]} iterations"
    for outer, inner in itertools.pairwise(part.segments):
        text += f", each in {outer // inner} segments of {inner}"
    each = "each" if len(part.segments) == 1 else "all"
    policy = f", policy {part.policy}" if part.policy else ""
    more = f"; the {rest} left over follow{'s' * (rest == 1)}" if rest else ""
    return f"{text}, {each} in a checkpoint{policy}{more}"


def _place(expression: Expression) -> str:
    place = f"{short_path(expression.file)}:{expression.line}"
    last = expression.end_line
    return f"{place}-{last}" if last > expression.line else place


def _sites(plan: Plan) -> Iterator[RenderableType]:
    count = len(plan.sites)
    changed = sum(site.changed for site in plan.sites)
    todo = f"{changed} to change" if changed else "nothing to change"
    if not count:
        yield Text("nothing to change", style="bold")
        return
    title = f"{count} place{'s' * (count != 1)}"
    aim = "" if plan.is_within else " for the lowest peak"
    yield Text.assemble((title, "bold"), (f"  {todo}{aim}", "dim"))
    for site in plan.sites:
        style = "bold yellow" if site.changed else "bold"
        function, *others = site_parts(site)
        action = Text("change" if site.changed else "leave", style=style)
        head = [action, Text(function, style="bold"), *map(Text, others)]
        yield FlowingParts(head, separator="  ", indent=2)
        for text, part in part_texts(site):
            yield Padding(BrokenNames(text), (0, 0, 0, 2))
            if part.values:
                yield Padding(_values(part), (0, 0, 0, 4))


def _values(part: PlannedPart) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for value in part.values:
        table.add_row(
            Text(value.action),
            Text(format_bytes(value.nbytes), style="cyan"),
            BrokenNames(value_text(value)),
        )
    return table


def _remarks(plan: Plan) -> Iterator[str]:
    if not plan.target.has_gradient:
        if not plan.confirmed:
            yield from interval_remarks([plan.place])
        return
    yield verified_text(plan)
    if plan.choices or plan.is_within or plan.is_out_of_reach:
        yield search_text(plan)
    if plan.recompute_flops or not plan.is_within:
        yield choices_text(plan)
    if plan.uncosted:
        yield f"No FLOPs known for {', '.join(plan.uncosted)}: recompute is a lower bound."
    if plan.time_fraction is not None:
        is_checked = plan.time_interval is not None
        basis, where = plan.time_basis, plan.times_checked_on
        yield time_remark(plan.place.name, basis, where, is_all=is_checked)
    if len(plan.by_xla) < len(_FIGURES):  # some are estimates
        yield from interval_remarks([plan.place])
