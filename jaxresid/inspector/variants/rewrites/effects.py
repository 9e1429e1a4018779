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
    """The estimated peak, what is kept in device memory, and the cost of the passes."""

    peak_nbytes: int
    kept_nbytes: int
    cost: Cost


def figures_of(holes: Holes[Any], variant: Traced, program: Program, profile: Profile) -> Figures:
    """Return the figures of a variant of the program that the holes are of."""
    peak = peak_nbytes(lower(program, profile))
    kept, _ = holes.kept_nbytes(variant, program)
    return Figures(peak, kept, holes.cost(variant))


class Rewrites:
    """What is differentiated in a program, and the program with one of these rewritten.

    Attributes:
      jaxprs: the open jaxprs that are differentiated; that of all of a program without a gradient.
      are_differentiated: whether they are.

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
            figures = self._figures(number, jaxpr)
        except RetraceError:  # which the log has
            return None
        _log.debug("a rewrite of loss %d tried: its peak is %d bytes", number, figures.peak_nbytes)
        return figures

    def _figures(self, number: int, jaxpr: Jaxpr) -> Figures:
        loss = self._holes.alone
        if loss is not None and can_leave_out_layers(loss):
            short = shortened(jaxpr)
            if short is not None:
                with retracing(_REWRITE):
                    few = few_layers(loss, short)
                figures = whole_figures(few, self._profile)
                if figures is not None:
                    cost = sum(figures.passes, Cost())
                    return Figures(figures.peak_nbytes, figures.kept_nbytes, cost)
        with retracing(_REWRITE):
            shared = with_shared_layers(jaxpr)
        return figures_of(self._holes, *self.program(number, shared), self._profile)

    def program(self, number: int, jaxpr: Jaxpr) -> tuple[Traced, Program]:
        """Return the trace and the whole program with another jaxpr, as for `figures`.

        Raises:
          RetraceError: JAX cannot differentiate that.
        """
        with retracing(_REWRITE):
            variant = self._holes.trace({self._numbers[number]: jaxpr})
        return variant, self._holes.program(variant)


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
        variant = replace(traced, closed=jax_compat.with_jaxpr(traced.closed, jaxpr))
        return variant, self._holes.program(variant)
