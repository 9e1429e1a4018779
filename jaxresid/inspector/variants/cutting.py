"""Take eqns out of a jaxpr as a jaxpr of their own."""

from __future__ import annotations

from collections.abc import Sequence

from jaxresid import jax_compat
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Literal


def cut(jaxpr: Jaxpr, start: int, stop: int, eqns: Sequence[Eqn]) -> Jaxpr:
    """Return eqns [start, stop) of an open jaxpr as a jaxpr of their own.

    What they read from outside are its inputs, what is read after them its outputs.

    Args:
      jaxpr: the open jaxpr.
      start: the index of the first of the eqns.
      stop: the index after the last of them.
      eqns: these eqns, perhaps rewritten.
    """
    made = {v for eqn in eqns for v in eqn.outvars}
    free = dict.fromkeys(
        v for eqn in eqns for v in eqn.invars if not jax_compat.is_literal(v) and v not in made
    )
    later = {v for eqn in jaxpr.eqns[stop:] for v in eqn.invars if not jax_compat.is_literal(v)}
    later |= {v for v in jaxpr.outvars if not jax_compat.is_literal(v)}
    outputs = [v for eqn in eqns for v in eqn.outvars if v in later]
    return jaxpr.replace(invars=list(free), constvars=[], outvars=outputs, eqns=list(eqns))


def with_folded_numbers_as_inputs(jaxpr: Jaxpr) -> tuple[Jaxpr, list[Literal]]:
    """Return an open jaxpr whose last inputs are the numbers it folds into random keys, and these.

    Flax Linen folds a hash of each module's path into the keys of dropout: layers that are the same
    but for that become alike, and JAX differentiates them once.
    """
    numbers: list[Literal] = []
    invars = list(jaxpr.invars)
    eqns = []
    for eqn in jaxpr.eqns:
        made = eqn
        if jax_compat.primitive_name(eqn) == "random_fold_in":
            reads = list(eqn.invars)
            for i, v in enumerate(reads):
                if jax_compat.is_literal(v):
                    numbers.append(v)
                    reads[i] = jax_compat.new_var_like(v)
                    invars.append(reads[i])
            made = eqn.replace(invars=reads)
        eqns.append(made)
    return (jaxpr.replace(invars=invars, eqns=eqns), numbers) if numbers else (jaxpr, [])
