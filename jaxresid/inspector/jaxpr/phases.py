"""Find the pass that an eqn belongs to, by the name stacks that differentiation leaves.

JAX tags what it evaluates while it differentiates: `jvp(...)` in the forward pass,
`transpose(jvp(...))` in the backward pass, and `rematted_computation` on what a checkpoint makes
again there. Tags nest, outermost first: in a loss that holds a gradient of its own, the forward
pass is tagged `jvp(jvp(...))` and `jvp(transpose(jvp(...)))`. So the outermost tag decides. The
body of a tagged eqn is that of its pass, whatever its own tags.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Final

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr
from jaxresid.results import Pass

FORWARD: Final = "forward"
RECOMPUTE: Final = "recompute"
BACKWARD: Final = "backward"
UPDATE: Final = "update"
# The one pass of a program that takes no gradient.
PROGRAM: Final = "program"
BOTH = "both"

_DERIVATIVE = re.compile(r"\b(jvp|transpose)\(")


@functools.cache
def phase_of(tags: str) -> Pass:
    """Return the pass that name stacks tell.

    `update` is what no derivative is part of: an optimizer's work, or what prepares a batch.
    So is `jax.linear_transpose`, which leaves `transpose(` without `jvp(` in it.

    Args:
      tags: the name stacks, those of enclosing eqns first.
    """
    first = _DERIVATIVE.search(tags)
    if first is None:
        return UPDATE
    if first[1] == "jvp":
        return FORWARD
    if "jvp(" not in tags[first.end() :]:
        return UPDATE
    return RECOMPUTE if "rematted_computation" in tags else BACKWARD


class Passes:
    """The passes of eqns of a jaxpr that is not itself differentiated.

    Each eqn and each body is looked at once.
    """

    def __init__(self) -> None:
        # By id; the eqn or jaxpr is kept, or its id could be reused.
        self._of: dict[int, tuple[Eqn, str]] = {}
        self._within: dict[int, tuple[Jaxpr, frozenset[str]]] = {}

    def of(self, eqn: Eqn) -> str:
        """Return the pass of an eqn.

        Returns:
          `forward`, `backward` (recomputing included), `update`, or `both` for an untagged eqn with
          both passes inside: a jitted gradient, a loop over microbatches.
        """
        known = self._of.get(id(eqn))
        if known is None:
            known = self._of[id(eqn)] = eqn, self._found(eqn)
        return known[1]

    def _own(self, eqn: Eqn) -> str | None:
        """Return the pass that the eqn's own tags tell; None where those in its bodies do."""
        phase = phase_of(jax_compat.name_stack(eqn))
        if phase == UPDATE:
            return None
        return FORWARD if phase == FORWARD else BACKWARD

    def _found(self, eqn: Eqn) -> str:
        own = self._own(eqn)
        if own is not None:
            return own
        found: frozenset[str] = frozenset()
        for nest in nests(eqn):
            found |= self.within(nest.jaxpr)
        if len(found) > 1:
            return BOTH
        return next(iter(found), UPDATE)

    def within(self, jaxpr: Jaxpr) -> frozenset[str]:
        """Return which of `forward` and `backward` occur in a jaxpr."""
        known = self._within.get(id(jaxpr))
        if known is None:
            phases = [(eqn, self.of(eqn)) for eqn in jaxpr.eqns]
            found = {phase for _, phase in phases if phase != UPDATE}
            if BOTH in found:
                found = {FORWARD, BACKWARD}
            elif len(found) > 1 and not _reads_input(jaxpr, phases):
                found = {BACKWARD}
            known = self._within[id(jaxpr)] = jaxpr, frozenset(found)
        return known[1]


def _reads_input(jaxpr: Jaxpr, phases: Sequence[tuple[Eqn, str]]) -> bool:
    """Return whether a forward eqn of a jaxpr depends on what the jaxpr is given.

    A backward pass makes constants of its own that are tagged as the forward pass is.
    """
    given = {*jaxpr.constvars, *jaxpr.invars}
    for eqn, phase in phases:
        if any(not jax_compat.is_literal(v) and v in given for v in eqn.invars):
            if phase == FORWARD:
                return True
            given.update(eqn.outvars)
    return False
