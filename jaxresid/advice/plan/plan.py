"""`jaxresid plan`: find the cheapest way to fit a function into a budget of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxresid.advice.compare.policy_targets import remarks
from jaxresid.advice.compile.ahead_of_time import CompileSettings, warnings_of
from jaxresid.advice.compile.limited import LimitedCompiles
from jaxresid.advice.plan.confirmation import Confirmation, compiles_for
from jaxresid.advice.plan.drafts import Draft, Drafts
from jaxresid.advice.plan.floor.parts import WITHOUT_STEP, floor_parts
from jaxresid.advice.plan.floor.reliefs import Reliefs
from jaxresid.advice.plan.search.combinations import TracedVariant
from jaxresid.advice.plan.search.menus import Menus
from jaxresid.advice.plan.search.objective import Objective
from jaxresid.advice.plan.search.peaks import ESTIMATE, GUIDE, Peaks
from jaxresid.advice.plan.search.search import Search
from jaxresid.advice.plan.search.tried import is_proven, tried_places
from jaxresid.advice.plan.solver_loops import solver_of, variants_of
from jaxresid.advice.plan.source.file_edits import FileEdit
from jaxresid.advice.plan.source.snippets import code
from jaxresid.advice.plan.verification import Check, without_checkpoints
from jaxresid.advice.timing.chips import Chip, chip_of, places_with_rates
from jaxresid.advice.timing.intervals import checked_on, time_basis_of
from jaxresid.base.crashes import Crash, crash_warnings
from jaxresid.base.errors import InputsError
from jaxresid.base.option_types import Aim
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.memory.compilers import has_estimate
from jaxresid.inspector.subject.base import Subject
from jaxresid.results import Floor, Lifetimes, Plan, answer
from jaxresid.xla.places import Place, memory_of, why_unavailable
from jaxresid.xla.processes.cache import CompileCache, default_directory


@dataclass(frozen=True, slots=True)
class Terms:
    """What a plan has to keep to.

    Attributes:
      budget_nbytes: The budget in bytes of peak memory.
      aim: What is minimised, or the throughput that is maximised.
      chip: The chip whose rates tell the time; None where none are known.
      compiles: What has the plan confirmed; None: it is an estimate.
      said: Warnings to add to the plan's.
    """

    budget_nbytes: int
    aim: Aim
    chip: Chip | None
    compiles: LimitedCompiles | None
    said: tuple[str, ...]


def terms(
    place: Place,
    budget_nbytes: int | None,
    *,
    aim: Aim | None = None,
    offload: bool = False,
    compiles: LimitedCompiles | None = None,
    progress: Callable[[str], None] | None = None,
) -> Terms:
    """Return what a plan for a place has to keep to.

    Args:
      place: The place.
      budget_nbytes: The budget in bytes of peak memory; None: the memory of the place.
      aim: What to minimise or maximise; None: the recomputation, with `offload` the time.
      offload: Whether values may be moved to host memory.
      compiles: What has the plan confirmed; None: it is an estimate, but on a CPU, where there is
        none.
      progress: Called with a text that says what is being done.

    Raises:
      InputsError: They do not go together, or something is not known of the place.
    """
    if budget_nbytes is None:
        budget_nbytes = memory_of(place)
    if budget_nbytes <= 0:
        raise InputsError(f"a budget of {budget_nbytes} bytes leaves no room; write e.g. 12GiB")
    chip = chip_of(place)
    if offload and chip is None:
        raise InputsError(
            f"the transfer rates of {place.text} are not known;"
            f" plan without offload, or for one of {', '.join(places_with_rates())}"
        )
    if aim in ("time", "throughput") and chip is None:
        raise InputsError(
            f"the rates of {place.text} are not known, so its time is not;"
            f" minimize recompute or memory, or plan for one of {', '.join(places_with_rates())}"
        )
    if aim == "recompute" and offload:
        raise InputsError(
            "minimize recompute does not count what offload takes; minimize time, or leave out"
            " offload"
        )
    if compiles is not None and (reason := why_unavailable(place)) is not None:
        raise InputsError(reason)
    if compiles is None and not has_estimate(place):
        settings = CompileSettings(cache=CompileCache(default_directory()))
        compiles = compiles_for(place, settings, progress=progress)
    said = []
    room = place.memory_nbytes
    if compiles is not None and room is not None and budget_nbytes > room:
        # XLA refuses what needs more, whatever the budget.
        budget_nbytes = room
        said.append(
            f"planned for {format_bytes(room)}, all that a program can have of one device of"
            f" {place.text}: the budget is more"
        )
    default: Aim = "time" if offload else "recompute"
    return Terms(budget_nbytes, aim or default, chip, compiles, tuple(said))


class Planning:
    """The search for one plan, and the plan that it leads to."""

    def __init__(
        self,
        subject: Subject,
        budget_nbytes: int,
        chip: Chip | None,
        offload: bool,
        progress: Callable[[str], None],
        aim: Aim | None = None,
    ) -> None:
        self.subject, self.budget_nbytes, self.progress = subject, budget_nbytes, progress
        self.chip, self.offload = chip, offload
        self.aim: Aim = aim or ("time" if offload else "recompute")
        self.variants = variants_of(subject)
        self.plain = without_checkpoints(self.variants)
        self.by_time = offload or self.aim in ("time", "throughput")
        self.objective = Objective(
            self.plain, chip, offload=offload, by_time=self.by_time, passes=subject.passes
        )
        self.decided: TracedVariant | None = None  # what the last plan shows
        self.menus = Menus(subject, self.variants, budget_nbytes, self.objective, progress)
        self.has_estimate = has_estimate(subject.place)
        self.peaks = Peaks(ESTIMATE if self.has_estimate else GUIDE)
        self.triton_nbytes: Mapping[TracedVariant, int] = {}  # as of `Confirmation`
        self.search = Search(
            self.variants,
            self.plain,
            self.menus.of_policies(),
            self.menus.all,
            self.objective.cost,
            # The lowest peak is that of a search for which everything is too big.
            1 if self.aim == "memory" else budget_nbytes,
            nests=self.variants.nests(),
            solver=solver_of(self.variants),
            peaks=self.peaks,
            slack=self.objective.slack,
            may_pay=self.by_time,
            progress=progress,
        )

    def planned(
        self,
        check: Check | None,
        compiles: LimitedCompiles | None,
        said: Sequence[str] = (),
        *,
        keeps_interrupted: bool = False,
        lifetimes: bool = False,
    ) -> tuple[Plan, tuple[FileEdit, ...]]:
        """Return the plan, and the edits that carry it out.

        Args:
          check: Traces edited code; None means that the plan's code is not traced.
          compiles: What has the plan confirmed; None: it is an estimate.
          said: Warnings to add to the plan's.
          keeps_interrupted: Whether Ctrl-C ends the search with the best plan found so far, if
            there is one; else it is raised.
          lifetimes: Whether the lifetimes of all values are to be in the plan; nothing is traced
            for them where the search was interrupted, and they are not there.
        """
        drafts, more = self._drafts(check), list(said)
        decided: Draft | None = None
        try:
            decided = self._decided(drafts, compiles, more)
            made = self._plan(decided, drafts, compiles, more, interrupted=False)
            if lifetimes:
                made = replace(made, lifetimes=self._lifetimes(decided, drafts))
        except KeyboardInterrupt:
            if not keeps_interrupted:
                raise
            self.search.stop()
            if decided is None:
                found = self.so_far(compiles, more)
                if found is None:
                    raise
                return found
            made = self._plan(decided, drafts, compiles, more, interrupted=True)
        return made, decided.plan_edits.edits

    def so_far(
        self, compiles: LimitedCompiles | None, said: Sequence[str]
    ) -> tuple[Plan, tuple[FileEdit, ...]] | None:
        """Return the best plan of what was traced, and its edits; None where nothing with a figure.

        Nothing is traced from now on, the code of the plan neither: that may be what takes long.

        Args:
          compiles: As for `planned`.
          said: Warnings to add to the plan's.
        """
        self.search.stop()
        drafts = self._drafts(None)
        decided = self._best_so_far(drafts)
        if decided is None:
            return None
        made = self._plan(decided, drafts, compiles, said, interrupted=True)
        return made, decided.plan_edits.edits

    def _drafts(self, check: Check | None) -> Drafts:
        places = [*(nest.place for nest in self.variants.nests()), *self.menus.places]
        solver = solver_of(self.variants)
        if solver is not None:
            places.append(solver.place)
        return Drafts(self.subject, self.variants, places, self.plain, check, self.progress)

    def _decided(self, drafts: Drafts, compiles: LimitedCompiles | None, said: list[str]) -> Draft:
        """Search, and return the draft to show; what is to be said of it is added to `said`."""
        decided: Draft | None = None
        if compiles is None:
            self.search.run()
        else:
            confirmation = Confirmation(
                self.search, self.peaks, drafts, compiles, self.search.budget
            )
            self.triton_nbytes = confirmation.triton_nbytes
            decided = confirmation.run()
            said += [*confirmation.remarks(), *warnings_of(compiles.settings)]
            if decided is None and not self.has_estimate:
                raise InputsError("; ".join(said))
        if decided is None:
            decided = drafts.first(
                self.search.best, lambda found: found.peak_nbytes <= self.budget_nbytes
            )
        if decided is None:
            # What is said to be the lowest is shown, even if its code is left to the user's hands.
            decided = drafts.first(self.search.lowest, lambda found: True, takes_doubted=True)
        assert decided is not None  # the code as it is written was tried
        return decided

    def _best_so_far(self, drafts: Drafts) -> Draft | None:
        """Return the best draft of what was traced; None where nothing with a figure was."""
        self.peaks.caution = 0.0
        unknown = [t for t in self.search.tried if self.shown_nbytes(t) is None]

        def ranked(excluding: Sequence[TracedVariant]) -> TracedVariant | None:
            left_out = [*unknown, *excluding]
            return self.search.best(left_out) or self.search.lowest(left_out)

        return drafts.first(ranked, lambda found: True)

    def _plan(
        self,
        decided: Draft,
        drafts: Drafts,
        compiles: LimitedCompiles | None,
        said: Sequence[str],
        *,
        interrupted: bool,
    ) -> Plan:
        subject, search, plain = self.subject, self.search, self.plain
        shown, found = decided.tried, decided.figures
        self.decided = shown
        is_promised = drafts.is_right(decided)
        confirmed = self.peaks.figures.get(shown) if is_promised else None
        peak_nbytes = found.peak_nbytes if confirmed is None else confirmed
        fits = peak_nbytes <= self.budget_nbytes
        lowest = self._lowest(drafts)
        if confirmed is not None and not fits:
            lowest = shown
        around = None
        if confirmed is None:
            around = subject.interval(found.peak_nbytes, shown.variant.lowered.program)
        by_name = {
            "peak_nbytes": shown,
            "lowest_nbytes": lowest,
            "written_nbytes": search.as_written(),
            "plain_nbytes": search.trial({}),
        }
        # Traced with a change, code that is not its variant would be the variant again.
        traces = is_promised and shown in search.tried and not interrupted
        floor, crashes = self._floor(shown, compiles, confirmed, traces=traces, fits=fits)
        is_out_of_reach = not fits and floor.held_nbytes > self.budget_nbytes
        basis = time_basis_of(plain, subject.place)
        time = None
        if is_promised:
            split = subject.mesh is not None
            time = self.objective.time_interval(shown.variant, basis, is_split=split)
        exchanged = self.objective.exchanges(shown.variant) if is_promised else None
        share = found.recompute_flops / plain.cost.flops if plain.cost.flops else 0.0
        return Plan(
            target=subject.target,
            jax=subject.jax,
            place=subject.place_info,
            chip=self.chip.name if self.chip else None,
            budget_nbytes=self.budget_nbytes,
            offload=self.offload,
            aim=self.aim,
            answer=("fits" if fits else "does not fit")
            if confirmed is not None or is_out_of_reach
            else answer(around, self.budget_nbytes),
            lowest_nbytes=min(self.shown_nbytes(lowest) or 0, peak_nbytes),
            written_nbytes=self.shown_nbytes(by_name["written_nbytes"]),
            plain_nbytes=self.shown_nbytes(by_name["plain_nbytes"]),
            peak_nbytes=peak_nbytes,
            estimate_nbytes=found.peak_nbytes if self.has_estimate else None,
            kept_nbytes=found.kept_nbytes,
            host_nbytes=found.host_nbytes,
            recompute_flops=found.recompute_flops,
            plain_flops=plain.cost.flops,
            recompute_fraction=share,
            time_fraction=self.objective.time_fraction(shown.variant) if is_promised else None,
            seconds=self.objective.seconds(shown.variant) if is_promised else None,
            sites=decided.sites,
            proven=is_out_of_reach
            or (not interrupted and is_proven(search, shown, self.peaks.figures)),
            tried=len(search.tried),
            code=code(decided.plan_edits.edits),
            unwritten=decided.plan_edits.problems,
            verified=decided.doubt is None,
            doubt=decided.doubt,
            confirmed=confirmed is not None,
            by_xla=tuple(name for name, t in by_name.items() if t in self.peaks.figures),
            compiles=compiles.count if compiles is not None else 0,
            unconfirmed=compiles.unconfirmed if compiles is not None else (),
            uncosted=(shown.variant.cost - plain.cost).uncosted,
            warnings=(
                *subject.warnings,
                *remarks(self.variants),
                *self.menus.remarks(),
                *drafts.remarks(decided, plain),
                *([] if exchanged is None else [exchanged]),
                *said,
                *crash_warnings(crashes),
            ),
            low_nbytes=around.low_nbytes if around else None,
            high_nbytes=around.high_nbytes if around else None,
            triton_peak_nbytes=None if confirmed is None else self.triton_nbytes.get(shown),
            choices=tried_places(search),
            floor=floor,
            interrupted=interrupted,
            low_time_fraction=time.low if time else None,
            high_time_fraction=time.high if time else None,
            time_basis=basis,
            times_checked_on=checked_on(),
        )

    def _lifetimes(self, decided: Draft, drafts: Drafts) -> tuple[Lifetimes, ...]:
        """Return the lifetimes of the values in the code as it is, and with the plan applied."""
        subject, found = self.subject, [self.subject.lifetimes()]
        variant = decided.written
        if variant is None and drafts.is_right(decided):
            variant = decided.tried.variant
        if variant is not None and any(site.changed for site in decided.sites):
            found.append(subject.lifetimes_of(variant.program, variant.trace, "plan"))
        return tuple(found)

    def _floor(
        self,
        shown: TracedVariant,
        compiles: LimitedCompiles | None,
        confirmed: int | None,
        *,
        traces: bool,
        fits: bool,
    ) -> tuple[Floor, list[Crash]]:
        """Return the floor of what is shown, with what lowers it if `traces`.

        The second is what an error of our own left out of it. Memory is short where something is
        recomputed, or nothing fits. `confirmed` is what the compiler says that it needs, in bytes.
        """
        is_step = self.subject.target.mode == "program"
        parts = floor_parts(self.subject, shown.variant)
        without = () if is_step else WITHOUT_STEP
        if not traces or not self.has_estimate:
            return Floor(parts, (), without), []
        self.progress("tracing what lowers the floor")
        menus = None if self.offload else self.menus
        written = self.search.as_written()
        reliefs = Reliefs(
            self.subject,
            self.variants,
            shown,
            self.budget_nbytes,
            menus,
            compiles,
            confirmed,
            None if written is None else written.variant,
            self.plain.cost.flops,
        )
        found = reliefs.found(is_short=not fits or shown.cost > 0)
        return Floor(parts, found, without, reliefs.left_out), reliefs.crashes

    def _lowest(self, drafts: Drafts) -> TracedVariant:
        """Return the variant with the lowest peak that may be shown."""
        wrong = drafts.wrong
        known = {t: n for t in self.search.tried if (n := self.shown_nbytes(t)) is not None}
        return min(known, key=lambda t: (t in wrong, known[t]))

    def shown_nbytes(self, tried: TracedVariant | None) -> int | None:
        """Return the peak of a variant as it may be shown, in bytes.

        XLA's figure, else the estimate, if there is one.
        """
        if tried is None:
            return None
        return self.peaks.figures.get(tried, tried.peak if self.has_estimate else None)
