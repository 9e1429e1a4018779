"""`jaxresid compare`: compare one function under several policies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.advice.compare import pareto as frontier
from jaxresid.advice.compare.cut_loops import cut_loops, loops_target
from jaxresid.advice.compare.policies import (
    NONE,
    WRITTEN,
    ChosenPolicies,
    chosen_policies,
    wanted,
)
from jaxresid.advice.compare.policy_targets import (
    SEGMENTS,
    WORDS,
    PolicyTarget,
    policy_target,
    remarks,
)
from jaxresid.advice.compile.ahead_of_time import (
    CompileSettings,
    PolicyProgram,
    warnings_of,
)
from jaxresid.advice.compile.limited import COMPILE_SECONDS, LimitedCompiles
from jaxresid.advice.timing.chips import chip_of
from jaxresid.advice.timing.intervals import checked_on, time_basis_of, time_interval
from jaxresid.advice.timing.measure.random_inputs import leaf_recipes
from jaxresid.advice.timing.measure.rounds import Measurement, VariantToTime, measured
from jaxresid.advice.timing.roofline import Seconds, seconds
from jaxresid.base.errors import InputsError, JaxresidError, summary
from jaxresid.base.option_types import Mode
from jaxresid.base.progress import Progress, Stage
from jaxresid.inspector.call.question import Question, in_two_calls
from jaxresid.inspector.checkpoints.policies import answers, description
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.memory.compilers import check_lifetimes, has_estimate
from jaxresid.inspector.next_step import ask_compiler
from jaxresid.inspector.report import subject
from jaxresid.inspector.residuals.offloading import offloading
from jaxresid.inspector.subject.base import Subject, gc_paused, without_gradient
from jaxresid.inspector.variants.candidates import PolicyCandidate, candidates
from jaxresid.inspector.variants.choices import CheckpointPlace, Choice, Choices, Variant, Variants
from jaxresid.results import Comparison, ComparisonRow, Lifetimes, NextStep, with_answers
from jaxresid.xla.places import Place, why_unavailable
from jaxresid.xla.processes.cache import CompileCache, default_directory


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How to time the variants.

    Attributes:
      leaves: The dynamic leaves of the call, concrete where the user gave values.
      rounds: How many rounds are run.
    """

    leaves: Sequence[Any]
    rounds: int = 10


