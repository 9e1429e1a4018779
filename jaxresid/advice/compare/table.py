"""Trace the variants of a comparison, and make a row of each."""

from __future__ import annotations

import functools
from typing import Any

from jaxresid import jax_compat
from jaxresid.advice.compare.policies import (
    NONE,
    WRITTEN,
)
from jaxresid.advice.compare.policy_targets import (
    SEGMENTS,
    WORDS,
    PolicyTarget,
)
from jaxresid.advice.timing.chips import chip_of
from jaxresid.advice.timing.intervals import time_basis_of, time_interval
from jaxresid.advice.timing.roofline import Seconds, seconds
from jaxresid.base.errors import InputsError, JaxresidError, summary
from jaxresid.base.progress import Progress
from jaxresid.inspector.checkpoints.policies import answers
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.memory.compilers import has_estimate
from jaxresid.inspector.residuals.offloading import offloading
from jaxresid.inspector.subject.base import Subject
from jaxresid.inspector.variants.choices import CheckpointPlace, Choices, Variant, Variants
from jaxresid.results import ComparisonRow, Lifetimes


def place_text(place: CheckpointPlace) -> str:
    """Return a place with its calls or trips as text: `model.py:42 (layer) ×48 trips`."""
    if place.calls > 1:
        return f"{place} ×{place.calls} calls"
    return f"{place} ×{place.trips} trips" if place.trips > 1 else str(place)


class ComparisonTable:
    """The rows of a comparison as they are added, and the variants that they describe."""

    def __init__(
        self,
        subject: Subject,
        variants: Variants,
        target: PolicyTarget,
        progress: Progress,
    ) -> None:
        self.rows: list[ComparisonRow] = []
        self.variants: dict[str, Variant] = {}
        self.subject = subject
        self._factory = variants
        self._target = target
        self.chip = chip_of(subject.place)
        self._progress = progress
        self._written = variants.variant({})
        sites = [p for p in variants.places() if p.kind == "checkpoint"]
        self._plain = self._written
        if sites:
            try:
                self._plain = variants.variant({p: (None,) * p.calls for p in sites})
            except JaxresidError as e:
                raise InputsError(
                    "every policy is compared with the program without checkpoints, which JAX"
                    f" cannot differentiate: {e}"
                ) from e
        self._plain_seconds = self._seconds(self._plain)
        self.time_basis = time_basis_of(self._plain, subject.place)
        self._kept_without = functools.cache(self._plain.kept)

    def lifetimes(self) -> tuple[Lifetimes, ...]:
        others = [(label, variant) for label, variant in self.variants.items() if label != WRITTEN]
        by_row = [self.subject.lifetimes()]
        for label, variant in others:
            self._progress(f"tracing with {label}")
            by_row.append(self.subject.lifetimes_of(variant.program, variant.trace, label))
        return tuple(by_row)

    def names(self) -> tuple[str, ...]:
        """Return the checkpoint_names at the places, in program order."""
        names = dict.fromkeys(
            str(jax_compat.params(eqn)["name"])
            for place in self._target.places
            for eqn in eqns_in(self._factory.body(place))
            if jax_compat.primitive_name(eqn) == "name"
        )
        return tuple(names)

    def add(self, label: str, choices: Choices, policy: Any = None) -> None:
        """Trace a variant and add its row; what goes wrong is the row's error.

        Args:
          policy: The user's own policy in `choices`, asked about the eqns of each place's body
            first; None for another.
        """
        self._progress(f"tracing with {label}")
        try:
            if policy is not None:
                for place in self._target.places:
                    answers(policy, eqns_in(self._factory.body(place)), str(place))
            variant = self._variant(label, choices)
        except JaxresidError as e:
            self.rows.append(ComparisonRow(label, self._target.at, error=" ".join(str(e).split())))
            return
        except Exception as e:
            self.rows.append(ComparisonRow(label, self._target.at, error=summary(e)))
            return
        self.variants[label] = variant
        without_effect = not variant.host_nbytes and self._offloads(label, choices)
        self.rows.append(self._row(label, variant, without_effect))

    def _variant(self, label: str, choices: Choices) -> Variant:
        if not choices:
            return self._written
        if label == NONE and self._target.at in (*WORDS, SEGMENTS):
            return self._plain
        return self._factory.variant(choices)

    def _offloads(self, label: str, choices: Choices) -> bool:
        chosen = [
            (place, c.policy) for place, of_calls in choices.items() for c in of_calls[:1] if c
        ]
        if label == WRITTEN:
            sites = [p for p in self._factory.places() if p.kind == "checkpoint"]
            chosen = [(place, place.policy) for place in sites]
        return any(
            answers(policy, eqns_in(self._factory.body(place)), str(place)).offloads
            for place, policy in chosen
        )

    def _seconds(self, variant: Variant) -> Seconds | None:
        return None if self.chip is None else seconds(variant.lowered, self.chip)

    def _row(self, label: str, variant: Variant, without_effect: bool) -> ComparisonRow:
        # Around a gradient that the function takes a checkpoint may spare work: it adds none.
        added = max((variant.cost - self._plain.cost).flops, 0)
        estimated, plain = self._seconds(variant), self._plain_seconds
        fraction, time = None, None
        if estimated is not None and plain is not None and plain.total:
            fraction = estimated.total / plain.total - 1
            split = self.subject.mesh is not None
            time = time_interval(estimated, plain, self.time_basis, is_split=split)
        around = self.subject.interval(variant.peak_nbytes, variant.lowered.program)
        return ComparisonRow(
            label,
            self._target.at,
            kept_nbytes=variant.kept_nbytes,
            host_nbytes=variant.host_nbytes,
            peak_nbytes=variant.peak_nbytes if has_estimate(self.subject.place) else None,
            recompute_flops=added,
            recompute_fraction=added / self._plain.cost.flops if self._plain.cost.flops else 0.0,
            time_fraction=fraction,
            low_time_fraction=time.low if time else None,
            high_time_fraction=time.high if time else None,
            uncosted=variant.cost.uncosted,
            offloading=offloading(
                variant.lowered.program,
                variant.kept,
                self._kept_without,
                without_effect=without_effect,
            ),
            low_nbytes=around.low_nbytes if around else None,
            high_nbytes=around.high_nbytes if around else None,
        )
