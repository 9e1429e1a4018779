"""`jaxresid plan`: find the cheapest way to fit a function into a budget of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.advice.compare.policy_targets import remarks
from jaxresid.advice.plan.options import Menu, menu
from jaxresid.advice.plan.search import Runs, Search, TracedVariant
from jaxresid.advice.plan.source.file_edits import FileEdit
from jaxresid.advice.plan.source.libraries import library_of
from jaxresid.advice.plan.source.observed_calls import (
    ArgumentKinds,
    ObservedCalls,
    calls_of,
    observe_calls,
    target_argument_kinds,
)
from jaxresid.advice.plan.source.snippets import code
from jaxresid.advice.plan.source.writing import PlanEdits, plan_edits
from jaxresid.advice.plan.verification import (
    Check,
    PlanFigures,
    UnverifiedError,
    figures,
    in_process_check,
    retrace,
    without_checkpoints,
)
from jaxresid.advice.timing.chips import Chip, chip_of, places_with_rates
from jaxresid.advice.timing.roofline import eqn_seconds, seconds, transfer_seconds
from jaxresid.errors import InputsError
from jaxresid.inspector.call.question import Question, in_two_calls
from jaxresid.inspector.cost.jaxpr_cost import Costs
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.memory.cpu.barriers import barrier_removal_warnings
from jaxresid.inspector.report import subject
from jaxresid.inspector.subject.base import Subject, gc_paused
from jaxresid.inspector.variants.choices import CheckpointPlace, Variant, Variants
from jaxresid.inspector.variants.recompute import Graph, graph
from jaxresid.model import Plan, PlannedPart, PlannedSite
from jaxresid.option_types import Mode
from jaxresid.units import format_bytes, parse_bytes
from jaxresid.xla.places import Place

# How many plans are written, and of these how many are traced, until one is taken.
_MOST_DRAFTS = 100
_MOST_TRACES = 5
# A value smaller than this share of the budget is not worth a name; nor is what spares less than
# that share of the function's cost.
_WORTH_A_NAME = 1e-5
_WORTH_AN_EDIT = 5e-4
# How finely the front of each of several places is made, as a share of its saveable bytes.
_STEP = 0.01


@in_two_calls
def plan(
    fun: Callable[..., Any],
    *,
    budget: int | str,
    offload: bool = False,
    argnums: int | Sequence[int] | None = None,
    has_aux: bool = False,
    mode: Mode = "auto",
    on: str | Place | None = None,
    mesh: Any = None,
) -> Callable[..., Plan]:
    """Return a function that plans how `fun` fits into `budget` with the least recomputation.

    `fun` is planned together with its gradients. Use it as
    `jaxresid.plan(fun, budget="12GiB")(*args, **kwargs)`.

    Args:
      fun: The function to plan for, as for `jaxresid.inspect`.
      budget: Bytes of peak memory, or text such as `12GiB`.
      offload: Whether values may also be moved to host memory. If so, the estimated time on
        that place's chip is minimised, transfers included, instead of the recomputed FLOPs.
      argnums: Positional arguments to differentiate, as for `jaxresid.inspect`.
      has_aux: Whether `fun` returns `(output, auxiliary data)`, as for `jaxresid.inspect`.
      mode: Whether `fun` is a function or a training step, as for `jaxresid.inspect`.
      on: The place that the figures are for, as for `jaxresid.inspect`.
      mesh: The mesh that the program is split over, as for `jaxresid.inspect`.

    Returns:
      A function of the arguments of `fun` that returns a `Plan`.

    Raises:
      JaxresidError: As `jaxresid.inspect`, or because the budget is not understood.
    """
    question = Question(fun, argnums=argnums, has_aux=has_aux, mode=mode, on=on, mesh=mesh)
    if isinstance(budget, str):
        try:
            nbytes = parse_bytes(budget)
        except ValueError as e:
            raise InputsError(f"budget: {e}") from None
    else:
        nbytes = budget

    def planned_for(*args: Any, **kwargs: Any) -> Plan:
        asked = question.of(args, kwargs)
        found = subject(asked)
        check = in_process_check(found, asked)
        return drafted(found, nbytes, offload=offload, check=check)[0]

    return planned_for


def planned(subject: Subject, budget_nbytes: int) -> Plan:
    """Return the plan for a traced function, as `plan` does; the plan's code is not traced."""
    return drafted(subject, budget_nbytes)[0]