@in_two_calls
def compare(
    fun: Callable[..., Any],
    *,
    at: str | None = None,
    policies: Mapping[str, Any] | Sequence[Any] = (),
    measure: bool = False,
    rounds: int = 10,
    compile: bool = False,
    compile_time: float = COMPILE_SECONDS,
    argnums: int | Sequence[int] | None = None,
    has_aux: bool = False,
    mode: Mode = "auto",
    on: str | Place | None = None,
    mesh: Any = None,
    trips: int | None = None,
    lifetimes: bool = False,
) -> Callable[..., Comparison]:
    """Return a function that compares `fun` and its gradients under checkpoint policies.

    Use it as `jaxresid.compare(fun)(*args, **kwargs)`.

    Args:
      fun: The function to compare, as for `jaxresid.inspect`.
      at: Where the policy goes: `all-sites`, `scan-bodies`, `calls`, `whole`, or a place such as
        `model.py:42`. None means the checkpoints that the code has, else the bodies of its scans if
        loops keep a tenth of what is kept, else the calls of functions that were found, else
        everything. `segments` compares loops in checkpointed segments, and Python loops in groups,
        of several sizes instead of policies.
      policies: More policies to try, by name or as they are. Strings are as for `jaxresid.sweep`:
        of names of JAX's only those are tried, instead of all, and `module:policy` is one more.
      measure: Also run each variant on the local device, with random inputs where arguments are
        abstract.
      rounds: How many rounds the measurement has.
      compile: Also compile each variant for that place, as `jaxresid.compile` does; for a CPU,
        where peaks are not estimated, each is compiled anyway. Where XLA gives peaks of all, they
        decide which variants are Pareto-optimal.
      compile_time: Seconds that compiling may take, all together; the variants that are left are
        named in a warning.
      argnums: Positional arguments to differentiate, as for `jaxresid.inspect`.
      has_aux: Whether `fun` returns `(output, auxiliary data)`, as for `jaxresid.inspect`.
      mode: Whether `fun` is a loss or a program as it is, as for `jaxresid.inspect`.
      on: The place that the figures are for, as for `jaxresid.inspect`.
      mesh: The mesh that the program is split over, as for `jaxresid.inspect`.
      trips: How often while loops run whose number of trips the program decides, as for
        `jaxresid.inspect`.
      lifetimes: Also report from when until when each value is live, in each row; not for a CPU.

    Returns:
      A function of the arguments of `fun` that returns a `Comparison`.

    Raises:
      JaxresidError: As `jaxresid.inspect`, or because there is no such place.
    """
    question = Question(
        fun, argnums=argnums, has_aux=has_aux, mode=mode, on=on, mesh=mesh, trips=trips
    )
    if isinstance(policies, str):
        policies = (policies,)
    if isinstance(policies, Mapping):
        chosen = ChosenPolicies(tuple(policies.items()))
    else:
        written = chosen_policies([p for p in policies if isinstance(p, str)])
        given = ((description(p) or "None", p) for p in policies if not isinstance(p, str))
        chosen = replace(written, own=(*written.own, *given))

    def compared(*args: Any, **kwargs: Any) -> Comparison:
        found = subject(question.of(args, kwargs))
        leaves = jax_compat.import_jax().tree.leaves((args, kwargs)) if measure else ()
        settings = CompileSettings(cache=CompileCache(default_directory()))
        return comparison(
            found,
            at=at,
            policies=chosen,
            measure=MeasureOptions(dynamic_leaves(found, leaves), rounds) if measure else None,
            compile=settings if compile else None,
            limit_s=compile_time,
            lifetimes=lifetimes,
        )

    return compared


def dynamic_leaves(subject: Subject, leaves: Sequence[Any]) -> list[Any]:
    """Return those of a call's leaves that its trace takes as inputs, in their order."""
    call = subject.trace.arguments
    return [leaves[i] for i in call.dynamic]


