"""What a function's trace and a training step's have in common."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxresid.inspector.call.arguments import Arguments
from jaxresid.inspector.call.sharding import Sharding
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.while_loops.trips import WhileTrips
from jaxresid.inspector.trace.taken_gradients import TakenGradient, taken_gradients
from jaxresid.jax_compat.jaxpr_types import Jaxpr


@dataclass(frozen=True, slots=True)
class Lowerable:
    """What users run, ready to be lowered.

    Attributes:
      run: the function of its operands.
      operands: ShapeDtypeStructs or numbers to lower it with.
      outputs: the sharding of each output; None: the compiler's choice.
      donated: the indices of the operands that it gives away.
    """

    run: Callable[[Sequence[Any]], Sequence[Any]]
    operands: Sequence[Any]
    outputs: Sequence[Any]
    donated: Sequence[int] = ()


@dataclass(frozen=True)
class Traced(ABC):
    """What JAX made of a function or of a training step.

    Attributes:
      arguments: the arguments that it was traced with.
      frames: reads the tracebacks of its eqns; one for all traces of a subject, since it caches by
        traceback.
    """

    arguments: Arguments
    frames: Frames

    holds_backward: ClassVar[bool]
    """Whether `written` holds the backward pass as well."""

    @functools.cached_property
    def levels(self) -> Levels:
        """The descent into its jaxprs.

        Each trace has its own, which lives as long as the jaxprs do: it caches by the ids of eqns.
        """
        return Levels(self.frames)

    def _paths_of(self, jaxpr: Jaxpr) -> tuple[str | None, ...]:
        """Return the path of each invar of a jaxpr; None for one that is no argument."""
        paths = [self.arguments.paths[i] for i in self.arguments.dynamic]
        return (*[None] * (len(jaxpr.invars) - len(paths)), *paths)

    @property
    @abstractmethod
    def tops(self) -> tuple[Level, ...]:
        """The top levels of its jaxprs, with the paths of their invars and the primal jaxpr."""

    @property
    @abstractmethod
    def trips(self) -> WhileTrips:
        """The trips of the while loops in its jaxprs."""

    @property
    @abstractmethod
    def written(self) -> Jaxpr:
        """The open jaxpr that shows its checkpoints."""

    @property
    @abstractmethod
    def first(self) -> Jaxpr:
        """The open jaxpr that its arguments go into."""

    @property
    @abstractmethod
    def holds_gradient(self) -> bool:
        """Whether it takes a gradient itself."""

    @functools.cached_property
    def taken_gradients(self) -> tuple[TakenGradient, ...]:
        """The gradients that it takes itself, in program order."""
        if not self.holds_gradient:  # `written` may need another trace
            return ()
        return taken_gradients(self.written, self.levels, self.trips)

    @property
    @abstractmethod
    def has_checkpoints(self) -> bool:
        """Whether it may hold checkpoints."""

    @property
    @abstractmethod
    def sharding(self) -> Sharding | None:
        """The split over the arguments' mesh; None without one."""

    @property
    @abstractmethod
    def parameters(self) -> tuple[str, ...]:
        """What the parameters of the lowered program are called."""

    @abstractmethod
    def runnable(self) -> Callable[[Sequence[Any]], list[Any]]:
        """Return what it computes, as a function of its dynamic leaves in order.

        For a function, that is its outputs and then the gradients for cotangents of one; for a
        training step, its outputs. No user code runs again.
        """

    @abstractmethod
    def lowerable(self) -> Lowerable:
        """Return what users run: the function with its gradients, or the training step."""

    def tracing_in(self, around: Callable[[Callable[[], Any]], Callable[[], Any]]) -> Traced:
        """Return the trace, with what of it is traced later traced in a context.

        Args:
          around: puts a function into the context.
        """
        return self

    @abstractmethod
    def run_again(self, fun: Callable[..., Any]) -> None:
        """Run the function once more while JAX traces it, with the same arguments.

        Raises:
          Exception: whatever the function raises.
        """
