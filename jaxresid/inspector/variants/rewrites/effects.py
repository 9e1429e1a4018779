"""Rewrite what is differentiated, differentiate it again, and tell what the program then takes."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from jaxresid import jax_compat
from jaxresid.base.errors import RetraceError
from jaxresid.inspector.few_layers import can_leave_out_layers, few_layers, whole_figures
from jaxresid.inspector.holes.holes import Holes
from jaxresid.inspector.jaxpr.alike.repeats import shortened
from jaxresid.inspector.jaxpr.alike.shared_layers import with_shared_layers
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.trace.retracing import retracing
from jaxresid.inspector.trace.traced import Traced
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import Cost

_log = logging.getLogger(__name__)
_REWRITE = "a rewrite"


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a program.

    Attributes:
      peak_nbytes: its estimated peak.
      kept_nbytes: what the backward pass keeps in device memory.
      cost: the cost of its passes.
    """

    peak_nbytes: int
    kept_nbytes: int
    cost: Cost


def figures_of(holes: Holes[Any], made: Traced, program: Program, profile: Profile) -> Figures:
    """Return the figures of a variant of a program.

    Args:
      holes: the holes of the program.
      made: the trace of the variant.
      program: the program of the variant.
      profile: the profile of the compiler.
    """
    peak = peak_nbytes(lower(program, profile))
    kept, _ = holes.kept_nbytes(made, program)
    return Figures(peak, kept, holes.cost(made))


class Rewrites:
    """What is differentiated in a program, and the program with one of these rewritten.

    Attributes:
      jaxprs: the open jaxprs that are differentiated; that of all of a program without a gradient.
      are_differentiated: whether they are.

    Args:
      holes: what the program differentiates.
      profile: the profile of the compiler.

    Raises:
      RetraceError: that cannot be told from the rest of the program.
    """

    are_differentiated: ClassVar[bool] = True

    def __init__(self, holes: Holes[Any], profile: Profile) -> None:
        self._holes, self._profile = holes, profile
        self._numbers = [hole.number for hole in holes.holes]
        self.jaxprs: tuple[Jaxpr, ...] = tuple(hole.jaxpr for hole in holes.holes)

    def cost(self) -> Cost:
        """Return the cost of the program's passes as it is."""
        return self._holes.cost(self._holes.traced)

    def figures(self, number: int, jaxpr: Jaxpr) -> Figures | None:
        """Return the figures with another jaxpr in the place of one that is differentiated.

        None where JAX cannot differentiate that: there is nothing to say of such a program.

        Args:
          number: the number of the one.
          jaxpr: the other, an open jaxpr of the same inputs and outputs.
        """
        try:
            made = self._figures(number, jaxpr)
        except RetraceError:  # which the log has
            return None
        _log.debug("a rewrite of loss %d tried: its peak is %d bytes", number, made.peak_nbytes)
        return made

    def _figures(self, number: int, jaxpr: Jaxpr) -> Figures:
        alone = self._holes.alone
        short = None
        if alone is not None and can_leave_out_layers(alone):
            short = shortened(jaxpr)
        if alone is not None and short is not None:
            with retracing(_REWRITE):
                made_of_few = few_layers(alone, short)
            few = whole_figures(made_of_few, self._profile)
            if few is not None:
                return Figures(few.peak_nbytes, few.kept_nbytes, sum(few.passes, Cost()))
        with retracing(_REWRITE):
            shared = with_shared_layers(jaxpr)
        made, program = self.program(number, shared)
        return figures_of(self._holes, made, program, self._profile)

    def program(self, number: int, jaxpr: Jaxpr) -> tuple[Traced, Program]:
        """Return the trace and the whole program with another jaxpr, as for `figures`.

        Raises:
          RetraceError: JAX cannot differentiate that.
        """
        with retracing(_REWRITE):
            made = self._holes.trace({self._numbers[number]: jaxpr})
        return made, self._holes.program(made)


class WholeRewrites(Rewrites):
    """The rewrites of a program without a gradient, of all of it."""

    are_differentiated: ClassVar[bool] = False

    def __init__(self, holes: Holes[Any], profile: Profile) -> None:
        self._holes, self._profile = holes, profile
        self.jaxprs = (holes.traced.written,)

    def _figures(self, number: int, jaxpr: Jaxpr) -> Figures:
        return figures_of(self._holes, *self.program(number, jaxpr), self._profile)

    def program(self, number: int, jaxpr: Jaxpr) -> tuple[Traced, Program]:
        """Return the trace and the whole program with another jaxpr; see `Rewrites.program`."""
        traced = self._holes.traced
        made = replace(traced, closed=jax_compat.with_jaxpr(traced.closed, jaxpr))
        return made, self._holes.program(made)
