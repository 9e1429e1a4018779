"""The floor of a plan: what no checkpoint can remove, and what would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as OneOf

from jaxresid.base.text.short_repr import Shown
from jaxresid.results.interval import Answer

FloorKind = OneOf[
    "parameters",
    "optimizer-state",
    "frozen-weights",
    "batch",
    "state",
    "differentiated",
    "argument",
    "constant",
    "gradient",
    "updated",
    "output",
]
ReliefKind = OneOf[
    "donation",
    "rewrite",
    "solver",
    "microbatches",
    "batch",
    "offload",
    "host-state",
    "dtype",
    "sharding",
]


@dataclass(frozen=True, slots=True, repr=False)
class FloorPart(Shown):
    """Some of what no checkpoint can remove.

    Attributes:
      kind: in a training step `parameters`, `optimizer-state`, `frozen-weights` and `batch`; in a
        program without a gradient `state` for arguments that it returns updated; in a function its
        `differentiated` arguments; `argument` for others, `constant` for arrays that it closes
        over; `gradient`; `updated` for the next values of arguments that are not donated, which
        are there beside them; `output` for what else is returned.
      nbytes: the bytes, on a mesh those of one device.
      arguments: the arguments that it is in, or belongs to, by name.
      until_update: whether it is there from the backward pass to the update alone, as gradients
        are in a training step; all else is there from beginning to end.
    """

    kind: FloorKind
    nbytes: int
    arguments: tuple[str, ...] = ()
    until_update: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Relief(Shown):
    """A change, no checkpoint, that lowers the peak of the plan.

    The program was traced again, or split again, with the change and with the plan's checkpoints;
    what a finding proposes takes the place of the plan.

    Attributes:
      kind: what is changed.
      change: the change in words, with the names of the arguments.
      peak_nbytes: the estimated peak with the change, or what XLA needs with it.
      saved_nbytes: how much lower that is than the same figure of the plan; negative where it is
        higher and the change is the better choice all the same.
      answer: whether it fits the budget then.
      confirmed: whether these are XLA's figures; an optimizer's state in host memory is shown with
        no other where XLA is asked, and fewer checkpoints in a solver's loop with these where it
        has them.
    """

    kind: ReliefKind
    change: str
    peak_nbytes: int
    saved_nbytes: int
    answer: Answer
    confirmed: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Floor(Shown):
    """What no checkpoint can remove, and what would lower it.

    Attributes:
      parts: what it is made of, biggest first.
      reliefs: what lowers the peak of the plan by more than 1 %, the cheapest first: donation,
        which costs nothing, what findings propose, fewer checkpoints in a solver's loop, smaller
        batches, values and then the optimizer's state in host memory, narrower dtypes, more
        devices. Where the plan fits and
        recomputes nothing only donation is looked for.
      without: what a training step holds and this function does not, in words.
      left_out: the changes that nothing can be said of here, each with the reason, in words.
    """

    parts: tuple[FloorPart, ...] = ()
    reliefs: tuple[Relief, ...] = ()
    without: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """The bytes of all parts: no choice of checkpoints has a lower peak, by the estimate."""
        return sum(part.nbytes for part in self.parts)

    @property
    def held_nbytes(self) -> int:
        """The bytes that are there from beginning to end: arguments, and buffers of outputs."""
        return sum(part.nbytes for part in self.parts if not part.until_update)


NO_FLOOR = Floor()


@dataclass(frozen=True, slots=True, repr=False)
class TriedPlace(Shown):
    """What a plan tried at one place.

    Attributes:
      place: the place: `model.py:49 (layer)`.
      policies: JAX's policies that were tried there as they are, as written; `no policy` for a
        checkpoint without one.
      selections: how many selections of values to save or offload by name were tried there.
      known_selections: how many there are that no other beats in both bytes and cost; more than
        were tried where the search left some out. None where they were not worked out.
      segments: how many ways to cut the loop there into segments were tried.
      checkpoints: with which numbers of checkpoints a solver's loop there was tried.
    """

    place: str
    policies: tuple[str, ...]
    selections: int = 0
    known_selections: int | None = None
    segments: int = 0
    checkpoints: tuple[int, ...] = ()
