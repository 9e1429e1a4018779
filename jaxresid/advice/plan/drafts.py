"""Write plans as edits of the source, and find the first whose code holds what it promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.advice.plan.search.combinations import Runs, TracedVariant
from jaxresid.advice.plan.source.libraries import library_of
from jaxresid.advice.plan.source.observed_calls import (
    ArgumentKinds,
    ObservedCalls,
    calls_of,
    observe_calls,
    target_argument_kinds,
)
from jaxresid.advice.plan.source.writing import PlanEdits, plan_edits
from jaxresid.advice.plan.verification import (
    Check,
    PlanFigures,
    UnverifiedError,
    figures,
    keeps_to,
    retrace,
)
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.subject.base import Subject
from jaxresid.inspector.variants.choices import CheckpointPlace, Variant, Variants
from jaxresid.results import PlannedPart, PlannedSite

# How many plans are written, and of these how many are traced, until one is taken.
_MOST_DRAFTS = 100
_MOST_TRACES = 5


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A plan that may be the one to return.

    Attributes:
      tried: The variant that was traced.
      sites: What the plan does at each place.
      plan_edits: The edits of the source, and what cannot be written.
      figures: The figures of its code where that was traced, else those of the variant.
      doubt: Why its code was not traced; None where it was.
      written: The code as it was traced in this process; None where it was not.
    """

    tried: TracedVariant
    sites: tuple[PlannedSite, ...]
    plan_edits: PlanEdits
    figures: PlanFigures
    doubt: str | None = None
    written: Variant | None = None


