"""What the parts of a search ask of it: to trace combinations, and what was found so far."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

from jaxresid.advice.plan.search.combinations import Chosen, TracedVariant
from jaxresid.advice.plan.search.options import Menu
from jaxresid.inspector.variants.choices import CheckpointPlace


class Trials(Protocol):
    """The search that exchanges, splits and segments are parts of; see `search.Search`."""

    menus: tuple[Menu, ...]
    tried: list[TracedVariant]
    budget: int
    slack: float
    may_pay: bool

    def best(self, excluding: Container[TracedVariant] = ()) -> TracedVariant | None:
        """Return the cheapest variant that fits, or None."""
        ...

    def lowest(self, excluding: Container[TracedVariant] = ()) -> TracedVariant | None:
        """Return the variant with the lowest peak."""
        ...

    def peak(self, tried: TracedVariant) -> float:
        """Return what the peak of a variant is taken to be, in bytes."""
        ...

    def fits(self, tried: TracedVariant | None) -> bool:
        """Return whether a variant, if it was traced, fits into the budget."""
        ...

    def trial(self, chosen: Chosen) -> TracedVariant | None:
        """Trace a combination and return the result; None if it fails."""
        ...

    def known(self, chosen: Chosen) -> TracedVariant | None:
        """Return a combination that was traced; None if it was not, or failed."""
        ...

    def others(self, place: CheckpointPlace, tried: TracedVariant) -> Chosen:
        """Return what was done at the places that do not overlap with one."""
        ...

    def overlap(self, one: CheckpointPlace, other: CheckpointPlace) -> bool:
        """Return whether one of two places is (partly) inside the other."""
        ...