def comparison(
    subject: Subject,
    *,
    at: str | None = None,
    policies: ChosenPolicies | None = None,
    measure: MeasureOptions | None = None,
    compile: CompileSettings | None = None,
    limit_s: float = COMPILE_SECONDS,
    progress: Progress | None = None,
    lifetimes: bool = False,
    words: tuple[str, ...] = (),
) -> Comparison:
    """Return the comparison of a traced function under several policies, as `compare` does.

    Args:
      subject: The traced function.
      at: Where the policy goes, as for `compare`.
      policies: The policies to try; None means all of JAX's.
      measure: How to time the variants; None means not to.
      compile: How to compile the variants for the subject's place; None means not to, unless
        peaks are not estimated there.
      limit_s: Seconds that all compiles may take together.
      progress: Called with a text that says what is being done.
      lifetimes: Whether the lifetimes of all values are to be in it.
      words: The words of the command line that ask about the same function, as `NextStep` has them.
    """
    if lifetimes:
        check_lifetimes(subject.place)
    policies = policies or ChosenPolicies()
    if at == SEGMENTS and (policies.own or policies.names):
        raise InputsError("segments are compared without policies; leave them out")
    if not subject.target.has_gradient:
        raise InputsError(without_gradient(subject.target))
    arguments = subject.trace.arguments
    paths = [arguments.paths[i] for i in arguments.dynamic]
    if measure is not None:
        leaf_recipes(measure.leaves, paths)  # refused before anything is traced again
    with gc_paused(), subject.tracing():
        variants = subject.variants()
        target = (
            loops_target(variants)
            if at == SEGMENTS
            else policy_target(variants.places(), at, subject.residuals)
        )
        if progress is not None:
            progress(Stage("tracing with each policy"))
        table = ComparisonTable(subject, variants, target, progress or (lambda _: None))
        table.add(NONE, target.choices(None))
        table.add(WRITTEN, {})
        for label, policy in policies.own:
            table.add(label, target.choices(Choice(policy)), policy)
        if at == SEGMENTS:
            for label, choices in cut_loops(variants, target):
                table.add(label, choices)
        else:
            for each in wanted(candidates(table.names()), policies.names):
                table.add(each.text, target.choices(Choice(each.policy)))
        drawn = table.lifetimes() if lifetimes else ()
    rows: Sequence[ComparisonRow] = table.rows
    warnings = (*subject.warnings, *remarks(variants))
    is_estimated = has_estimate(subject.place)
    if compile is None and not is_estimated:
        compile = CompileSettings(cache=CompileCache(default_directory()))
    if compile is not None:
        compiles = LimitedCompiles(subject.place, compile, limit_s=limit_s, progress=progress)
        rows = _compiled(rows, table, compiles)
        warnings += (*_late(rows, subject.place), *warnings_of(compile))
    if not is_estimated:
        rows = tuple(replace(row, peak_nbytes=row.xla_nbytes) for row in rows)
    rows = with_answers(_with_frontier(_ranked(rows)), subject.place_info.memory_nbytes)
    timed: Measurement | None = None
    if measure is not None:
        runs = [VariantToTime(label, v.trace.runnable()) for label, v in table.variants.items()]
        timed = measured(
            runs, NONE, measure.leaves, paths, rounds=measure.rounds, progress=progress
        )
        rows = tuple(
            replace(
                row,
                measured=timed.timings.get(row.policy),
                measure_error=timed.errors.get(row.policy),
            )
            for row in rows
        )
    return Comparison(
        target=subject.target,
        jax=subject.jax,
        place=subject.place_info,
        chip=table.chip.name if table.chip else None,
        at=target.at,
        places=tuple(place_text(place) for place in target.places),
        rows=rows,
        warnings=warnings,
        measured_on=timed.device if timed else None,
        mesh=subject.mesh,
        time_basis=table.time_basis,
        times_checked_on=checked_on(),
        lifetimes=drawn,
        next_step=_next_step(rows, subject.place, words),
    )


def _next_step(
    rows: Sequence[ComparisonRow], place: Place, words: tuple[str, ...]
) -> NextStep | None:
    """Return what to do where no row is known to fit; None where one is, or nothing is known."""
    first = next((row for row in rows if row.suggested), None)
    if first is None or first.answer == "fits":
        return None
    by_xla = bool(first.compiled)
    if first.answer == "too close" and not by_xla:
        return replace(ask_compiler("compare", why_unavailable(place)), words=words)
    message = "look for a plan, which weighs single values and loops in segments"
    return NextStep("plan", message, words=words, compiles=by_xla)


def _compiled(
    rows: Sequence[ComparisonRow], table: ComparisonTable, compiles: LimitedCompiles
) -> tuple[ComparisonRow, ...]:
    """Return the rows with what XLA says of their variants, where it was asked in time."""
    variants = [(i, table.variants[row.policy]) for i, row in enumerate(rows) if row.error is None]
    found = list(rows)
    with gc_paused(), table.subject.tracing():
        programs = [
            PolicyProgram(rows[i].policy, v.trace, v.program, v.residuals()) for i, v in variants
        ]
    for (i, _), compiled in zip(variants, compiles.compiled(programs), strict=True):
        if compiled is not None:
            found[i] = replace(found[i], compiled=(compiled,))
    return tuple(found)


def _late(rows: Sequence[ComparisonRow], place: Place) -> tuple[str, ...]:
    """Return warnings that name the variants that XLA was not asked all about in time, if any."""
    named: dict[str, list[str]] = {}
    for row in rows:
        if row.error is None and not row.compiled:
            named.setdefault(", as the time was used up", []).append(row.policy)
        for compiled in row.compiled:
            if compiled.cublas_error is not None and not compiled.fits:
                reason = f" with cuBLAS's matmuls: {compiled.cublas_error}"
                named.setdefault(reason, []).append(row.policy)
    return tuple(
        f"not compiled for {place.text}{reason}: {', '.join(which)}"
        for reason, which in named.items()
    )


