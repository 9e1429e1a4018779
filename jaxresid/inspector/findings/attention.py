"""Find attention scores that are live at the peak, and tell what it takes without them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

from jaxresid import jax_compat
from jaxresid.base.text.layer_paths import folded_scopes
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.findings.frameworks import is_flax_attention
from jaxresid.inspector.findings.logits import Chunked, chunked, may_be_in_vector_memory
from jaxresid.inspector.findings.proposals import (
    WORTH_SAYING,
    Proposal,
    live_nbytes_of,
    proposal,
    rewrite_effect,
)
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.variants.rewrites.attention import attention_in, is_score_matmul
from jaxresid.inspector.variants.rewrites.effects import Rewrites
from jaxresid.inspector.variants.rewrites.logits import EXPONENTIALS, Logits
from jaxresid.inspector.variants.rewrites.token_axes import shape_of
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import Finding, LiveValue, Report, Source


def attention_at_peak(
    report: Report,
    live: Sequence[LiveValue],
    levels: Levels,
    jaxprs: Sequence[Jaxpr],
    profile: Profile,
    rewrites: Callable[[], Rewrites | None],
) -> Iterator[Proposal]:
    """Yield the findings of attention scores that are live at the peak, one for each line.

    Args:
      report: the report of the function or step; it has an estimated peak, and no mesh.
      live: what is live at that peak.
      levels: the descent into the jaxprs.
      jaxprs: the program's jaxprs.
      profile: the profile of the compiler.
      rewrites: returns what is differentiated, if that can be rewritten.
    """
    assert report.peak is not None
    peak = report.peak.nbytes
    biggest = [v for v in live if v.aval is not None and len(v.aval.shape) > 2]
    shapes = [
        s
        for s in _exponential_shapes(jaxprs)
        if live_nbytes_of([s], biggest) >= WORTH_SAYING * peak
    ]
    if not shapes:
        return
    least = min(map(math.prod, shapes))
    made = rewrites()
    for number, jaxpr in enumerate(made.jaxprs if made is not None else ()):
        assert made is not None
        groups: dict[Hashable, list[tuple[Logits, Source]]] = {}
        for scores in attention_in(jaxpr, least):
            source = levels.source_below(jaxpr, scores.matmul_path)
            same = id(scores.holder), id(scores.jaxpr), scores.count
            key = *same, source.location, source.library
            groups.setdefault(key, []).append((scores, source))
        for group in groups.values():
            each = [scores for scores, _ in group]
            held = live_nbytes_of([shape_of(each[0].value)], biggest)
            if held < WORTH_SAYING * peak or may_be_in_vector_memory(held, profile):
                continue
            found = chunked(made, number, jaxpr, each, peak, held)
            if found is not None:
                scope = folded_scopes(source.scope for _, source in group)
                source = replace(group[0][1], scope=scope)
                finding = _finding(report, made, each, found, source, held)
                queries = each[0].count // found.chunks
                change = f"attention for {queries} queries at a time"
                yield proposal(finding, made, number, found.jaxpr, change=change)


def _exponential_shapes(jaxprs: Iterable[Jaxpr]) -> set[tuple[int, ...]]:
    """Return the shapes of exponentials, which a softmax over scores has, in programs with such."""
    shapes, has_scores = set[tuple[int, ...]](), False
    for eqn in (eqn for jaxpr in jaxprs for eqn in eqns_in(jaxpr)):
        has_scores = has_scores or is_score_matmul(eqn)
        if jax_compat.primitive_name(eqn) in EXPONENTIALS:
            shapes.add(shape_of(eqn.outvars[0]))
    return {shape for shape in shapes if len(shape) > 2} if has_scores else set()


def _finding(
    report: Report,
    rewrites: Rewrites,
    scores: Sequence[Logits],
    found: Chunked,
    source: Source,
    held: int,
) -> Finding:
    first = scores[0]
    # Flax's layers are given the function that attends.
    layer = ". The layer takes either as attention_fn" if is_flax_attention(source) else ""
    queries, keys = first.count // found.chunks, first.width_of(first.value)
    effect, measured = rewrite_effect(report, rewrites, found.figures)
    checkpointed, attend = "", "lambda q: attend(q, k, v)"
    if rewrites.are_differentiated:
        checkpointed, attend = ", each part in a checkpoint", f"jax.checkpoint({attend})"
    return Finding(
        "attention-scores-at-peak",
        f"attention here makes the scores of {first.count} queries × {keys} keys, and with what the"
        f" softmax makes of them {format_bytes(held)} are in memory at the peak. For {queries}"
        f" queries at a time{checkpointed}, the {effect}",
        source,
        help="a kernel never has them in memory: jax.nn.dot_product_attention(q, k, v,"
        ' implementation="cudnn") on a GPU in float16 or bfloat16, splash attention on a TPU;'
        f" neither was traced. Without one, attend with {queries} queries at a time:"
        f" jax.lax.map({attend}, parts_of_q){layer}",
        measured={
            "nbytes": held,
            "queries": first.count,
            "keys": keys,
            "chunk_queries": queries,
            "chunks": found.chunks,
            "calls": len(scores),
            **measured,
        },
    )
