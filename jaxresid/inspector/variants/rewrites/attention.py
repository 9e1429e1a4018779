"""Find attention that makes the scores of all queries and all keys.

That is a matmul to scores, a softmax over the keys and a matmul with values, with whatever is done
to single scores in between: scales, masks, biases, caps, dropout. What counts is how values flow.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxresid import jax_compat
from jaxresid.inspector.variants.rewrites.flat_calls import (
    Flat,
    flattened,
    holders,
    own_eqns,
    summed_widths,
)
from jaxresid.inspector.variants.rewrites.logits import Logits, scores_made_by
from jaxresid.inspector.variants.rewrites.token_axes import Axes, shape_of, size_of
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr

# Of the scores' bytes; with more in what is made of them, there are few keys for each query.
_MOST_LEFT = 0.5


def attention_in(jaxpr: Jaxpr, least: int) -> Iterator[Logits]:
    """Yield the scores of the attention in an open jaxpr, at least so many in all.

    Their tokens are the queries. What a checkpoint holds is left out.
    """
    for holder in holders(jaxpr):
        flats: dict[tuple[int, int], Flat] = {}
        tried: set[int] = set()
        widths = summed_widths(holder.jaxpr)
        for eqn in own_eqns(holder.jaxpr):
            if id(eqn) in tried or not is_score_matmul(eqn):
                continue
            if size_of(eqn.outvars[0]) < least:
                continue
            tried.add(id(eqn))
            for axes in _axes_of(eqn):
                assert axes.scores is not None
                shape = shape_of(eqn.outvars[0])
                key = size_of(eqn.outvars[0]), shape[axes.scores]
                if key[1] not in widths:
                    continue
                if key not in flats:
                    flats[key] = flattened(holder, *key)
                scores = [
                    s
                    for s in scores_made_by(holder.jaxpr, flats[key], eqn, axes, _MOST_LEFT)
                    if s.mixing is not None
                ]
                yield from scores
                if scores:
                    break


def is_score_matmul(eqn: Eqn) -> bool:
    """Return whether an eqn may make scores, for some heads or examples at once."""
    if jax_compat.primitive_name(eqn) != "dot_general":
        return False
    _, batch = jax_compat.params(eqn)["dimension_numbers"]
    return bool(batch[0])


def _axes_of(matmul: Eqn) -> Iterator[Axes]:
    """Yield what may be the axes of scores: the keys are alone, of queries there may be groups."""
    contracting, batch = jax_compat.params(matmul)["dimension_numbers"]
    dims, at = list[list[int]](), len(batch[0])
    for side in (0, 1):
        free = len(shape_of(matmul.invars[side])) - len(contracting[side]) - len(batch[side])
        dims.append(list(range(at, at + free)))
        at += free
    shape = shape_of(matmul.outvars[0])
    for queries, keys in (dims, reversed(dims)):
        if len(keys) == 1 and queries:
            longest = max(queries, key=lambda d: shape[d])
            if shape[longest] > 1:
                yield Axes(longest, 1, keys[0])