def drafted(
    subject: Subject,
    budget_nbytes: int,
    *,
    offload: bool = False,
    progress: Callable[[str], None] | None = None,
    check: Check | None = None,
) -> tuple[Plan, tuple[FileEdit, ...]]:
    """Return the plan for a traced function, as `plan` does, and the edits that carry it out.

    The edits are those that the plan's code shows as text.

    Args:
      subject: The traced function.
      budget_nbytes: The budget in bytes of peak memory.
      offload: Whether values may be moved to host memory, as for `plan`.
      progress: Called with a text that says what is being done.
      check: Traces edited code; None means that the plan's code is not traced.
    """
    if budget_nbytes <= 0:
        raise InputsError(f"a budget of {budget_nbytes} bytes leaves no room; write e.g. 12GiB")
    target_chip = chip_of(subject.place)
    if offload and target_chip is None:
        raise InputsError(
            f"the transfer rates of {subject.place.text} are not known;"
            f" plan without offload, or for one of {', '.join(places_with_rates())}"
        )
    with gc_paused(), subject.tracing():
        return _planned(
            subject, budget_nbytes, offload, target_chip, progress or (lambda _: None), check
        )


def _planned(
    subject: Subject,
    budget_nbytes: int,
    offload: bool,
    target_chip: Chip | None,
    progress: Callable[[str], None],
    check: Check | None,
) -> tuple[Plan, tuple[FileEdit, ...]]:
    variants = subject.variants()
    places = _places(variants)
    as_written = variants.variant({})
    plain = without_checkpoints(variants)

    def time_of(variant: Variant) -> float:
        return seconds(variant.lowered, target_chip).total if target_chip else 0.0

    plain_seconds = time_of(plain)

    def cost(variant: Variant) -> float:
        if offload:
            return time_of(variant) - plain_seconds
        return float(variant.cost.flops - plain.cost.flops)

    costs = Costs()
    eqn_cost = (
        (lambda eqn: eqn_seconds(eqn, target_chip))
        if offload and target_chip
        else (lambda eqn: costs.of_eqn(eqn).flops)
    )
    transfer_cost = None
    if offload and target_chip:
        transfer_cost = lambda nbytes: 2 * transfer_seconds(nbytes, target_chip)  # noqa: E731
    taken_names = _names(variants, places)
    menus: list[Menu] = []
    warnings = [*subject.warnings, *barrier_removal_warnings(subject.profile), *remarks(variants)]
    for place in places:
        progress(f"examining {place}")
        least = int(budget_nbytes * _WORTH_A_NAME / place.trips)
        # Values of the whole function are named only where it has no parts; none are where it fits
        # without recomputing anything.
        is_searched = (place.kind != "whole" or len(places) == 1) and (
            offload or plain.peak_nbytes > budget_nbytes
        )
        body_graph = None
        if is_searched:
            body_graph = _graph(variants, place, subject, eqn_cost, least)
            if body_graph is None:
                warnings.append(
                    f"at {place} only JAX's policies were tried: its body cannot be differentiated"
                    " by itself, so it is not known which of its values are worth saving"
                )
        names = _names(variants, [place])
        step = _STEP if len(places) > 2 else 0.0
        menus.append(
            menu(place, body_graph, names, taken_names, transfer_cost, subject.frames.cwd, step)
        )
    search = Search(
        variants,
        menus,
        cost,
        budget_nbytes,
        slack=_WORTH_AN_EDIT * (plain_seconds if offload else plain.cost.flops),
        progress=progress,
    )
    search.run()
    drafts = _Drafts(subject, variants, menus, plain, check)
    fits = True
    decided = drafts.first(search.best, lambda found: found.peak_nbytes <= budget_nbytes, progress)
    if decided is None:
        fits = False
        decided = drafts.first(search.lowest, lambda found: True, progress)
    assert decided is not None  # the code as it is written was tried
    shown, found = decided.tried, decided.figures
    trusted = [t.peak for t in search.tried if t not in drafts.wrong]
    recompute = shown.variant.cost - plain.cost
    is_promised = found == figures(shown.variant, plain)
    time_fraction = None
    if plain_seconds and is_promised:
        time_fraction = (time_of(shown.variant) - plain_seconds) / plain_seconds
    result = Plan(
        target=subject.target,
        jax=subject.jax,
        place=subject.place_info,
        chip=target_chip.name if target_chip else None,
        budget_nbytes=budget_nbytes,
        offload=offload,
        fits=fits,
        floor_nbytes=min(*trusted, found.peak_nbytes, as_written.peak_nbytes, plain.peak_nbytes),
        written_nbytes=as_written.peak_nbytes,
        plain_nbytes=plain.peak_nbytes,
        peak_nbytes=found.peak_nbytes,
        kept_nbytes=found.kept_nbytes,
        host_nbytes=found.host_nbytes,
        recompute_flops=found.recompute_flops,
        recompute_fraction=found.recompute_flops / plain.cost.flops if plain.cost.flops else 0.0,
        time_fraction=time_fraction,
        sites=decided.sites,
        proven=_is_proven(search, menus) and shown is search.best(),
        tried=len(search.tried),
        code=code(decided.plan_edits.edits),
        unwritten=decided.plan_edits.problems,
        verified=decided.doubt is None,
        doubt=decided.doubt,
        uncosted=recompute.uncosted,
        warnings=(*warnings, *drafts.remarks(decided, plain)),
    )
    return result, decided.plan_edits.edits


