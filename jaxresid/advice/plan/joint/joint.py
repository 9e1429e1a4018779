"""Plan over several batch sizes, numbers of microbatches and meshes at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from jaxresid.advice.compile.limited import LimitedCompiles
from jaxresid.advice.plan.joint.configurations import Configurations, Grid
from jaxresid.advice.plan.joint.largest import Drafted, LargestSearch
from jaxresid.advice.plan.joint.pareto import front_rows
from jaxresid.advice.plan.joint.recommendation import beaten, to_set
from jaxresid.advice.plan.joint.search import AS_GOOD, JointSearch, Solved
from jaxresid.advice.plan.next_step import next_step
from jaxresid.advice.plan.plan import Terms, terms
from jaxresid.advice.plan.verification import Check
from jaxresid.base.errors import InputsError
from jaxresid.base.option_types import Aim
from jaxresid.inspector.memory.compilers import check_lifetimes, has_estimate
from jaxresid.inspector.subject.base import gc_paused
from jaxresid.results import Beaten, Configuration, Plan, Selection
from jaxresid.xla.places import Place

# Of how many configurations plans are drafted whose code cannot be traced.
_MOST_UNTRACED = 4


def jointly_drafted(
    configurations: Configurations,
    place: Place,
    budget_nbytes: int | None,
    *,
    aim: Aim | None = None,
    offload: bool = False,
    progress: Callable[[str], None] | None = None,
    checks: Callable[[Check, Configuration], Check | None] | None = None,
    compiles: LimitedCompiles | None = None,
    keeps_interrupted: bool = False,
    lifetimes: bool = False,
    words: tuple[str, ...] = (),
) -> Drafted:
    """Return the best plan of all configurations, and the edits that carry it out.

    Args:
      configurations: What there is to choose from.
      place: The place to plan for.
      budget_nbytes: The budget in bytes of peak memory; None: the memory of the place.
      aim: What to minimise or maximise; None: the recomputation, with `offload` the time.
      offload: Whether values may be moved to host memory.
      progress: Called with a text that says what is being done.
      checks: Makes of what traces edited code in this process what traces it to be sure, or None
        where no code is to be edited.
      compiles: What has the plan confirmed; None: it is an estimate, but on a CPU, where there is
        none.
      keeps_interrupted: Whether Ctrl-C ends the search with the best plan found so far, if there is
        one; else it is raised.
      lifetimes: Whether the lifetimes of all values are to be in the plan.
      words: The words of the command line that ask for it, as `NextStep` has them.

    Raises:
      JaxresidError: Nothing can be traced, or something is not known of the place.
    """
    if lifetimes:
        check_lifetimes(place)
    by = terms(place, budget_nbytes, aim=aim, offload=offload, compiles=compiles, progress=progress)
    if aim == "batch" and len(configurations.grid.sizes) < 2:
        raise InputsError(
            "maximize batch chooses among several sizes: give a range, --batch 8..512"
        )
    if not configurations.has_gradient():
        _check_without_gradient(configurations.grid, aim, offload)
        if aim is None and len(configurations.grid.sizes) > 1:
            by = replace(by, aim="batch")
    plan, edits = _drafted(
        configurations, place, by, offload, progress, checks, keeps_interrupted, lifetimes
    )
    return replace(plan, next_step=next_step(plan, place, words)), edits


def _drafted(
    configurations: Configurations,
    place: Place,
    by: Terms,
    offload: bool,
    progress: Callable[[str], None] | None,
    checks: Callable[[Check, Configuration], Check | None] | None,
    keeps_interrupted: bool,
    lifetimes: bool,
) -> Drafted:
    """Return the best plan and its edits, as `jointly_drafted` does, on terms."""
    if by.aim == "batch":
        return _largest(configurations, place, by, offload, progress, checks, lifetimes)
    if not has_estimate(place) and not configurations.grid.is_single:
        raise InputsError(
            f"peaks are not estimated for {place.text}: give one batch size, number of microbatches"
            " and mesh, or plan for an accelerator, such as --on gpu:h100"
        )
    search = JointSearch(configurations, by, offload, progress or (lambda _: None))
    try:
        search.run()
    except KeyboardInterrupt:
        found = _so_far(search, by) if keeps_interrupted else None
        if found is None:
            raise
        return found
    drafts: list[tuple[Solved, Drafted]] = []
    for solved in search.ranked() or [search.lowest()]:
        if drafts and not _may_be_better(solved, drafts, by.compiles):
            break
        in_process = configurations.check(solved.configuration)
        check = in_process if checks is None else checks(in_process, solved.configuration)
        with gc_paused(), solved.planning.subject.tracing():
            drafted = solved.planning.planned(
                check,
                by.compiles,
                by.said,
                keeps_interrupted=keeps_interrupted,
                lifetimes=lifetimes,
            )
        if drafted[0].interrupted:
            return _told(search, solved, drafted)
        drafts.append((solved, drafted))
    return _told(search, *_best(drafts, by.compiles))


def _check_without_gradient(grid: Grid, aim: Aim | None, offload: bool) -> None:
    """Check that nothing is asked of a program that only one with gradients has.

    Raises:
      InputsError: something is.
    """
    asked = {
        "minimize recompute": aim == "recompute",
        "offload": offload,
        "microbatches": grid.has_microbatches,
    }
    option = next((option for option, is_asked in asked.items() if is_asked), None)
    if option is not None:
        raise InputsError(
            f"{option} is for programs that take gradients, and this one takes none; the largest"
            " batch that fits is what --maximize batch finds, and jax.lax.map(f, xs, batch_size=N)"
            " goes through one in parts"
        )


def _largest(
    configurations: Configurations,
    place: Place,
    by: Terms,
    offload: bool,
    progress: Callable[[str], None] | None,
    checks: Callable[[Check, Configuration], Check | None] | None,
    lifetimes: bool,
) -> Drafted:
    """Return the plan of the largest size that fits, and its edits, as `jointly_drafted` does."""
    search = JointSearch(configurations, by, offload, progress or (lambda _: None))
    grid = configurations.grid
    others_to_set = replace(grid, batches=(), every=())  # the size is in the verdict
    pairs = itertools.product(grid.meshes or (None,), sorted(set(grid.microbatches)))
    chosen, *others = sorted(
        (
            LargestSearch(search, place, mesh, count, checks, lifetimes).run()
            for mesh, count in pairs
        ),
        key=lambda outcome: -(outcome.largest.size or 0),
    )
    beaten = [
        Beaten(
            other.solved.configuration,
            "none fits" if other.largest.size is None else f"fits up to {other.largest.size}",
            other.largest.size is not None,
        )
        for other in others
    ]
    plan, edits = chosen.drafted
    with gc_paused():
        solved = chosen.solved
        selection = Selection(
            configuration=solved.configuration,
            front=front_rows([solved], solved.planning.decided) if plan.target.has_gradient else (),
            beaten=tuple(beaten),
            searched=len(search.solved),
            to_set=tuple(
                to_set(solved.configuration, solved.planning.subject, solved.rows, others_to_set)
            ),
            largest=chosen.largest,
        )
    return replace(plan, selection=selection), edits


def _may_be_better(
    solved: Solved, drafts: Sequence[tuple[Solved, Drafted]], compiles: LimitedCompiles | None
) -> bool:
    """Return whether a configuration may lead to a better plan than those drafted so far.

    Of a configuration whose best plan cannot be written as it was found, or not traced, the next is
    shown; and what the compiler refutes is no plan.
    """
    if compiles is not None and compiles.is_over:
        return False
    best, (plan, _) = _best(drafts, compiles)
    if _is_refuted(plan, compiles):
        return True
    if plan.is_untraced:
        return len(drafts) < _MOST_UNTRACED
    return solved.best is not None and (
        solved.score(solved.best)[0] < best.shown_score()[0] * (1 - AS_GOOD)
    )


def _best(
    drafts: Sequence[tuple[Solved, Drafted]], compiles: LimitedCompiles | None
) -> tuple[Solved, Drafted]:
    """Return the best plan: one that is not refuted, then one that was traced, then by score."""

    def rank(made: tuple[Solved, Drafted]) -> tuple[bool, bool, float]:
        solved, (plan, _) = made
        is_refuted = _is_refuted(plan, compiles)
        return is_refuted, plan.is_untraced, 0.0 if is_refuted else solved.shown_score()[0]

    return min(drafts, key=rank)


def _is_refuted(plan: Plan, compiles: LimitedCompiles | None) -> bool:
    return compiles is not None and not plan.is_within


def _so_far(search: JointSearch, by: Terms) -> Drafted | None:
    """Return the best plan of what was searched before Ctrl-C; None where nothing was."""
    ranked = search.ranked()
    if ranked:
        found = ranked[0].planning.so_far(by.compiles, by.said)
        return None if found is None else _told(search, ranked[0], found)
    if search.pending is None:
        return None
    configuration, planning = search.pending
    found = planning.so_far(by.compiles, by.said)
    if found is None:
        return None
    rows = search.configurations.rows(configuration)
    items = search.configurations.items(configuration)
    solved = Solved(configuration, planning, None, None, rows, items, False)
    search.solved.append(solved)
    return _told(search, solved, found)


def _told(search: JointSearch, chosen: Solved, drafted: Drafted) -> Drafted:
    """Return a plan with what it was chosen from."""
    plan, edits = drafted
    planning, grid = chosen.planning, search.configurations.grid
    searched = [s for s in search.solved if s.is_searched or s is chosen]
    with gc_paused():
        selection = Selection(
            configuration=chosen.configuration,
            front=front_rows(search.solved, planning.decided),
            beaten=() if grid.is_single else beaten(search, chosen),
            searched=len(searched),
            followed=len(search.solved) - len(searched),
            skipped=len(search.skipped),
            to_set=tuple(to_set(chosen.configuration, planning.subject, chosen.rows, grid)),
        )
    return replace(plan, selection=selection), edits
