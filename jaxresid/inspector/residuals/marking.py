"""Mark the residuals of a jaxpr: duplicates, free ones, outputs, what is in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.program.avals import aval_on
from jaxresid.inspector.program.ops import Value
from jaxresid.inspector.residuals.numbering import FreeValues
from jaxresid.inspector.residuals.provenance import Provenance
from jaxresid.jax_compat.jaxpr_types import Var
from jaxresid.results import Computed, Consumer, Mark, Residual


class Marking:
    """The marks of residuals that cross from one pass to the other at one level, in order.

    Args:
      level: the level.
      numbers: numbers its variables; equal values have one number.
      outputs: the variables that are returned.
      free: what is made of constants alone.
      values: on a mesh, the values of variables.
    """

    def __init__(
        self,
        level: Level,
        numbers: Mapping[Var, int],
        outputs: Iterable[Var],
        free: FreeValues,
        values: Mapping[Var, Value],
    ) -> None:
        self._level = level
        self._numbers = numbers
        self._outputs = {numbers[v] for v in outputs if not jax_compat.is_literal(v)}
        self._free = free
        self._values = values
        self._seen: set[int] = set()

    def residual(
        self, var: Var, made: Provenance, read: tuple[Consumer, ...], *, is_unread: bool = False
    ) -> Residual:
        """Return a variable as a residual, marked.

        Args:
          var: the variable.
          made: where it comes from.
          read: the backward eqns that read it.
          is_unread: whether nothing depends on it.
        """
        aval = aval_on(self._values, var)
        if made.memory == "host":
            aval = replace(aval, memory="host")
        marks = list(made.marks)
        if isinstance(made.origin, Computed):
            number = self._numbers[var]
            marks += [Mark.PRIMAL_OUTPUT] * (number in self._outputs)
            marks += [Mark.DUPLICATE] * (number in self._seen)
            marks += [Mark.FREE] * self._free.holds(self._level, var, made.origin.primitive)
            marks += [Mark.OFFLOADED] * (aval.memory == "host")
            self._seen.add(number)
        marks += [Mark.UNREAD] * is_unread
        return Residual(aval, made.origin, made.trips, read, tuple(marks))
