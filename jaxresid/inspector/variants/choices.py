"""What can be done about checkpoints: where one stands or could stand, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from jaxresid.inspector.program.build import Program
from jaxresid.model import Cost, Expression, Location


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Somewhere a checkpoint stands (`checkpoint`) or could stand: around a loop's body (`scan`),
    calls of a function (`call`), or everything (`whole`).

    Attributes:
      function: what is (or would be) checkpointed.
      location: where it is called; None where no line is known.
      calls: how many times the program holds it, unrolled.
      trips: how often it runs, all calls and loops together.
      policy, prevent_cse: of a checkpoint as written.
      can_split: whether its calls can be treated differently.
      handle: what the `Variants` that made it finds it by.
      defined: where a checkpointed function is defined; None where it is not known.
    """

    kind: str
    function: str
    location: Location | None
    calls: int
    trips: int
    policy: Any = None
    prevent_cse: bool = True
    can_split: bool = False
    handle: Any = None
    defined: Location | None = None

    def __str__(self) -> str:
        if self.location is None:
            return self.function
        return f"{self.location.file}:{self.location.line} ({self.function})"


@dataclass(frozen=True, slots=True)
class Choice:
    """A checkpoint: its policy (None: nothing is saveable), and expressions of its body whose
    values are given a name first.
    """

    policy: Any = None
    names: tuple[tuple[Expression, str], ...] = ()


# For each place what becomes of its calls, in program order: a checkpoint, or none (None). Places
# that are not there stay as they are written.
Choices = Mapping[Place, tuple[Choice | None, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """The function with some choices made.

    Attributes:
      kept_nbytes, host_nbytes: computed residuals in device and in host memory.
      peak_nbytes: the estimate.
      cost: of a value with its gradients (of a step).
      program: what the peak was estimated on.
      trace: the jaxprs, a `Trace` or a `StepTrace`.
    """

    kept_nbytes: int
    host_nbytes: int
    peak_nbytes: int
    cost: Cost
    program: Program
    trace: Any


class Variants(Protocol):
    """The variants of one function or training step."""

    def places(self) -> tuple[Place, ...]:
        """Everywhere a checkpoint stands or could stand, in program order."""
        ...

    def left(self) -> tuple[str, ...]:
        """The checkpoints that are no places: they stay as they are written in every variant."""
        ...

    def body(self, place: Place) -> Any:
        """The open jaxpr that the first call of a place runs, without the checkpoints inside."""
        ...

    def overlaps(self) -> tuple[tuple[Place, Place], ...]:
        """Places of which the second is (partly) inside the first."""
        ...

    def variant(self, choices: Choices) -> Variant:
        """Applies choices, differentiates again, and measures.

        Raises:
          JaxresidError: saying why it cannot be done.
        """
        ...


def everywhere(place: Place, choice: Choice | None) -> tuple[Choice | None, ...]:
    """The same for every call of a place."""
    return (choice,) * place.calls
