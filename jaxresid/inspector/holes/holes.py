"""A program as what it differentiates, its holes, and the program around these.

A loss is one hole, and nothing is around it. A program takes its gradients itself: it is traced
with these left out, each known by the jaxpr that it differentiates, which still has its
checkpoints. Of both the program is had with something else in a hole: that is differentiated, and
put where the gradient was.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from jaxresid.inspector.holes.apart import Loss
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.memory.peak import OpSources
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.residuals.offloading import (
    KeptResidual,
)
from jaxresid.inspector.trace.function import Trace
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.inspector.trace.traced import Traced
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var
from jaxresid.results import Cost, Location, Phases, Residual, Target

T = TypeVar("T", bound=Traced)
# Puts a function that traces into a context.
Around = Callable[[Callable[[], Any]], Callable[[], Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Hole:
    """What one gradient of a program is of.

    Attributes:
      number: its number among the gradients of the program.
      level: the level of its jaxpr.
      differentiated: the inputs of its jaxpr that the gradient is taken of.
      trips: how often it runs in the program.
      loops: the loop eqns of the program around it, outermost first.
    """

    number: int
    level: Level
    differentiated: tuple[Var, ...]
    trips: int = 1
    loops: tuple[Eqn, ...] = ()

    @property
    def jaxpr(self) -> Jaxpr:
        """The open jaxpr that is differentiated, which shows the checkpoints."""
        return self.level.jaxpr


class Holes(ABC, Generic[T]):
    """What a program differentiates, and the program with something else in its place.

    Attributes:
      traced: the trace of the program as it is.
    """

    traced: T

    @property
    @abstractmethod
    def levels(self) -> Levels:
        """The descent into the jaxprs of the holes."""

    @property
    @abstractmethod
    def holes(self) -> tuple[Hole, ...]:
        """The holes, in program order.

        Raises:
          JaxresidError: they cannot be told from the rest of the program.
        """

    @abstractmethod
    def trace(self, changed: Mapping[int, Jaxpr]) -> T:
        """Return the trace of the program with other open jaxprs in holes; no user code runs.

        Args:
          changed: the others by the number of the hole, of the same inputs and outputs.

        Raises:
          Exception: JAX cannot differentiate one of them.
        """

    @abstractmethod
    def again(self) -> Holes[T]:
        """Return the holes of the program, traced again.

        Raises:
          Exception: whatever the program raises.
        """

    @abstractmethod
    def traced_with(self, around: Around) -> T:
        """Return the trace of the program as it is, of holes that `again` made in a context.

        Args:
          around: puts what is traced later into the context as well.
        """

    @property
    @abstractmethod
    def passes(self) -> tuple[Jaxpr, ...]:
        """The open jaxprs that hold the passes; the last one holds all backward passes."""

    @abstractmethod
    def program(self, traced: T) -> Program:
        """Return the whole program of a trace."""

    @abstractmethod
    def kept_nbytes(self, traced: T, program: Program | None = None) -> tuple[int, int]:
        """Return the bytes of computed residuals of a trace in device and in host memory."""

    @abstractmethod
    def residuals(self, traced: T, program: Program | None = None) -> tuple[Residual, ...]:
        """Return the residuals of a trace."""

    @abstractmethod
    def kept(self, traced: T, program: Program) -> tuple[KeptResidual, ...]:
        """Return the computed residuals of a trace."""

    @abstractmethod
    def phases(self, traced: T) -> Phases:
        """Return the cost of the passes of a trace, recomputation as its tags have it."""

    @abstractmethod
    def cost(self, traced: T) -> Cost:
        """Return what a trace costs."""

    def phases_by_tags(self, program: Program) -> Phases:
        """Return the cost of the passes, where what it costs without checkpoints is not known."""
        return self.phases(self.traced)

    @abstractmethod
    def spliced(self, written: Program) -> tuple[Program, OpSources]:
        """Return the whole program, of the eqns that the holes have, and the places of its ops.

        Args:
          written: the whole program as it was traced.
        """

    @property
    def alone(self) -> Trace | None:
        """The trace of a loss that nothing is around; None of a program."""
        return None

    @abstractmethod
    def function_of(self, hole: Hole, name: str) -> tuple[str, Location | None] | None:
        """Return the function that a hole is of, and where it is defined.

        None where it is none of the user's that a checkpoint could be put around.

        Args:
          hole: the hole.
          name: the name of the program.
        """

    @abstractmethod
    def losses(self, changed: Mapping[int, Jaxpr]) -> tuple[Loss, ...]:
        """Return what the program differentiates, with other open jaxprs in holes."""

    @abstractmethod
    def of(self, traced: T) -> Holes[T]:
        """Return the holes of another trace of the program."""

    @abstractmethod
    def with_leaves(self, leaves: Sequence[Any]) -> Holes[T]:
        """Return the holes of the program, traced with other leaves in the place of its arguments'.

        Args:
          leaves: as many as `traced.arguments` has.

        Raises:
          Exception: whatever the program raises while JAX traces it.
        """

    def as_step(self, traced: T) -> StepTrace | None:
        """Return a trace as that of a program as it is; None of a loss."""
        return None

    @abstractmethod
    def target(self, name: str) -> Target:
        """Return the target of a report: what is differentiated, or which gradients it takes.

        Args:
          name: the name of the program.
        """
