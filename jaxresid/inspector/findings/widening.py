"""Find what becomes wider without anybody asking for it, and tell what it is worth to keep narrow.

`jnp.var` of a bfloat16 array computes in float32, and so does whatever meets a float32 array. What
the user's own line casts by name is deliberate, and so is what a model library does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.findings.proposals import (
    WORTH_SAYING,
    Proposal,
    proposal,
    rewrite_effect,
)
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.variants.rewrites.derived_values import plain
from jaxresid.inspector.variants.rewrites.effects import Figures, Rewrites
from jaxresid.inspector.variants.rewrites.narrowing import Cast, casts_in, narrowed
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import Finding, Peak, Report, Source

_DELIBERATE = re.compile(r"astype|float32|float64|\bf32\b|\bf64\b|convert_element_type|dtype")
# What is live from beginning to end in the type that it has.
_HELD = {"argument", "parameters", "optimizer-state", "batch", "constant", "output"}


@dataclass(frozen=True, slots=True)
class _Widening:
    """A cast to a wider type that no line asks for.

    Attributes:
      cast: the cast.
      by: what casts, quoted: a function of JAX, or the line's code.
      source: where that is.
    """

    cast: Cast
    by: str
    source: Source


def holds_cast(*jaxprs: Jaxpr) -> bool:
    """Return whether any of some jaxprs holds a cast."""
    names = (jax_compat.primitive_name(eqn) for j in jaxprs for eqn in eqns_in(j))
    return "convert_element_type" in names


def widened_residuals(report: Report, levels: Levels, rewrites: Rewrites) -> Iterator[Proposal]:
    """Yield the findings of what is widened in vain, one for each two types.

    Args:
      report: the report of the function or step; it has an estimated peak, and no mesh.
      levels: the descent into the jaxprs.
      rewrites: what is differentiated.
    """
    assert report.peak is not None
    least = WORTH_SAYING * report.peak.nbytes
    for number, jaxpr in enumerate(rewrites.jaxprs):
        flat = plain(jaxpr)
        groups: dict[tuple[str, str], list[_Widening]] = {}
        for cast in casts_in(levels, jaxpr, flat):
            found = _widening(levels, cast)
            if found is not None:
                groups.setdefault((str(cast.narrow), str(cast.wide)), []).append(found)
        for group in groups.values():
            # A wide value may be kept several times, as it and what is made of it.
            if not any(each.cast.nbytes >= least / 4 for each in group):
                continue
            if _most_saved(report.peak, group[0].cast) < least:
                continue
            changed = narrowed(flat, [each.cast for each in group])
            figures = rewrites.figures(number, changed)
            if figures is None:
                continue
            if report.peak.nbytes - figures.peak_nbytes >= least:
                finding = _finding(report, rewrites, group, figures)
                yield proposal(finding, rewrites, number, changed)


def _most_saved(peak: Peak, cast: Cast) -> float:
    """Return the most bytes that narrow values take off a peak: what nobody need trace for.

    What is wide there is narrow then, or gone, as what was cast may be there already. Arguments and
    outputs keep their types.
    """
    share = 1 - cast.narrow.itemsize / cast.wide.itemsize
    most = 0.0
    for live in peak.live:
        if live.kind in _HELD:
            continue
        if live.aval is None or live.primitive == "convert_element_type":
            most += live.nbytes
        elif live.aval.dtype == str(cast.wide):
            most += share * live.nbytes
    return most


def _finding(
    report: Report, rewrites: Rewrites, group: Sequence[_Widening], figures: Figures
) -> Finding:
    nbytes, by_line = Counter[str](), dict[str, _Widening]()
    for each in group:
        where = each.source.location
        line = "" if where is None else where.place
        nbytes[line] += each.cast.nbytes
        by_line.setdefault(line, each)
    ((line, _),) = nbytes.most_common(1)
    first, others = by_line[line], len(by_line) - 1
    effect, measured = rewrite_effect(report, rewrites, figures)
    more = f", as {others} other line{'s do' if others > 1 else ' does'}" if others else ""
    before, after = str(first.cast.narrow), str(first.cast.wide)
    return Finding(
        "widened-residual",
        f"{first.by} widens {before} to {after}{more}, and what is computed of that is {after}. In"
        f" {before} the {effect}",
        first.source,
        help=f"compute it in {before}: cast the {after} array that it meets, or take statistics"
        " alone in the wide type; else checkpoint it, so that only what is narrow is kept",
        measured={"dtype": after, "before": before, "lines": len(by_line), **measured},
    )


def _widening(levels: Levels, cast: Cast) -> _Widening | None:
    """Return what widens a value; None where somebody asked for it."""
    frames = levels.place(cast.level, cast.written).frames
    at = levels.frames.innermost_user(frames)
    user = max((i for i, f in enumerate(frames) if f.kind == "user"), default=None)
    if user is None or any(f.kind == "library" for f in frames[user:]):
        return None
    if at is None or _DELIBERATE.search(at.code):
        return None
    called, _ = levels.frames.library_calls(frames)
    by = f"`{at.code}`" if called is None or called == at else f"jax's `{called.function}`"
    return _Widening(cast, by, levels.source(cast.level, cast.written))
