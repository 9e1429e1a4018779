"""Which results of a jaxpr can have a derivative: those that floats reach by floats alone.

What passes through an integer or a bool on its way, such as the share of labels that an argmax
hits, is the same for all inputs near by: its derivative is zero, whatever the program.
"""

from __future__ import annotations

from collections.abc import Iterable

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.flows import is_inexact
from jaxresid.inspector.jaxpr.nesting import Nest, nests
from jaxresid.jax_compat.jaxpr_types import Jaxpr, Var


def smooth_outputs(jaxpr: Jaxpr, inputs: Iterable[int]) -> frozenset[int]:
    """Return the outvars that inputs reach through floats alone, by number.

    Args:
      jaxpr: the open jaxpr.
      inputs: the numbers of the invars to go out from.
    """
    reached: set[Var] = {jaxpr.invars[i] for i in inputs if is_inexact(jaxpr.invars[i])}
    for eqn in jaxpr.eqns:
        operands = {
            i for i, v in enumerate(eqn.invars) if not jax_compat.is_literal(v) and v in reached
        }
        if not operands:
            continue
        bodies = nests(eqn)
        results = set(range(len(eqn.outvars)))
        if bodies:
            results = {r for nest in bodies for r in _of_body(nest, operands)}
        reached.update(eqn.outvars[r] for r in results if is_inexact(eqn.outvars[r]))
    outvars = enumerate(jaxpr.outvars)
    return frozenset(i for i, v in outvars if not jax_compat.is_literal(v) and v in reached)


def _of_body(nest: Nest, operands: set[int]) -> set[int]:
    """Return the results that operands of an eqn reach in a body; in a loop, in any trip."""
    inputs = {i for i, operand in enumerate(nest.operands) if operand in operands}
    while True:
        outputs = smooth_outputs(nest.jaxpr, inputs)
        entering = inputs | {into for into, out in nest.carries.items() if out in outputs}
        if entering == inputs:
            break
        inputs = entering
    # A loop of no trips hands on what it begins with.
    passed = {out for into, out in nest.carries.items() if into in inputs}
    return {r for i in outputs | passed if (r := nest.results[i]) is not None}
