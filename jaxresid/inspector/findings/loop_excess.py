"""Find loops that stack or carry what they need not, and tell what the program takes without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.findings.frameworks import framework_of
from jaxresid.inspector.findings.logits import may_be_in_vector_memory
from jaxresid.inspector.findings.proposals import (
    Proposal,
    live_nbytes_of,
    proposal,
    rewrite_effect,
)
from jaxresid.inspector.findings.search import FindingContext, FindingSearch, holds_loop
from jaxresid.inspector.program.avals import aval_of
from jaxresid.inspector.variants.rewrites.effects import Figures, Rewrites
from jaxresid.inspector.variants.rewrites.loop_excess import Excess, excesses_in, without_excess
from jaxresid.jax_compat.jaxpr_types import Var
from jaxresid.results import Finding, Source


def loop_excess(context: FindingContext) -> Iterator[Proposal]:
    """Yield the findings of what loops stack or carry in vain, one for each line with loops."""
    rewrites = context.subject.rewrites
    if rewrites is None:
        return
    assert context.report.peak is not None
    live, least = context.report.peak.live, context.least_nbytes
    for number, jaxpr in enumerate(rewrites.jaxprs):
        excesses = (excess for excess in excesses_in(jaxpr) if excess.nbytes)
        for source, group in context.sites_by_line(jaxpr, excesses).items():
            nbytes = sum(excess.nbytes for excess in group)
            # The cotangent of a stack takes as much again.
            if 2 * nbytes < least or may_be_in_vector_memory(nbytes, context.subject.profile):
                continue
            if live_nbytes_of([shape for e in group for shape in e.shapes], live) < least:
                continue
            changed = without_excess(jaxpr, group)
            figures = context.lower_peak(rewrites, number, changed)
            if figures is not None:
                finding = _finding(context, rewrites, source, group, figures)
                yield proposal(finding, rewrites, number, changed)


def _finding(
    context: FindingContext,
    rewrites: Rewrites,
    source: Source,
    group: Sequence[Excess],
    figures: Figures,
) -> Finding:
    nbytes = {
        "copied": sum(e.stacked_nbytes(e.copies) for e in group),
        "repeated": sum(e.stacked_nbytes(e.repeats) for e in group),
        "unread": sum(e.stacked_nbytes(e.lasts) for e in group),
        "carried": sum(e.fixed_nbytes for e in group),
        "reduced": sum(e.stacked_nbytes(e.reduced) for e in group),
    }
    trips = max(e.trips for e in group)
    effect, measured = rewrite_effect(context.report, rewrites, figures)
    texts = [
        text
        for part, text in _texts(group, nbytes, trips).items()
        if nbytes[part] >= sum(nbytes.values()) / 10
    ]
    is_nnx = framework_of(source, context.levels.frames) == "nnx"
    helps = [text for part, text in _helps(group, is_nnx=is_nnx).items() if nbytes[part]]
    loops = f"{len(group)} loops of {trips} trips each" if len(group) > 1 else "loop"
    return Finding(
        "needless-loop-state",
        f"the {loops} here {', and '.join(texts)}. Without that the {effect}",
        source,
        help="; ".join(helps),
        measured={
            "trips": trips,
            **{f"{part}_nbytes": size for part, size in nbytes.items()},
            **measured,
        },
    )


def _texts(group: Sequence[Excess], nbytes: Mapping[str, int], trips: int) -> dict[str, str]:
    shown = {part: format_bytes(n) for part, n in nbytes.items()}
    copied = _types([e.scan.invars[i] for e in group for i in e.copies.values()])
    fixed = _types([e.scan.invars[i] for e in group for i in e.fixed])
    return {
        "copied": f"returns part of its xs as it is, {copied}, and stacks it once more:"
        f" {shown['copied']}",
        "repeated": f"stacks {shown['repeated']} that are the same in all {trips} trips",
        "unread": f"stacks {shown['unread']}, of which only the last of {trips} trips is read",
        "carried": f"carries {fixed} that never changes: {shown['carried']}, if it is kept for each"
        f" of {trips} trips",
        "reduced": f"stacks {shown['reduced']}, of which it is only {_reductions(group)} over all"
        f" {trips} trips that is read",
    }


def _reductions(group: Sequence[Excess]) -> str:
    """Return which reductions of stacks are read, in words: `the maximum and the sum`."""
    words = sorted({f"the {r.word}" for e in group for r in e.reductions})
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""


def _helps(group: Sequence[Excess], *, is_nnx: bool) -> dict[str, str]:
    of_layer = ", of an NNX layer the last of `nnx.split(layer, nnx.Param, ...)`" if is_nnx else ""
    is_carried = all(set(e.lasts) == set(e.carried) for e in group)
    return {
        "copied": f"return from the body only what changes: `return carry, None`{of_layer}",
        "repeated": "compute it outside the loop",
        "unread": "read the carry that the loop returns, not the last of the stack"
        if is_carried
        else "carry the value, in place of stacking it",
        "carried": "let the body close over it, and carry only what changes",
        "reduced": f"carry {_reductions(group)} over the trips so far, in place of the stack",
    }


def _types(operands: Sequence[Var]) -> str:
    """Return the types of the biggest of some values, in words."""
    avals = sorted(map(aval_of, operands), key=lambda aval: -aval.nbytes)
    counts = Counter(f"{a.dtype}[{','.join(map(str, a.shape))}]" for a in avals)
    shown = [text if n == 1 else f"{n} × {text}" for text, n in counts.items()]
    more = f" and {len(shown) - 2} more" if len(shown) > 2 else ""
    return ", ".join(shown[:2]) + more


SEARCH = FindingSearch(["needless-loop-state"], "proposal", 30, loop_excess, holds_loop)