@dataclass(frozen=True, slots=True, eq=False)
class _Draft:
    """A plan that may be the one to return.

    Attributes:
      tried: The variant that was traced.
      sites: What the plan does at each place.
      plan_edits: The edits of the source, and what cannot be written.
      figures: The figures of its code where that was traced, else those of the variant.
      doubt: Why its code was not traced; None where it was.
    """

    tried: TracedVariant
    sites: tuple[PlannedSite, ...]
    plan_edits: PlanEdits
    figures: PlanFigures
    doubt: str | None = None


class _Drafts:
    """Takes the first plan whose code, when traced, gives what is promised.

    Attributes:
      wrong: The variants whose code gives something else.
    """

    def __init__(
        self,
        subject: Subject,
        variants: Variants,
        menus: Sequence[Menu],
        plain: Variant,
        check: Check | None,
    ) -> None:
        self.wrong: list[TracedVariant] = []
        self._subject, self._variants, self._menus = subject, variants, menus
        self._plain, self._check = plain, check
        self._calls: ObservedCalls | None = None
        self._traces = 0
        self._left_out: list[_Draft] = []

    def first(
        self,
        ranked: Callable[[Sequence[TracedVariant]], TracedVariant | None],
        is_enough: Callable[[PlanFigures], bool],
        progress: Callable[[str], None],
    ) -> _Draft | None:
        """Return the first draft by rank that holds what it promises.

        Without one, return the best, by what was found, of those that do not hold it but are good
        enough; else the first of those whose code cannot be traced; else None.

        Args:
          ranked: Returns the best variant besides those that it is given.
          is_enough: Whether figures are good enough.
          progress: Called with a text that says what is being done.
        """
        rejected: list[TracedVariant] = list(self.wrong)
        doubted: list[_Draft] = []
        good_enough: list[_Draft] = []
        traces = 0
        while len(rejected) < _MOST_DRAFTS and traces < _MOST_TRACES:
            tried = ranked(rejected)
            if tried is None:
                break
            rejected.append(tried)
            draft = self._drafted(tried)
            if self._check is None or not any(site.changed for site in draft.sites):
                self._left_out = doubted
                return draft
            if draft.doubt is None and self._check is not None:
                progress("tracing the code of the plan")
                draft = self._traced(draft, self._check)
                traces += 1
            if draft.doubt is not None:
                doubted.append(draft)
            elif draft.figures == figures(tried.variant, self._plain):
                self._left_out = doubted
                return draft
            else:
                self.wrong.append(tried)
                if is_enough(draft.figures):
                    good_enough.append(draft)
        self._left_out = doubted
        if good_enough:
            return min(
                good_enough, key=lambda d: (d.figures.recompute_flops, d.figures.peak_nbytes)
            )
        return doubted[0] if doubted else None

    def remarks(self, decided: _Draft, plain: Variant) -> Iterator[str]:
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

    def _drafted(self, tried: TracedVariant) -> _Draft:
        sites = tuple(
            site
            for m in self._menus
            if (site := _site(m, tried.combination[m.place], self._variants)) is not None
        )
        made = plan_edits(sites, self._subject, self._known(sites))
        promised = figures(tried.variant, self._plain)
        doubt = None
        if made.problems:
            doubt = made.problems[0]
        elif self._check is None and any(site.changed for site in sites):
            doubt = "its code was not traced"
        return _Draft(tried, sites, made, promised, doubt)

    def _traced(self, draft: _Draft, check: Check) -> _Draft:
        try:
            return replace(draft, figures=check(draft.plan_edits.edits, draft.figures))
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
                    [_unplanned_site(m.place) for m in self._menus], self._subject.frames.cwd
                )
                seen = observe_calls(wanted, lambda: retrace(self._subject))
            self._calls = ObservedCalls(target, seen)
        return self._calls


