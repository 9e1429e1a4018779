"""Find one-hots at the peak that are multiplied by a table, and tell what it takes without them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from jaxresid import jax_compat
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.findings.proposals import (
    WORTH_SAYING,
    Proposal,
    proposal,
    rewrite_effect,
)
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.program.avals import aval_of
from jaxresid.inspector.variants.rewrites.effects import Figures, Rewrites
from jaxresid.inspector.variants.rewrites.one_hots import (
    OneHotMatmul,
    one_hot_matmuls,
    with_rows_taken,
)
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import Finding, LiveValue, Report, Source

NAME = "one-hot-matmul"


def one_hots_at_peak(
    report: Report,
    live: Sequence[LiveValue],
    levels: Levels,
    jaxprs: Iterable[Jaxpr],
    rewrites: Callable[[], Rewrites | None],
) -> Iterator[Proposal]:
    """Yield the findings of one-hots at the peak, one for each line that multiplies them.

    Args:
      report: the report of the program; it has an estimated peak, and no mesh.
      live: what is live at its estimated peak.
      levels: the descent into its jaxprs.
      jaxprs: its open jaxprs, as they were traced.
      rewrites: returns what is differentiated, or all of a program without a gradient.
    """
    assert report.peak is not None
    peak = report.peak.nbytes
    held: dict[tuple[int, ...], int] = {}
    for v in live:
        if v.aval is not None and v.primitive is not None:
            held[v.aval.shape] = held.get(v.aval.shape, 0) + v.nbytes
    big = {shape for shape, nbytes in held.items() if shape and nbytes >= WORTH_SAYING * peak}
    if not big & _compared(jaxprs):
        return
    made = rewrites()
    for number, jaxpr in enumerate(made.jaxprs if made is not None else ()):
        by_line: dict[Source, list[OneHotMatmul]] = {}
        for found in one_hot_matmuls(jaxpr):
            if found.shape in big:
                source = levels.source_below(jaxpr, found.path)
                by_line.setdefault(source, []).append(found)
        for source, group in by_line.items():
            assert made is not None
            changed = with_rows_taken(jaxpr, group)
            figures = made.figures(number, changed)
            if figures is not None and peak - figures.peak_nbytes >= WORTH_SAYING * peak:
                nbytes = sum(held[shape] for shape in {found.shape for found in group})
                finding = _finding(report, made, source, group[0], figures, nbytes)
                change = "rows of the table in place of one-hots"
                yield proposal(finding, made, number, changed, change=change)


def _compared(jaxprs: Iterable[Jaxpr]) -> set[tuple[int, ...]]:
    """Return the shapes of comparisons for equality, which one-hots are made of."""
    return {
        aval_of(eqn.outvars[0]).shape
        for jaxpr in jaxprs
        for eqn in eqns_in(jaxpr)
        if jax_compat.primitive_name(eqn) == "eq"
    }


def _finding(
    report: Report,
    rewrites: Rewrites,
    source: Source,
    found: OneHotMatmul,
    figures: Figures,
    nbytes: int,
) -> Finding:
    effect, measured = rewrite_effect(report, rewrites, figures)
    return Finding(
        NAME,
        f"the one-hot of {found.count} indices × {found.rows} that a table is multiplied by here"
        f" takes {format_bytes(nbytes)} at the peak. With rows of the table taken in its place, the"
        f" {effect}",
        source,
        help="table[ids] in place of jax.nn.one_hot(ids, n) @ table: it is the same where all ids"
        " are rows of the table",
        measured={"nbytes": nbytes, "indices": found.count, "rows": found.rows, **measured},
    )
