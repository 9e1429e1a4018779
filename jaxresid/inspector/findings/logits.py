"""Find scores of a vocabulary that are live at the peak, and tell what it takes without them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.findings.proposals import (
    WORTH_SAYING,
    Proposal,
    proposal,
    rewrite_effect,
)
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.variants.rewrites.chunked_logits import with_chunks
from jaxresid.inspector.variants.rewrites.effects import Figures, Rewrites
from jaxresid.inspector.variants.rewrites.logits import Logits, logits_in
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import Finding, LiveValue, Report

# Of what the smallest chunks take off the peak; bigger ones that take so little less are better.
_NOTHING = 0.03
# A TPU has scores of fewer bytes in its vector memory, which is no part of the peak.
_IN_VECTOR_MEMORY = 128 * 2**20
# Tokens; the matmul of fewer is slow.
_FEWEST = 128


@dataclass(frozen=True, slots=True)
class Chunked:
    """The scores of a program made for some of the tokens, or queries, at a time.

    Attributes:
      chunks: how many parts the tokens are in.
      jaxpr: the rewritten open jaxpr.
      figures: the figures of the program.
    """

    chunks: int
    jaxpr: Jaxpr
    figures: Figures


def may_be_in_vector_memory(held: int, profile: Profile) -> bool:
    """Return whether a compiler may have so many bytes elsewhere than in main memory."""
    return held < vector_memory_nbytes(profile)


def vector_memory_nbytes(profile: Profile) -> int:
    """Return how many bytes a compiler may have elsewhere than in main memory."""
    return _IN_VECTOR_MEMORY if profile.pads_to_tiles else 0


def logits_at_peak(
    report: Report,
    live: Sequence[LiveValue],
    levels: Levels,
    profile: Profile,
    rewrites: Callable[[], Rewrites | None],
) -> Iterator[Proposal]:
    """Yield the findings of logits that are live at the peak; on a mesh there are none.

    Args:
      report: the report of the function or step.
      live: what is live at its estimated peak.
      levels: the descent into its jaxprs.
      profile: the profile of the compiler.
      rewrites: returns what is differentiated, if that can be rewritten.
    """
    if report.peak is None or report.mesh is not None:
        return
    peak = report.peak.nbytes
    # Nothing that is no part of the peak is taken off it.
    biggest = [v for v in live if v.aval is not None and len(v.aval.shape) > 1]
    if not any(v.nbytes >= WORTH_SAYING * peak / 4 for v in biggest):
        return
    made = rewrites()
    for number, jaxpr in enumerate(made.jaxprs if made is not None else ()):
        for logits in logits_in(jaxpr, int(WORTH_SAYING * peak / 4)):
            held = _live_nbytes(logits, biggest)
            if may_be_in_vector_memory(held, profile):
                continue
            if held >= WORTH_SAYING * peak:
                assert made is not None
                found = chunked(made, number, jaxpr, [logits], peak, held)
                if found is not None:
                    finding = _finding(report, levels, made, jaxpr, logits, found, biggest)
                    change = f"the loss of {logits.tokens // found.chunks} tokens at a time"
                    yield proposal(finding, made, number, found.jaxpr, change=change)


def _live_nbytes(logits: Logits, live: Sequence[LiveValue]) -> int:
    """Return the bytes of what is live that is as big as the scores, and has their axis."""
    widths = {logits.width_of(v) for v in logits.copies}
    return sum(
        v.nbytes
        for v in live
        if v.aval is not None
        and any(
            width in v.aval.shape and v.nbytes // v.count >= width * logits.tokens * v.aval.itemsize
            for width in widths
        )
    )


def chunked(
    rewrites: Rewrites,
    number: int,
    jaxpr: Jaxpr,
    scores: Sequence[Logits],
    peak: int,
    held: int,
) -> Chunked | None:
    """Return scores in the biggest chunks that cost nothing; None where that gains little.

    As each number of chunks is differentiated anew, only those are tried of which `held` bytes at
    the peak, a part of them in each chunk, leave little enough.

    Args:
      rewrites: what is differentiated.
      number: the number of the jaxpr among that.
      jaxpr: the jaxpr.
      scores: the scores, alike and of one holder.
      peak: the estimated peak, in bytes.
      held: the bytes of them at the peak.
    """
    count = min(each.count for each in scores)
    # Along the axis of tokens there may be one for several.
    each = 1 if scores[0].mixing is not None else scores[0].tokens // scores[0].count
    fewest = min(_FEWEST, count * each // 2)
    chunks = [n for n in range(2, count + 1) if count % n == 0 and count // n * each >= fewest]
    if not chunks:
        return None

    @functools.cache
    def made(n: int) -> Chunked | None:
        changed = with_chunks(jaxpr, scores, n)
        figures = rewrites.figures(number, changed)
        return None if figures is None else Chunked(n, changed, figures)

    smallest = made(chunks[-1])
    if smallest is None:
        return None
    least = smallest.figures.peak_nbytes
    if peak - least < WORTH_SAYING * peak:
        return None
    more = int(_NOTHING * (peak - least))
    likely = (made(n) for n in chunks if held // n - held // chunks[-1] <= more)
    return next(m for m in likely if m is not None and m.figures.peak_nbytes <= least + more)


def _finding(
    report: Report,
    levels: Levels,
    rewrites: Rewrites,
    jaxpr: Jaxpr,
    logits: Logits,
    found: Chunked,
    live: Sequence[LiveValue],
) -> Finding:
    source = levels.source_below(jaxpr, logits.matmul_path)
    loss = levels.source_below(jaxpr, logits.loss_path)
    held = _live_nbytes(logits, live)
    effect, measured = rewrite_effect(report, rewrites, found.figures)
    tokens, width = logits.tokens // found.chunks, logits.width_of(logits.value)
    what, own = "the loss at the end", ""
    if loss.location is not None:
        at = "this line" if loss.location == source.location else loss.location.place
        what = f"the loss at {at}"
        if loss.location.is_of_loss:
            what, own = at, "in a function of your own, with --loss module:function, "
    checkpointed, part = "", "loss_of_tokens"
    if rewrites.are_differentiated:
        checkpointed, part = ", in a checkpoint", f"jax.checkpoint({part})"
    return Finding(
        "logits-at-peak",
        f"the logits of {logits.tokens} tokens × {width} and what {what} makes of them"
        f" take {format_bytes(held)} at the peak: {tokens} tokens at a time{checkpointed}, they"
        f" hardly matter. The {effect}",
        source,
        help=f"{own}compute the loss of {tokens} tokens at a time:"
        f" jax.lax.map({part}, (hidden, labels))",
        measured={
            "nbytes": held,
            "tokens": logits.tokens,
            "chunk_tokens": tokens,
            "chunks": found.chunks,
            **measured,
            "loss": None if loss.location is None else loss.location.place,
        },
    )
