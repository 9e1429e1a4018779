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
    """A variant, eqn by eqn, before it is lowered."""

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
      lowered: the program as the compiler runs it, perhaps with layers left out.
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
        return self.kept_in()[0]

    @property
    def host_nbytes(self) -> int:
        return self.kept_in()[1]

    @property
    def program(self) -> Program:
        return self.details().program

    @property
    def trace(self) -> Traced:
        return self.details().trace

    def residuals(self) -> tuple[Residual, ...]:
        return self.details().residuals()

    def kept(self) -> tuple[KeptResidual, ...]:
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
    """Variants that have the places of others; see `Variants`."""

    def __init__(self, others: Variants) -> None:
        self._others = others

    def places(self) -> tuple[CheckpointPlace, ...]:
        return self._others.places()

    def nests(self) -> tuple[Nest, ...]:
        return self._others.nests()

    def unchangeable(self) -> tuple[str, ...]:
        return self._others.unchangeable()

    def body(self, place: CheckpointPlace) -> Jaxpr:
        return self._others.body(place)

    def overlaps(self) -> tuple[tuple[CheckpointPlace, CheckpointPlace], ...]:
        return self._others.overlaps()

    def program(self, traced: Traced) -> Program:
        return self._others.program(traced)


def everywhere(place: CheckpointPlace, choice: Choice | None) -> tuple[Choice | None, ...]:
    return (choice,) * place.calls


def same_places(
    wanted: Iterable[CheckpointPlace], one: Variants, other: Variants
) -> dict[CheckpointPlace, CheckpointPlace]:
    """Return for some places, and loops that may be cut, those in another trace of the function.

    Raises:
      JaxresidError: the traces have different places on their lines.
    """
    places, others = (
        _by_line([*variants.places(), *(nest.place for nest in variants.nests())])
        for variants in (one, other)
    )
    pairs = {}
    for place in wanted:
        key = _line_of(place)
        own, same = places.get(key, []), others.get(key, [])
        if len(own) != len(same):
            raise JaxresidError("with the change there are other places")
        pairs[place] = same[own.index(place)]
    return pairs


def _by_line(places: Iterable[CheckpointPlace]) -> dict[Hashable, list[CheckpointPlace]]:
    groups: dict[Hashable, list[CheckpointPlace]] = {}
    for place in places:
        groups.setdefault(_line_of(place), []).append(place)
    return groups


def _line_of(place: CheckpointPlace) -> Hashable:
    return place.kind, place.function, place.location, place.calls