def _unplanned_site(place: CheckpointPlace) -> PlannedSite:
    kind: Any = place.kind
    return PlannedSite(kind, place.function, place.location, place.calls, place.trips, (), False)


def _places(variants: Variants) -> list[CheckpointPlace]:
    """Return the places where a plan may put checkpoints.

    They are those where the code has one, loop bodies without one inside, calls of functions, and
    everything as one.
    """
    places = variants.places()
    overlaps = variants.overlaps()
    sites = {p for p in places if p.kind == "checkpoint"}
    holding = {a for a, b in overlaps if b in sites}
    scans = {p for p in places if p.kind == "scan"}
    around_scans = {a for a, b in overlaps if b in scans}
    return [
        p
        for p in places
        if p in sites
        or p.kind == "whole"
        or (p.kind == "scan" and p not in holding and not _is_inside(p, sites, overlaps))
        or (p.kind == "call" and p not in holding and p not in around_scans)
    ]


def _is_inside(
    place: CheckpointPlace,
    others: set[CheckpointPlace],
    overlaps: Sequence[tuple[CheckpointPlace, CheckpointPlace]],
) -> bool:
    return any(a in others and b is place for a, b in overlaps)


def _graph(
    variants: Variants,
    place: CheckpointPlace,
    subject: Subject,
    cost: Callable[[Any], float],
    enough: int,
) -> Graph | None:
    """Return the graph of a place's body; None where JAX cannot differentiate the body alone."""
    try:
        return graph(variants.body(place), subject.frames, cost, enough)
    except Exception:  # whatever JAX's rules raise where they are asked out of their place
        return None


def _names(variants: Variants, places: Sequence[CheckpointPlace]) -> list[str]:
    """Return the checkpoint_names inside places, in program order."""
    found = dict.fromkeys(
        str(jax_compat.params(eqn)["name"])
        for place in places
        for eqn in eqns_in(variants.body(place))
        if jax_compat.primitive_name(eqn) == "name"
    )
    return list(found)


def _site(menu: Menu, runs: Runs, variants: Variants) -> PlannedSite | None:
    """Return what a plan says of a place; None where there was and will be no checkpoint."""
    place = menu.place
    if place.kind != "checkpoint" and all(option.choice is None for option, _ in runs):
        return None
    return PlannedSite(
        kind=place.kind,  # type: ignore[arg-type]
        function=place.function,
        location=place.location,
        calls=place.calls,
        trips=place.trips,
        parts=tuple(
            PlannedPart(count, option.choice is not None, option.policy, option.values)
            for option, count in runs
        ),
        changed=any(option.changed for option, _ in runs),
        library=_library(place, variants),
        defined=place.defined,
    )


def _library(place: CheckpointPlace, variants: Variants) -> str | None:
    """Return the installed package that a place's function belongs to; None for the user's own."""
    if place.kind == "whole":
        return None
    where = jax_compat.traced_function(variants.body(place)) or ""
    return library_of(where.partition(" at ")[2].rpartition(":")[0])


def _is_proven(search: Search, menus: Sequence[Menu]) -> bool:
    """Return whether every choice by name that could be cheaper was traced.

    That is so at one place of one call, or loop, with its whole front tried.
    """
    best = search.best()
    if best is not None and best.cost <= 0 and not search.transfers:
        return True
    searched = [m for m in menus if m.front]
    if len(searched) != 1 or not search.every_front:
        return False
    (only,) = searched
    if only.place.calls > 1 and only.place.can_split:
        return False
    return all(
        search.known({only.place: option}) is not None
        for option in only.front
        if best is None or (option.cost or 0.0) < best.cost
    )