class Drafts:
    """Takes the first plan whose code, when traced, gives what is promised.

    Args:
      subject: The traced function.
      variants: The variants of it.
      places: Where plans may put checkpoints.
      plain: The variant without any checkpoint.
      check: Traces edited code; None means that the plan's code is not traced.
      progress: Called with a text that says what is being done.
    """

    def __init__(
        self,
        subject: Subject,
        variants: Variants,
        places: Sequence[CheckpointPlace],
        plain: Variant,
        check: Check | None,
        progress: Callable[[str], None],
    ) -> None:
        self._subject, self._variants, self._places = subject, variants, places
        self._plain, self._check, self._progress = plain, check, progress
        self._made: dict[TracedVariant, Draft] = {}
        self._calls: ObservedCalls | None = None
        self._traces = 0
        self._left_out: list[Draft] = []

    def first(
        self,
        ranked: Callable[[Sequence[TracedVariant]], TracedVariant | None],
        is_enough: Callable[[PlanFigures], bool],
        *,
        takes_doubted: bool = False,
    ) -> Draft | None:
        """Return the first draft by rank that holds what it promises.

        Without one, return the best, by what was found, of those that do not hold it but are good
        enough; else the first of those whose code cannot be traced; else None.

        Args:
          ranked: Returns the best variant besides those that it is given.
          is_enough: Whether figures are good enough.
          takes_doubted: Whether to return one whose code cannot be traced where it comes first.
        """
        rejected: list[TracedVariant] = []
        doubted: list[Draft] = []
        good_enough: list[Draft] = []
        most = self._traces + _MOST_TRACES
        while len(rejected) < _MOST_DRAFTS and self._traces < most:
            tried = ranked(rejected)
            if tried is None:
                break
            rejected.append(tried)
            draft = self._draft(tried)
            if self.is_doubted(draft) and not takes_doubted:
                doubted.append(draft)
            elif self.is_right(draft):
                self._left_out = doubted
                return draft
            elif is_enough(draft.figures):
                good_enough.append(draft)
        self._left_out = doubted
        if good_enough:
            return min(
                good_enough, key=lambda d: (d.figures.recompute_flops, d.figures.peak_nbytes)
            )
        return doubted[0] if doubted else None

    def is_doubted(self, draft: Draft) -> bool:
        """Return whether the code of a draft was to be traced and could not be."""
        return self._check is not None and draft.doubt is not None

    def is_right(self, draft: Draft) -> bool:
        """Return whether the code of a draft gave what the variant promises, or was not traced."""
        return keeps_to(draft.figures, figures(draft.tried.variant, self._plain))

    @property
    def wrong(self) -> list[TracedVariant]:
        """The variants whose code gives something else than they promise."""
        return [tried for tried, draft in self._made.items() if not self.is_right(draft)]

    def differing(self) -> list[Draft]:
        """Return the drafts whose code gives something else than they promise, cheapest first."""
        return sorted(
            (self._made[tried] for tried in self.wrong),
            key=lambda d: (d.figures.recompute_flops, d.figures.peak_nbytes),
        )

    def as_written(self, draft: Draft, cost: Callable[[Variant], float]) -> TracedVariant | None:
        """Return what the code of a draft gives as a variant, whose draft it is from now on.

        None where the code was not traced in this process.

        Args:
          draft: The draft.
          cost: Returns the cost of a variant.
        """
        if draft.written is None:
            return None
        tried = TracedVariant(draft.tried.combination, draft.written, cost(draft.written))
        self._made[tried] = replace(draft, tried=tried)
        return tried

    def remarks(self, decided: Draft, plain: Variant) -> Iterator[str]:
        """Yield a warning where a cheaper plan was left out for one that can be written."""
        cheaper = [d for d in self._left_out if d is not decided]
        if decided.doubt is not None or not cheaper:
            return
        first = cheaper[0]
        flops, peak = first.figures.recompute_flops, format_bytes(first.figures.peak_nbytes)
        share = flops / plain.cost.flops if plain.cost.flops else 0.0
        yield (
            f"rejected: a plan with a peak of {peak} for {share:.1%} more FLOPs, as it could not"
            f" be verified: {first.doubt}"
        )

    def _draft(self, tried: TracedVariant) -> Draft:
        """Return the draft of a variant, its code traced where it can be."""
        if tried not in self._made:
            draft = self._untraced(tried)
            if (
                draft.doubt is None
                and self._check is not None
                and any(site.changed for site in draft.sites)
            ):
                self._progress("tracing the code of the plan")
                self._traces += 1
                draft = self._traced(draft, self._check)
            self._made[tried] = draft
        return self._made[tried]

    def _untraced(self, tried: TracedVariant) -> Draft:
        sites = tuple(
            site
            for place in self._places
            if (site := _site(place, tried.combination[place], self._variants)) is not None
        )
        made = plan_edits(sites, self._subject, self._known(sites))
        promised = figures(tried.variant, self._plain)
        doubt = None
        if made.problems:
            doubt = made.problems[0]
        elif self._check is None and any(site.changed for site in sites):
            doubt = "its code was not traced"
        return Draft(tried, sites, made, promised, doubt)

    def _traced(self, draft: Draft, check: Check) -> Draft:
        try:
            written = check(draft.plan_edits.edits, draft.figures)
            return replace(draft, figures=written.figures, written=written.variant)
        except UnverifiedError as e:
            return replace(draft, doubt=f"its code cannot be traced here: {e}")

    def _known(self, sites: Sequence[PlannedSite]) -> ObservedCalls:
        """Return what is known of the calls of all places, found out once.

        Where no plan changes a call it is what the target itself is given.
        """
        is_asked = any(s.kind == "call" and s.changed for s in sites)
        if self._calls is None or (is_asked and not self._calls.seen):
            target = target_argument_kinds(self._subject.trace.arguments)
            seen: Mapping[tuple[str, int, str], ArgumentKinds] = {}
            if is_asked:
                wanted = calls_of(
                    [_unplanned_site(place) for place in self._places], self._subject.frames.cwd
                )
                seen = observe_calls(wanted, lambda: retrace(self._subject))
            self._calls = ObservedCalls(target, seen)
        return self._calls


def _unplanned_site(place: CheckpointPlace) -> PlannedSite:
    kind: Any = place.kind
    return PlannedSite(kind, place.function, place.location, place.calls, place.trips, (), False)


def _site(place: CheckpointPlace, runs: Runs, variants: Variants) -> PlannedSite | None:
    """Return what a plan says of a place; None where there was and will be no checkpoint."""
    if place.kind != "checkpoint" and all(option.choice is None for option, _ in runs):
        return None
    return PlannedSite(
        kind=place.kind,  # type: ignore[arg-type]
        function=place.function,
        location=place.location,
        calls=place.calls,
        trips=place.trips,
        parts=tuple(
            PlannedPart(
                count,
                option.choice is not None,
                option.policy,
                option.values,
                option.segments,
                option.checkpoints,
            )
            for option, count in runs
        ),
        changed=any(option.changed for option, _ in runs),
        library=_library(place, variants),
        defined=place.defined,
    )


def _library(place: CheckpointPlace, variants: Variants) -> str | None:
    """Return the installed package that a place's function belongs to; None for the user's own."""
    if place.kind in ("whole", "groups", "solver"):
        return None
    if place.kind == "call":
        return library_of(place.defined.file) if place.defined else None
    where = jax_compat.traced_function(variants.body(place)) or ""
    return library_of(where.partition(" at ")[2].rpartition(":")[0])
