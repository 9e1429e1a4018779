"""Group the iterations of a Python loop, so that each group may be one checkpoint.

A loop of L iterations in groups of k has L // k of them; what is left over follows as it is.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from jaxresid import jax_compat
from jaxresid.inspector.program.avals import aval_of
from jaxresid.inspector.variants.choices import Choice
from jaxresid.jax_compat.jaxpr_types import Jaxpr, Var

# Eqns of a jaxpr, [start, stop), and the checkpoint to put around them.
Stretched = tuple[int, int, Choice]


def groups_of(bounds: Sequence[tuple[int, int]], choice: Choice) -> Iterator[Stretched]:
    """Yield the groups of iterations, each with the checkpoint around it.

    Args:
      bounds: the first eqn of each iteration, and that after its last.
      choice: how many iterations a group has, and what its checkpoint saves.
    """
    (size,) = choice.segments
    around = dataclasses.replace(choice, segments=())
    for first in range(0, len(bounds) - size + 1, size):
        yield bounds[first][0], bounds[first + size - 1][1], around


def carried_nbytes(jaxpr: Jaxpr, bounds: Sequence[tuple[int, int]]) -> int:
    """Return the most bytes that one iteration hands to those after it.

    Args:
      jaxpr: the open jaxpr with the iterations.
      bounds: as for `groups_of`.
    """
    made_in = {
        v: number
        for number, (start, stop) in enumerate(bounds)
        for eqn in jaxpr.eqns[start:stop]
        for v in eqn.outvars
    }
    handed: dict[int, set[Var]] = {}
    for number, (start, stop) in enumerate(bounds):
        for v in itertools.chain.from_iterable(eqn.invars for eqn in jaxpr.eqns[start:stop]):
            if not jax_compat.is_literal(v) and made_in.get(v, number) < number:
                handed.setdefault(made_in[v], set()).add(v)
    return max((sum(aval_of(v).nbytes for v in each) for each in handed.values()), default=0)
