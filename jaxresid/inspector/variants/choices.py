"""Types for changing checkpoints: where one is or could be, the choice made there, the result."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from jaxresid.base.errors import JaxresidError
from jaxresid.inspector.few_layers import FewLayers
from jaxresid.inspector.memory.lowered import Lowered
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.residuals.offloading import KeptResidual
from jaxresid.inspector.trace.traced import Traced
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import Cost, Expression, Location, Residual


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointPlace:
    """Somewhere that a checkpoint is or could be.

    Attributes:
      kind: `checkpoint` for one that is there; where one could be, `scan` (around a loop's body),
        `call` (around calls of a function), `block` (around iterations of a Python loop), `whole`
        (around everything), `segments` (around stretches of a loop's iterations) or `groups` (the
        same of a Python loop).
      function: the function that is (or would be) checkpointed.
      location: where it is called; None where no line is known.
      calls: how many times the program holds it, unrolled.
      trips: how often it runs, all calls and loops together.
      policy: the policy of a checkpoint as written.
      prevent_cse: whether a checkpoint as written prevents CSE.
      can_split: whether its calls can be treated differently.
      handle: what the `Variants` that made it finds it by.
      defined: where a checkpointed function is defined; None where it is not known.
      layers: of each call the name that a framework gives to the layer called, None where it gives
        none; empty where no calls are known.
      by_framework: whether a framework makes the calls, so that none but a setting of the framework
        checkpoints them, which takes no policy.
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
    layers: tuple[str | None, ...] = ()
    by_framework: bool = False

    def __str__(self) -> str:
        if self.location is None:
            return self.function
        return f"{self.location.file}:{self.location.line} ({self.function})"


@dataclass(frozen=True, slots=True)
class Choice:
    """A checkpoint to apply.

    Attributes:
      policy: its policy; None: nothing is saveable.
      names: expressions of its body whose values are given a name first, with the names.
      segments: for a loop that is cut into checkpointed segments: how many iterations each has, by
        level, the outermost first.
      checkpoints: for a solver's loop: how many carries it keeps.
    """

    policy: Any = None
    names: tuple[tuple[Expression, str], ...] = ()
    segments: tuple[int, ...] = ()
    checkpoints: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
    """A loop that may be cut into segments.

    Attributes:
      place: the place; its choices have `segments`.
      inside: the places whose checkpoints are in, or around, the body.
      length: how many iterations each of its loops has.
      carry_nbytes: the bytes of what one iteration hands to the next.
      xs_nbytes: the bytes of what all iterations of one loop take in.
    """

    place: CheckpointPlace
    inside: tuple[CheckpointPlace, ...]
    length: int
    carry_nbytes: int
    xs_nbytes: int


# For each place what becomes of its calls, in program order: a checkpoint, or none (None). Places
# that are not there stay as they are written.
Choices = Mapping[CheckpointPlace, tuple[Choice | None, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Details:
    """A variant, eqn by eqn.

    Attributes:
      program: the program, as it is before it is lowered.
      trace: the jaxprs.
      residuals: lists its residuals.
      kept: lists those that are computed.
    """

    program: Program
    trace: Traced
    residuals: Callable[[], tuple[Residual, ...]]
    kept: Callable[[], tuple[KeptResidual, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """The function with some choices made.

    Of a function that repeats a layer the figures are worked out from a few of the layers where
    that is exact, and the details are traced when they are asked for.

    Attributes:
      kept_in: returns the bytes of computed residuals in device and in host memory, counted once.
      peak_nbytes: the estimated peak in bytes.
      cost: the cost of a value with its gradients (of a step).
      lowered: the program as the compiler runs it, perhaps with layers left out.
      details: returns the details.
      few: the trace of a few of its layers that the figures were worked out from.
    """

    kept_in: Callable[[], tuple[int, int]]
    peak_nbytes: int
    cost: Cost
    lowered: Lowered
    details: Callable[[], Details]
    few: FewLayers | None = None

    @property
    def kept_nbytes(self) -> int:
        """The bytes of computed residuals in device memory."""
        return self.kept_in()[0]

    @property
    def host_nbytes(self) -> int:
        """The bytes of computed residuals in host memory."""
        return self.kept_in()[1]

    @property
    def program(self) -> Program:
        """The program, as it is before it is lowered."""
        return self.details().program

    @property
    def trace(self) -> Traced:
        """The jaxprs."""
        return self.details().trace

    def residuals(self) -> tuple[Residual, ...]:
        """Return its residuals."""
        return self.details().residuals()

    def kept(self) -> tuple[KeptResidual, ...]:
        """Return those of its residuals that are computed."""
        return self.details().kept()


class Variants(Protocol):
    """The variants of one function or training step."""

    def places(self) -> tuple[CheckpointPlace, ...]:
        """Return everywhere that a checkpoint is or could be, in program order."""
        ...

    def nests(self) -> tuple[Nest, ...]:
        """Return the loops that may be cut into segments, in program order.

        Their places are none of `places`: a checkpoint inside, or around the body, is chosen apart.
        """
        ...

    def unchangeable(self) -> tuple[str, ...]:
        """Return the checkpoints that are no places: in every variant they stay as written."""
        ...

    def body(self, place: CheckpointPlace) -> Jaxpr:
        """Return the open jaxpr that a place's first call runs, without the checkpoints inside."""
        ...

    def overlaps(self) -> tuple[tuple[CheckpointPlace, CheckpointPlace], ...]:
        """Return the pairs of places of which the second is (partly) inside the first."""
        ...

    def variant(self, choices: Choices) -> Variant:
        """Apply choices, differentiate again, and measure.

        Raises:
          JaxresidError: saying why it cannot be done.
        """
        ...

    def trace(self, choices: Choices) -> Traced:
        """Return the trace with choices made, not measured.

        Raises:
          JaxresidError: saying why it cannot be done.
        """
        ...

    def program(self, traced: Traced) -> Program:
        """Return the whole program of a trace with choices made."""
        ...


class OtherVariants:
    """Variants that have the places of others; see `Variants`.

    Args:
      others: The others.
    """

    def __init__(self, others: Variants) -> None:
        self.places, self.nests, self.body = others.places, others.nests, others.body
        self.unchangeable, self.overlaps = others.unchangeable, others.overlaps
        self._program = others.program

    def program(self, traced: Traced) -> Program:
        """Return the whole program of a trace with choices made."""
        return self._program(traced)


def everywhere(place: CheckpointPlace, choice: Choice | None) -> tuple[Choice | None, ...]:
    """Return the same choice for every call of a place."""
    return (choice,) * place.calls


def same_places(
    wanted: Iterable[CheckpointPlace], one: Variants, other: Variants
) -> dict[CheckpointPlace, CheckpointPlace]:
    """Return for some places, and loops that may be cut, those in another trace of the function.

    Args:
      wanted: the places.
      one: the variants that they are of.
      other: the variants of the other trace.

    Raises:
      JaxresidError: the traces have different places on their lines.
    """
    known, others = (
        _by_line([*each.places(), *(nest.place for nest in each.nests())]) for each in (one, other)
    )
    found = {}
    for place in wanted:
        key = _line_of(place)
        own, same = known.get(key, []), others.get(key, [])
        if len(own) != len(same):
            raise JaxresidError("with the change there are other places")
        found[place] = same[own.index(place)]
    return found


def _by_line(places: Iterable[CheckpointPlace]) -> dict[Hashable, list[CheckpointPlace]]:
    found: dict[Hashable, list[CheckpointPlace]] = {}
    for place in places:
        found.setdefault(_line_of(place), []).append(place)
    return found


def _line_of(place: CheckpointPlace) -> Hashable:
    """Return what a place has in common with that of another trace of the function."""
    return place.kind, place.function, place.location, place.calls
