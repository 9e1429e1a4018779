"""Find masks that loops hold as large as the scores, and tell what it takes with a bias instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.findings.proposals import (
    WORTH_SAYING,
    Proposal,
    proposal,
    rewrite_effect,
)
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.variants.rewrites.effects import Figures, Rewrites
from jaxresid.inspector.variants.rewrites.wide_masks import (
    MaskedScores,
    masked_scores,
    with_biases,
)
from jaxresid.results import Finding, LiveValue, Report, Source

NAME = "mask-broadcast-before-loop"


def wide_masks(
    report: Report,
    live: Sequence[LiveValue],
    levels: Levels,
    profile: Profile,
    rewrites: Callable[[], Rewrites | None],
) -> Iterator[Proposal]:
    """Yield the findings of masks at the peak as large as the scores, one for each line.

    The compiler of TPUs makes them in the loop after all, and there are none.

    Args:
      report: the report of the program; it has an estimated peak, and no mesh.
      live: what is live at its estimated peak.
      levels: the descent into its jaxprs.
      profile: the profile of the compiler.
      rewrites: returns what is differentiated, or all of a program without a gradient.
    """
    assert report.peak is not None
    if profile.name != "gpu":
        return
    peak = report.peak.nbytes
    held: dict[tuple[int, ...], int] = {}
    for v in live:
        if v.aval is not None and v.primitive == "broadcast_in_dim":
            held[v.aval.shape] = held.get(v.aval.shape, 0) + v.nbytes
    big = {shape for shape, nbytes in held.items() if nbytes >= WORTH_SAYING * peak}
    if not big:
        return
    made = rewrites()
    for number, jaxpr in enumerate(made.jaxprs if made is not None else ()):
        by_line: dict[Source, list[MaskedScores]] = {}
        for found in masked_scores(jaxpr):
            if found.shape in big:
                source = levels.source_below(jaxpr, found.path)
                by_line.setdefault(source, []).append(found)
        for source, group in by_line.items():
            assert made is not None
            changed = with_biases(jaxpr, group)
            figures = made.figures(number, changed)
            if figures is not None and peak - figures.peak_nbytes >= WORTH_SAYING * peak:
                nbytes = sum(held[shape] for shape in {found.shape for found in group})
                finding = _finding(report, made, source, group[0], figures, nbytes)
                change = "a bias added in place of a mask that selects"
                yield proposal(finding, made, number, changed, change=change)


def _finding(
    report: Report,
    rewrites: Rewrites,
    source: Source,
    found: MaskedScores,
    figures: Figures,
    nbytes: int,
) -> Finding:
    effect, measured = rewrite_effect(report, rewrites, figures)
    return Finding(
        NAME,
        f"the mask of {list(found.mask_shape)} here is broadcast to the scores,"
        f" {list(found.shape)}, which JAX does before the loop: with the fill it takes"
        f" {format_bytes(nbytes)} at the peak. With a bias added in its place, the {effect}",
        source,
        help="scores + jnp.where(mask, 0, -1e30) in place of jnp.where(mask, scores, -1e30), with"
        " the mask in its own shape: the softmax is the same but for rows that are masked whole;"
        " attention of a library may take it as bias=",
        measured={
            "nbytes": nbytes,
            "mask_shape": list(found.mask_shape),
            "scores_shape": list(found.shape),
            **measured,
        },
    )
