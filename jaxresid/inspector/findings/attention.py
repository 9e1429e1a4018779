"""Find attention scores that are live at the peak, and tell what it takes without them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

from jaxresid import jax_compat
from jaxresid.base.text.layer_paths import folded_scopes
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.findings.frameworks import is_flax_attention
from jaxresid.inspector.findings.logits import Chunked, chunked, may_be_in_vector_memory
from jaxresid.inspector.findings.proposals import (
    Proposal,
    live_nbytes_of,
    proposal,
    rewrite_effect,
)
from jaxresid.inspector.findings.search import FindingContext, FindingSearch, is_on_one_device
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.variants.rewrites.attention import attention_in, is_score_matmul
from jaxresid.inspector.variants.rewrites.effects import Rewrites
from jaxresid.inspector.variants.rewrites.logits import EXPONENTIALS, Logits
from jaxresid.inspector.variants.rewrites.token_axes import shape_of
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import Finding, Report, Source


def attention_at_peak(context: FindingContext) -> Iterator[Proposal]:
    """Yield the findings of attention scores that are live at the peak, one for each line."""
    live = [v for v in context.subject.live if v.aval is not None and len(v.aval.shape) > 2]
    shapes = [
        shape
        for shape in _exponential_shapes(context.jaxprs)
        if live_nbytes_of([shape], live) >= context.least_nbytes
    ]
    rewrites = context.subject.rewrites if shapes else None
    if rewrites is None:
        return
    least = min(map(math.prod, shapes))
    for number, jaxpr in enumerate(rewrites.jaxprs):
        groups: dict[Hashable, list[tuple[Logits, Source]]] = {}
        for scores in attention_in(jaxpr, least):
            source = context.levels.source_below(jaxpr, scores.matmul_path)
            same = id(scores.holder), id(scores.jaxpr), scores.count
            key = *same, source.location, source.library
            groups.setdefault(key, []).append((scores, source))
        for group in groups.values():
            alike = [scores for scores, _ in group]
            nbytes = live_nbytes_of([shape_of(alike[0].value)], live)
            if nbytes < context.least_nbytes or may_be_in_vector_memory(
                nbytes, context.subject.profile
            ):
                continue
            parts = chunked(rewrites, number, jaxpr, alike, context.peak_nbytes, nbytes)
            if parts is not None:
                scope = folded_scopes(source.scope for _, source in group)
                source = replace(group[0][1], scope=scope)
                finding = _finding(context.report, rewrites, alike, parts, source, nbytes)
                change = f"attention for {alike[0].count // parts.chunks} queries at a time"
                yield proposal(finding, rewrites, number, parts.jaxpr, change=change)


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
    parts: Chunked,
    source: Source,
    nbytes: int,
) -> Finding:
    first = scores[0]
    # Flax's layers are given the function that attends.
    layer = ". The layer takes either as attention_fn" if is_flax_attention(source) else ""
    queries, keys = first.count // parts.chunks, first.width_of(first.value)
    effect, measured = rewrite_effect(report, rewrites, parts.figures)
    checkpointed, attend = "", "lambda q: attend(q, k, v)"
    if rewrites.are_differentiated:
        checkpointed, attend = ", each part in a checkpoint", f"jax.checkpoint({attend})"
    return Finding(
        "attention-scores-at-peak",
        f"attention here makes the scores of {first.count} queries × {keys} keys, and with what the"
        f" softmax makes of them {format_bytes(nbytes)} are in memory at the peak. For {queries}"
        f" queries at a time{checkpointed}, the {effect}",
        source,
        help="a kernel never has them in memory: jax.nn.dot_product_attention(q, k, v,"
        ' implementation="cudnn") on a GPU in float16 or bfloat16, splash attention on a TPU;'
        f" neither was traced. Without one, attend with {queries} queries at a time:"
        f" jax.lax.map({attend}, parts_of_q){layer}",
        measured={
            "nbytes": nbytes,
            "queries": first.count,
            "keys": keys,
            "chunk_queries": queries,
            "chunks": parts.chunks,
            "calls": len(scores),
            **measured,
        },
    )


SEARCH = FindingSearch(
    ["attention-scores-at-peak"], "proposal", 70, attention_at_peak, is_on_one_device
)