def _ranked(rows: Sequence[ComparisonRow]) -> tuple[ComparisonRow, ...]:
    """Return the rows with those marked whose rank by peak XLA changes.

    They are compared by XLA's peaks where all have one.
    """
    peaks = {
        i: (row.peak_nbytes, row.xla_nbytes)
        for i, row in enumerate(rows)
        if row.peak_nbytes is not None and row.xla_nbytes is not None
    }
    estimates, figures = ([pair[k] for pair in peaks.values()] for k in (0, 1))
    by_xla = all(row.xla_nbytes is not None for row in rows if row.error is None)
    return tuple(
        replace(
            row,
            by="xla" if by_xla and row.xla_nbytes is not None else "estimate",
            rank_changed=i in peaks
            and _ranks(peaks[i][0], estimates).isdisjoint(_ranks(peaks[i][1], figures)),
        )
        for i, row in enumerate(rows)
    )


def _ranks(nbytes: int, others: Sequence[int]) -> frozenset[int]:
    """Return the ranks that a peak may be said to have: several where it is equal to others."""
    lower = sum(other < nbytes for other in others)
    return frozenset(range(lower, lower + others.count(nbytes)))


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
        self._profile = subject.profile
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
        """Return the lifetimes of the values as written, then those of each other row."""
        others = [(label, each) for label, each in self.variants.items() if label != WRITTEN]
        found = [self.subject.lifetimes()]
        for label, variant in others:
            self._progress(f"tracing with {label}")
            found.append(self.subject.lifetimes_of(variant.program, variant.trace, label))
        return tuple(found)

    def names(self) -> tuple[str, ...]:
        """Return the checkpoint_names at the places, in program order."""
        found = dict.fromkeys(
            str(jax_compat.params(eqn)["name"])
            for place in self._target.places
            for eqn in eqns_in(self._factory.body(place))
            if jax_compat.primitive_name(eqn) == "name"
        )
        return tuple(found)

    def add(self, label: str, choices: Choices, policy: Any = None) -> None:
        """Trace a variant and add its row; what goes wrong is the row's error.

        Args:
          label: The name of the row.
          choices: What to do at each place.
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
        """Return whether a policy offloads anything."""
        chosen = [(place, c.policy) for place, made in choices.items() for c in made[:1] if c]
        if label == WRITTEN:
            sites = [p for p in self._factory.places() if p.kind == "checkpoint"]
            chosen = [(place, place.policy) for place in sites]
        return any(
            answers(policy, eqns_in(self._factory.body(place)), str(place)).offloads
            for place, policy in chosen
        )

    def _seconds(self, variant: Variant) -> Seconds | None:
        """Return the estimated time of a variant; None where no figures of the chip are known."""
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


def _with_frontier(rows: Sequence[ComparisonRow]) -> tuple[ComparisonRow, ...]:
    """Return the rows with the Pareto-optimal ones and the knee marked.

    Rows that keep bytes in host memory do not take part.
    """
    points = {
        i: (float(row.compared_nbytes), float(row.recompute_flops))
        for i, row in enumerate(rows)
        if row.compared_nbytes is not None
        and row.recompute_flops is not None
        and not row.host_nbytes
    }
    optimal = frontier.pareto(list(points.values()))
    best = {i for i, is_optimal in zip(points, optimal, strict=True) if is_optimal}
    at = frontier.knee([points[i] for i in best])
    first = next((i for i in sorted(best) if points[i] == at), None)
    return tuple(replace(row, pareto=i in best, knee=i == first) for i, row in enumerate(rows))


__all__ = [
    "MeasureOptions",
    "PolicyCandidate",
    "compare",
    "comparison",
    "dynamic_leaves",
    "place_text",
]
