"""Find scores of a vocabulary that are live at the peak, and tell what it takes without them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxresid.base.text.units import format_bytes
from jaxresid.base.thresholds import WORTH_SAYING
from jaxresid.inspector.findings.proposals import Proposal, proposal, rewrite_effect
from jaxresid.inspector.findings.search import FindingContext, FindingSearch, is_on_one_device
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.variants.rewrites.chunked_logits import with_chunks
from jaxresid.inspector.variants.rewrites.effects import Figures, Rewrites
from jaxresid.inspector.variants.rewrites.logits import Logits, logits_in
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import Finding, LiveValue

# Of what the smallest chunks take off the peak; bigger ones that take so little less are better.
_NOTHING = 0.03
# A TPU has scores of fewer bytes in its vector memory, which is no part of the peak.
_IN_VECTOR_MEMORY = 128 * 2**20
# Tokens; the matmul of fewer is slow.
_FEWEST = 128


@dataclass(frozen=True, slots=True)
class Chunked:
    """A program that makes scores in so many chunks of the tokens, or queries."""

    chunks: int
    jaxpr: Jaxpr
    figures: Figures


def may_be_in_vector_memory(nbytes: int, profile: Profile) -> bool:
    """Return whether a compiler may have so many bytes elsewhere than in main memory."""
    return nbytes < vector_memory_nbytes(profile)


def vector_memory_nbytes(profile: Profile) -> int:
    """Return how many bytes a compiler may have elsewhere than in main memory."""
    return _IN_VECTOR_MEMORY if profile.pads_to_tiles else 0


def logits_at_peak(context: FindingContext) -> Iterator[Proposal]:
    """Yield the findings of logits that are live at the peak."""
    least = context.least_nbytes
    # Nothing that is no part of the peak is taken off it.
    live = [v for v in context.subject.live if v.aval is not None and len(v.aval.shape) > 1]
    if not any(v.nbytes >= least / 4 for v in live):
        return
    rewrites = context.subject.rewrites
    for number, jaxpr in enumerate(rewrites.jaxprs if rewrites is not None else ()):
        for logits in logits_in(jaxpr, int(least / 4)):
            nbytes = _live_nbytes(logits, live)
            if nbytes < least or may_be_in_vector_memory(nbytes, context.subject.profile):
                continue
            assert rewrites is not None
            parts = chunked(rewrites, number, jaxpr, [logits], context.peak_nbytes, nbytes)
            if parts is not None:
                finding = _finding(context, rewrites, jaxpr, logits, parts, nbytes)
                change = f"the loss of {logits.tokens // parts.chunks} tokens at a time"
                yield proposal(finding, rewrites, number, parts.jaxpr, change=change)


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
    peak_nbytes: int,
    nbytes: int,
) -> Chunked | None:
    """Return scores in the biggest chunks that cost nothing; None where that gains little.

    As each number of chunks is differentiated anew, only those are tried of which the bytes at the
    peak, a part of them in each chunk, leave little enough.

    Args:
      rewrites: what is differentiated.
      number: the number of the jaxpr among that.
      jaxpr: the jaxpr.
      scores: the scores, alike and of one holder.
      peak_nbytes: the estimated peak.
      nbytes: the bytes of the scores there.
    """
    count = min(s.count for s in scores)
    # Along the axis of tokens there may be one for several.
    inner = 1 if scores[0].mixing is not None else scores[0].tokens // scores[0].count
    fewest = min(_FEWEST, count * inner // 2)
    chunks = [n for n in range(2, count + 1) if count % n == 0 and count // n * inner >= fewest]
    if not chunks:
        return None

    @functools.cache
    def in_chunks(n: int) -> Chunked | None:
        changed = with_chunks(jaxpr, scores, n)
        figures = rewrites.figures(number, changed)
        return None if figures is None else Chunked(n, changed, figures)

    smallest = in_chunks(chunks[-1])
    if smallest is None:
        return None
    least = smallest.figures.peak_nbytes
    if peak_nbytes - least < WORTH_SAYING * peak_nbytes:
        return None
    more = int(_NOTHING * (peak_nbytes - least))
    likely = (in_chunks(n) for n in chunks if nbytes // n - nbytes // chunks[-1] <= more)
    return next(c for c in likely if c is not None and c.figures.peak_nbytes <= least + more)


def _finding(
    context: FindingContext,
    rewrites: Rewrites,
    jaxpr: Jaxpr,
    logits: Logits,
    parts: Chunked,
    nbytes: int,
) -> Finding:
    source = context.levels.source_below(jaxpr, logits.matmul_path)
    loss = context.levels.source_below(jaxpr, logits.loss_path)
    effect, measured = rewrite_effect(context.report, rewrites, parts.figures)
    tokens, width = logits.tokens // parts.chunks, logits.width_of(logits.value)
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
        f" take {format_bytes(nbytes)} at the peak: {tokens} tokens at a time{checkpointed}, they"
        f" hardly matter. The {effect}",
        source,
        help=f"{own}compute the loss of {tokens} tokens at a time:"
        f" jax.lax.map({part}, (hidden, labels))",
        measured={
            "nbytes": nbytes,
            "tokens": logits.tokens,
            "chunk_tokens": tokens,
            "chunks": parts.chunks,
            **measured,
            "loss": None if loss.location is None else loss.location.place,
        },
    )


SEARCH = FindingSearch(["logits-at-peak"], "proposal", 10, logits_at_peak, is_on_one_device)
