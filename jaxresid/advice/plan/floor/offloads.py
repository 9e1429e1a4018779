"""What moving a value of a checkpointed body to host memory does to the peak of a plan."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from jaxresid.advice.plan.search.combinations import TracedVariant
from jaxresid.advice.plan.search.menus import Menus
from jaxresid.advice.plan.search.options import Option
from jaxresid.advice.plan.search.search import choices
from jaxresid.base.errors import RetraceError
from jaxresid.inspector.trace.retracing import retracing
from jaxresid.inspector.variants.choices import CheckpointPlace, Variant, Variants, everywhere

# How many places are looked at, those whose bodies run most often.
_PLACES = 2


@dataclass(frozen=True, slots=True)
class Offload:
    """A value that is offloaded at a place, in place of what the plan does there.

    Attributes:
      place: The place.
      option: What is done there.
      variant: The program.
    """

    place: CheckpointPlace
    option: Option
    variant: Variant

    @property
    def text(self) -> str:
        """The change in words."""
        value = self.option.values[0]
        shown = value.name
        if value.expression is not None:
            shown = f"`{' '.join(value.expression.code.split())}`"
        return f"offload {shown} at {self.place} to host memory (--offload weighs its time)"


def best_offload(variants: Variants, menus: Menus, shown: TracedVariant) -> Offload | None:
    """Return what has the lowest peak of all that offload one value where a plan has a checkpoint.

    Nothing else is saved there. None where no such program can be traced.

    Args:
      variants: The variants of the function.
      menus: The menus of its places.
      shown: The plan's variant.
    """
    found = [*_offloads(variants, menus, shown)]
    return min(found, key=lambda each: each.variant.peak_nbytes, default=None)


def _offloads(variants: Variants, menus: Menus, shown: TracedVariant) -> Iterator[Offload]:
    active = {p for p, runs in shown.combination.items() if any(o.choice for o, _ in runs)}
    overlaps = set(variants.overlaps())
    around = {p for nest in variants.nests() if nest.place in active for p in nest.inside}

    def is_free(place: CheckpointPlace) -> bool:
        """Return whether no other place that overlaps with it has a checkpoint."""
        return not any((place, p) in overlaps or (p, place) in overlaps for p in active - {place})

    chosen = [p for p in menus.places if p.kind != "whole" and (p in active or p in around)]
    for place in sorted(chosen, key=lambda p: -p.trips)[:_PLACES]:
        nests = {nest.place for nest in variants.nests() if place in nest.inside}
        if not is_free(place) and not nests & active:
            continue
        others = {p: runs for p, runs in shown.combination.items() if p not in {place, *nests}}
        for option in menus.offloads(place):
            # An older JAX has no host memory for a CPU.
            with contextlib.suppress(RetraceError):
                with retracing(f"an offload at {place}"):
                    made = variants.variant(
                        {**choices(others), place: everywhere(place, option.choice)}
                    )
                yield Offload(place, option, made)
