"""Search all configurations for the best plan, tracing as few of them as that takes.

Of configurations with equal microbatches the checkpoints cost the same per item, and a peak grows
with the number of microbatches: what is best with some, and still fits with more, is best with
more. And where nothing fits, nothing fits with larger microbatches, or more of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jaxresid.advice.plan.joint.configurations import Configurations
from jaxresid.advice.plan.plan import Planning, Terms
from jaxresid.advice.plan.search.combinations import TracedVariant
from jaxresid.base.errors import JaxresidError
from jaxresid.base.progress import Stage
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.subject.base import gc_paused
from jaxresid.results import Configuration

# Configurations that differ by less than this share are as good.
AS_GOOD = 5e-4


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """A configuration with the best that was found for it.

    Attributes:
      configuration: The configuration.
      planning: The search of it.
      best: The best that fits; None where nothing does.
      lowest: What has the lowest peak of all that was tried.
      rows: The items of one microbatch.
      items: The items of the whole batch; None where that is not known.
      is_searched: Whether all was searched that may be best; else it follows from another.
    """

    configuration: Configuration
    planning: Planning
    best: TracedVariant | None
    lowest: TracedVariant | None
    rows: int
    items: int | None
    is_searched: bool

    def seconds_per_item(self, tried: TracedVariant) -> float | None:
        """Return the estimated seconds of an item of the batch; None where it is not known."""
        seconds = self.planning.objective.seconds(tried.variant)
        return None if seconds is None else seconds / (self.items or 1)

    def shown_score(self) -> tuple[float, float]:
        """Return the score of the plan that is shown of it."""
        assert self.planning.decided is not None
        return self.score(self.planning.decided)

    def score(self, tried: TracedVariant) -> tuple[float, float]:
        """Return what is minimised, and what decides where that is equal."""
        each = self.seconds_per_item(tried) or 0.0
        match self.planning.aim:
            case "memory":
                return float(tried.peak), each
            case "recompute":
                return self.planning.objective.recompute_fraction(tried.variant), each
        return each, float(tried.peak)


@dataclass(slots=True)
class JointSearch:
    """The search of all configurations of a grid.

    Args:
      configurations: The configurations.
      terms: What the plan has to keep to.
      offload: Whether values may be moved to host memory.
      progress: Called with a text that says what is being done.

    Attributes:
      solved: What was found, in the order of the search.
      skipped: The configurations that were not traced, as something smaller does not fit, each with
        the reason.
      failed: The configurations that cannot be traced, each with the error.
      pending: The search that was interrupted.
    """

    configurations: Configurations
    terms: Terms
    offload: bool
    progress: Callable[[str], None]
    solved: list[Solved] = field(default_factory=list)
    skipped: list[tuple[Configuration, str]] = field(default_factory=list)
    failed: list[tuple[Configuration, JaxresidError]] = field(default_factory=list)
    pending: tuple[Configuration, Planning] | None = None

    def run(self) -> None:
        """Search all configurations.

        Raises:
          JaxresidError: None of them can be traced.
        """
        is_single = self.configurations.grid.is_single
        for configuration in self.configurations.each():
            smaller = self._too_big(configuration)
            if smaller is not None:
                self.skipped.append((configuration, smaller))
                continue
            try:
                self.solve(configuration)
            except JaxresidError as e:
                if is_single:
                    raise
                self.failed.append((configuration, e))
        if not self.solved:
            raise self.failed[0][1]

    def solve(self, configuration: Configuration) -> Solved:
        """Return a configuration solved, and keep it in `solved`.

        Raises:
          JaxresidError: it cannot be traced.
        """
        is_single, say = self.configurations.grid.is_single, self.progress
        told = "" if is_single else f"{configuration}: "
        say(f"{told}tracing" if is_single else Stage(f"{told}tracing"))
        found = self.configurations.subject(configuration)
        say(Stage(f"{told}looking for a plan"))
        with gc_paused(), found.tracing():
            planning = Planning(
                found,
                self.terms.budget_nbytes,
                self.terms.chip,
                self.offload,
                lambda text: say(type(text)(told + text)),
                self.terms.aim,
            )
            self.pending = configuration, planning
            self.solved.append(self._solved(configuration, planning))
            self.pending = None
        return self.solved[-1]

    def ranked(self) -> list[Solved]:
        """Return what fits, the best first; of those as good that with the fewest microbatches."""
        left = [s for s in self.solved if s.best is not None]
        ranked = []
        while left:
            least = min(self._score(s)[0] for s in left)
            near = [s for s in left if self._score(s)[0] <= least * (1 + AS_GOOD)]
            if self.terms.aim == "recompute":
                fast = min(self._score(s)[1] for s in near)
                near = [s for s in near if self._score(s)[1] <= fast * (1 + AS_GOOD)]
            first = min(near, key=lambda s: (s.configuration.microbatches, -(s.items or 0)))
            left.remove(first)
            ranked.append(first)
        return ranked

    def lowest(self) -> Solved:
        """Return the configuration with the lowest peak."""
        return min(self.solved, key=lambda s: s.lowest.peak if s.lowest else float("inf"))

    def _score(self, solved: Solved) -> tuple[float, float]:
        assert solved.best is not None
        return solved.score(solved.best)

    def _solved(self, configuration: Configuration, planning: Planning) -> Solved:
        """Return a configuration solved: from one with as large microbatches, or by a search."""
        rows, items = (
            self.configurations.rows(configuration),
            self.configurations.items(configuration),
        )
        search = planning.search
        for other in reversed(self.solved):
            is_alike = other.rows == rows and other.configuration.mesh == configuration.mesh
            if not is_alike or other.best is None:
                continue
            tried = search.trial(other.best.combination)
            if tried is not None and tried.peak <= self.terms.budget_nbytes:
                return Solved(configuration, planning, tried, tried, rows, items, False)
            break
        if self.configurations.grid.is_single:
            return Solved(configuration, planning, None, None, rows, items, True)
        search.run()
        best, lowest = search.best(), search.lowest()
        if self.terms.aim == "memory" and lowest and lowest.peak <= self.terms.budget_nbytes:
            best = lowest
        return Solved(configuration, planning, best, lowest, rows, items, True)

    def _too_big(self, configuration: Configuration) -> str | None:
        """Return why a configuration need not be traced; None where it has to be."""
        rows = self.configurations.rows(configuration)
        for other in self.solved:
            if (
                other.is_searched
                and other.best is None
                and other.lowest is not None
                and other.configuration.mesh == configuration.mesh
                and other.rows <= rows
                and other.configuration.microbatches <= configuration.microbatches
            ):
                least = format_bytes(other.lowest.peak)
                return f"not traced: {other.configuration} takes {least} at least"
        return None
