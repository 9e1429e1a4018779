"""Find loops that stack or carry what they need not, and tell what the program takes without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from jaxresid import jax_compat
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.findings.frameworks import framework_of
from jaxresid.inspector.findings.logits import may_be_in_vector_memory
from jaxresid.inspector.findings.proposals import (
    WORTH_SAYING,
    Proposal,
    live_nbytes_of,
    proposal,
    rewrite_effect,
)
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.program.avals import aval_of
from jaxresid.inspector.variants.rewrites.effects import Figures, Rewrites
from jaxresid.inspector.variants.rewrites.loop_excess import Excess, excesses_in, without_excess
from jaxresid.jax_compat.jaxpr_types import Jaxpr, Var
from jaxresid.results import Finding, Report, Source


def holds_loop(*jaxprs: Jaxpr) -> bool:
    """Return whether any of some jaxprs holds a scan."""
    return any(jax_compat.primitive_name(eqn) == "scan" for j in jaxprs for eqn in eqns_in(j))


def loop_excess(
    report: Report, levels: Levels, profile: Profile, rewrites: Rewrites
) -> Iterator[Proposal]:
    """Yield the findings of what loops stack or carry in vain, one for each line with loops.

    Args:
      report: the report of the function or step; it has an estimated peak, and no mesh.
      levels: the descent into the jaxprs.
      profile: the profile of the compiler.
      rewrites: what is differentiated, or all of a program without a gradient.
    """
    assert report.peak is not None
    least = WORTH_SAYING * report.peak.nbytes
    for number, jaxpr in enumerate(rewrites.jaxprs):
        by_line: dict[Source, list[Excess]] = {}
        for excess in excesses_in(jaxpr):
            if excess.nbytes:
                by_line.setdefault(levels.source_below(jaxpr, excess.path), []).append(excess)
        for source, found in by_line.items():
            nbytes = sum(each.nbytes for each in found)
            # The cotangent of a stack takes as much again.
            if 2 * nbytes < least or may_be_in_vector_memory(nbytes, profile):
                continue
            shapes = [shape for each in found for shape in each.shapes]
            if live_nbytes_of(shapes, report.peak.live) < least:
                continue
            changed = without_excess(jaxpr, found)
            figures = rewrites.figures(number, changed)
            if figures is None:
                continue
            if report.peak.nbytes - figures.peak_nbytes >= least:
                finding = _finding(report, levels.frames, rewrites, source, found, figures)
                yield proposal(finding, rewrites, number, changed)


def _finding(
    report: Report,
    frames: Frames,
    rewrites: Rewrites,
    source: Source,
    found: Sequence[Excess],
    figures: Figures,
) -> Finding:
    parts = {
        "copied": sum(e.stacked_nbytes(e.copies) for e in found),
        "repeated": sum(e.stacked_nbytes(e.repeats) for e in found),
        "unread": sum(e.stacked_nbytes(e.lasts) for e in found),
        "carried": sum(e.fixed_nbytes for e in found),
        "reduced": sum(e.stacked_nbytes(e.reduced) for e in found),
    }
    trips = max(e.trips for e in found)
    effect, measured = rewrite_effect(report, rewrites, figures)
    said = [
        text
        for part, text in _texts(found, parts, trips).items()
        if parts[part] >= sum(parts.values()) / 10
    ]
    is_nnx = framework_of(source, frames) == "nnx"
    helps = [text for part, text in _helps(found, is_nnx=is_nnx).items() if parts[part]]
    loops = f"{len(found)} loops of {trips} trips each" if len(found) > 1 else "loop"
    return Finding(
        "needless-loop-state",
        f"the {loops} here {', and '.join(said)}. Without that the {effect}",
        source,
        help="; ".join(helps),
        measured={
            "trips": trips,
            **{f"{part}_nbytes": nbytes for part, nbytes in parts.items()},
            **measured,
        },
    )


def _texts(found: Sequence[Excess], nbytes: Mapping[str, int], trips: int) -> dict[str, str]:
    """Return what is said of each part of the excess."""
    shown = {part: format_bytes(n) for part, n in nbytes.items()}
    copied = _types([e.scan.invars[i] for e in found for i in e.copies.values()])
    fixed = _types([e.scan.invars[i] for e in found for i in e.fixed])
    return {
        "copied": f"returns part of its xs as it is, {copied}, and stacks it once more:"
        f" {shown['copied']}",
        "repeated": f"stacks {shown['repeated']} that are the same in all {trips} trips",
        "unread": f"stacks {shown['unread']}, of which only the last of {trips} trips is read",
        "carried": f"carries {fixed} that never changes: {shown['carried']}, if it is kept for each"
        f" of {trips} trips",
        "reduced": f"stacks {shown['reduced']}, of which it is only {_reductions(found)} over all"
        f" {trips} trips that is read",
    }


def _reductions(found: Sequence[Excess]) -> str:
    """Return which reductions of stacks are read, in words: `the maximum and the sum`."""
    words = sorted({f"the {r.word}" for e in found for r in e.reductions})
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""


def _helps(found: Sequence[Excess], *, is_nnx: bool) -> dict[str, str]:
    """Return what to write against each part of the excess."""
    of_layer = ", of an NNX layer the last of `nnx.split(layer, nnx.Param, ...)`" if is_nnx else ""
    is_carried = all(set(e.lasts) == set(e.carried) for e in found)
    return {
        "copied": f"return from the body only what changes: `return carry, None`{of_layer}",
        "repeated": "compute it outside the loop",
        "unread": "read the carry that the loop returns, not the last of the stack"
        if is_carried
        else "carry the value, in place of stacking it",
        "carried": "let the body close over it, and carry only what changes",
        "reduced": f"carry {_reductions(found)} over the trips so far, in place of the stack",
    }


def _types(operands: Sequence[Var]) -> str:
    """Return the types of the biggest of some values, in words."""
    avals = sorted(map(aval_of, operands), key=lambda aval: -aval.nbytes)
    counts = Counter(f"{a.dtype}[{','.join(map(str, a.shape))}]" for a in avals)
    shown = [text if n == 1 else f"{n} × {text}" for text, n in counts.items()]
    more = f" and {len(shown) - 2} more" if len(shown) > 2 else ""
    return ", ".join(shown[:2]) + more
