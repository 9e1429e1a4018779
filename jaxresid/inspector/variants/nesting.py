"""Cut a scan into segments: an outer scan of checkpoints around inner scans of its iterations.

Only what enters a segment is kept for the backward pass, which runs each segment once more. The
loop is bound again with the body that it has, so that no user code runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.program.avals import aval_of
from jaxresid.jax_compat.jaxpr_types import Eqn

# A loop of fewer iterations has no two segments of two.
FEWEST = 4


def carries(params: Mapping[str, Any]) -> bool:
    """Return whether a scan of these params hands something on and is long enough to be cut."""
    return bool(jax_compat.scan_counts(params)[1] > 0 and params["length"] >= FEWEST)


def sizes_of(params: Mapping[str, Any]) -> tuple[int, int]:
    """Return the bytes of the carry of a scan of these params, and of its xs, all iterations."""
    first, count = jax_compat.scan_counts(params)
    invars = jax_compat.open_jaxpr(params["jaxpr"]).invars
    carry = sum(aval_of(v).nbytes for v in invars[first : first + count])
    xs = sum(aval_of(v).nbytes for v in invars[first + count :])
    return carry, xs * int(params["length"])


def nested_scan(
    scan: Any, params: Mapping[str, Any], sizes: Sequence[int], policy: Any
) -> Callable[..., list[Any]]:
    """Return a function of a scan's operands that runs it in segments.

    Args:
      scan: the primitive.
      params: what it is bound with.
      sizes: how many iterations a segment has, by level, the outermost first; each is a multiple of
        the next. What is left of the loop runs after the segments, as it is.
      policy: the policy of the segments' checkpoints.
    """
    jax = jax_compat.import_jax()
    first, count = jax_compat.scan_counts(params)
    length, is_reverse = params["length"], params["reverse"]
    counts = split(length, sizes)
    covered = length - length % sizes[0]
    # In reverse the last iterations of all run first.
    head = slice(length - covered, None) if is_reverse else slice(covered)
    tail = slice(length - covered) if is_reverse else slice(covered, None)

    def run(*args: Any) -> list[Any]:
        consts, carry, xs = args[:first], args[first : first + count], args[first + count :]

        def iterations(carry: Any, xs: Any, length: int) -> Any:
            outs = scan.bind(*consts, *carry, *xs, **{**params, "length": length})
            return tuple(outs[:count]), tuple(outs[count:])

        def level(at: int, carry: Any, xs: Any) -> Any:
            if at == len(sizes):
                return iterations(carry, xs, sizes[-1])
            segment = jax.checkpoint(
                lambda carry, xs: level(at + 1, carry, xs), prevent_cse=False, policy=policy
            )
            return jax.lax.scan(segment, carry, xs, length=counts[at], reverse=is_reverse)

        cut = [x if covered == length else x[head] for x in xs]
        cut = [x.reshape(*counts, *x.shape[1:]) for x in cut]
        carry, ys = level(0, tuple(carry), tuple(cut))
        ys = [y.reshape(covered, *y.shape[len(counts) :]) for y in ys]
        if covered < length:
            carry, rest = iterations(carry, tuple(x[tail] for x in xs), length - covered)
            both = zip(ys, rest, strict=True)
            pairs = [(b, a) if is_reverse else (a, b) for a, b in both]
            ys = [jax.numpy.concatenate(pair) for pair in pairs]
        return [*carry, *ys]

    return run


def split(length: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the counts that segments of these sizes cut iterations into: 8, 4, 2 of 64 in 8, 2.

    The last count is of iterations; what is left of the loop is not counted.
    """
    counts = [length // sizes[0]]
    counts += [outer // inner for outer, inner in itertools.pairwise(sizes)]
    return (*counts, sizes[-1])


def nested_eqn(eqn: Eqn, sizes: Sequence[int], policy: Any) -> Eqn:
    """Return a call that stands for a scan in segments; `flattened` puts its eqns in its place."""
    jax = jax_compat.import_jax()
    run = nested_scan(eqn.primitive, jax_compat.params(eqn), sizes, policy)
    made = jax_compat.open_jaxpr(jax.make_jaxpr(run)(*(v.aval for v in eqn.invars)))
    eqns = [each.replace(source_info=eqn.source_info, ctx=eqn.ctx) for each in made.eqns]
    return jax_compat.as_removed_checkpoint(eqn, jax_compat.as_jit_jaxpr(made.replace(eqns=eqns)))
