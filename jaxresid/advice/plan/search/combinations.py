"""Combinations of options at places, and the variants that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxresid.advice.plan.search.options import Option
from jaxresid.inspector.variants.choices import CheckpointPlace, Variant

# For each place its options in program order, each for so many calls in a row.
Runs = tuple[tuple[Option, int], ...]
Combination = Mapping[CheckpointPlace, Runs]
# What is done at places; those that are not in it have no checkpoint.
Chosen = Mapping[CheckpointPlace, Option | Runs]


@dataclass(frozen=True, slots=True, eq=False)
class TracedVariant:
    """A variant that was traced."""

    combination: Combination
    variant: Variant
    cost: float

    @property
    def peak(self) -> int:
        """The estimated peak in bytes."""
        return self.variant.peak_nbytes

    @property
    def effort(self) -> int:
        """The effort of writing it, as a count.

        It counts the names that have to be written, the calls to tell apart, the levels of
        segments twice, and the checkpoints that save everything, which have to be explained: what
        those win is within what the estimate of the peak can tell.
        """
        treatments = self.combination.values()
        options = [option for runs in treatments for option, _ in runs]
        odd = sum(option.policy == "everything_saveable" for option in options)
        levels = sum(2 * len(option.segments) for option in options)
        return (
            sum(o.names for o in options) + sum(len(runs) - 1 for runs in treatments) + levels + odd
        )

    @property
    def changes(self) -> int:
        """The number of changes over all places."""
        return sum(o.changed for runs in self.combination.values() for o, _ in runs)
