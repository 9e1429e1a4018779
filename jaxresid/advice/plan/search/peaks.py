"""What the peaks of variants are taken to be, once the compiler has said some of them.

How far the estimate is off is, on a logarithmic scale, a Gaussian process: a part that all variants
of the program share, and one that the more alike two variants are, the more they share. Given the
compiler's figures for some variants that tells how far it is off for the others, and how sure that
is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid.advice.plan.search.combinations import Runs, TracedVariant
from jaxresid.inspector.variants.choices import CheckpointPlace

# Estimates whose ratio is e to the power of this count as far apart as variants whose checkpoints
# have nothing in common.
_FAR = 0.5
# As a share of the checkpoints' own, what another policy at the same calls counts.
_OTHER_POLICY = 0.5
# What makes the equations solvable where two variants are the same program.
_JITTER = 1e-4


@dataclass(frozen=True, slots=True)
class Spread:
    """How far an estimate is off, as standard deviations of the logarithm of its factor.

    Attributes:
      common: The part that all variants of a program share.
      own: The part that unlike variants do not share.
    """

    common: float
    own: float


# An estimate by the compiler's own rules, and one by another's that merely guides the search.
ESTIMATE = Spread(0.1, 0.08)
GUIDE = Spread(0.4, 0.3)


class Peaks:
    """The peaks of variants: the compiler's figures where it was asked, else what they tell.

    Attributes:
      caution: How many standard deviations a peak that is not known is taken to be above what is
        expected.
    """

    def __init__(self, spread: Spread = ESTIMATE) -> None:
        self.caution = 0.0
        self._spread = spread
        self._figures: dict[TracedVariant, int] = {}
        self._solved: Any = None
        self._told: dict[TracedVariant, tuple[float, float]] = {}

    @property
    def figures(self) -> Mapping[TracedVariant, int]:
        """The compiler's figures, in bytes."""
        return self._figures

    def learn(self, tried: TracedVariant, nbytes: int) -> None:
        """Take in the compiler's figure for a variant."""
        self._figures[tried] = nbytes
        self._solved = None
        self._told.clear()

    def of(self, tried: TracedVariant) -> float:
        """Return what the peak of a variant is taken to be, in bytes."""
        if tried in self._figures:
            return float(self._figures[tried])
        if not self._figures:  # the search is by the estimate as it is
            return float(tried.peak)
        mean, deviation = self._off(tried)
        return tried.peak * math.exp(mean + self.caution * deviation)

    def chance(self, tried: TracedVariant, budget: int) -> float:
        """Return how likely a variant fits into a budget, between 0 and 1."""
        if tried in self._figures:
            return float(self._figures[tried] <= budget)
        mean, deviation = self._off(tried)
        above = math.log(budget / max(tried.peak, 1)) - mean
        return 0.5 * (1 + math.erf(above / (deviation * math.sqrt(2))))

    def _off(self, tried: TracedVariant) -> tuple[float, float]:
        if tried not in self._told:
            self._told[tried] = self._as_others_tell(tried)
        return self._told[tried]

    def _as_others_tell(self, tried: TracedVariant) -> tuple[float, float]:
        import numpy as np

        variance = self._spread.common**2 + self._spread.own**2
        if not self._figures:
            return 0.0, math.sqrt(variance)
        if self._solved is None:
            measured = list(self._figures)
            matrix = np.array([[self._shared(a, b) for b in measured] for a in measured])
            inverse = np.linalg.inv(matrix + _JITTER * variance * np.eye(len(measured)))
            errors = [math.log(max(self._figures[k], 1) / max(k.peak, 1)) for k in measured]
            self._solved = measured, inverse, inverse @ np.array(errors)
        measured, inverse, weighed = self._solved
        shared = np.array([self._shared(tried, k) for k in measured])
        left = variance - shared @ inverse @ shared
        return float(shared @ weighed), math.sqrt(max(float(left), _JITTER * variance))

    def _shared(self, a: TracedVariant, b: TracedVariant) -> float:
        far = math.log(max(a.peak, 1) / max(b.peak, 1)) / _FAR
        unlike = _difference(a.combination, b.combination)
        return self._spread.common**2 + self._spread.own**2 * math.exp(-(far**2 + unlike**2) / 2)


def _difference(a: Mapping[CheckpointPlace, Runs], b: Mapping[CheckpointPlace, Runs]) -> float:
    """Return how differently calls are treated, from 0 to 1, over the places with checkpoints."""
    shares = []
    for place, runs in a.items():
        one, other = _treatments(runs), _treatments(b[place])
        if one == other and not any(checkpointed for checkpointed, _ in one):
            continue
        differences = [
            1.0 if x[0] != y[0] else _OTHER_POLICY * (x[1] != y[1])
            for x, y in zip(one, other, strict=True)
        ]
        shares.append(sum(differences) / max(len(differences), 1))
    return sum(shares) / len(shares) if shares else 0.0


def _treatments(runs: Runs) -> Sequence[tuple[bool, tuple[str | None, tuple[int, ...]]]]:
    return [
        (option.choice is not None, (option.policy, option.segments))
        for option, count in runs
        for _ in range(count)
    ]
