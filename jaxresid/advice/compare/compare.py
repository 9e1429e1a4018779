"""`jaxresid compare`: compare one function under several policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxresid import jax_compat
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
    policy_target,
    remarks,
)
from jaxresid.advice.compare.ranking import ranked, with_frontier
from jaxresid.advice.compare.table import ComparisonTable, place_text
from jaxresid.advice.compile.ahead_of_time import CompileSettings, cached_settings, warnings_of
from jaxresid.advice.compile.limited import COMPILE_SECONDS, LimitedCompiles
from jaxresid.advice.compile.rows import PolicyProgram
from jaxresid.advice.timing.intervals import checked_on
from jaxresid.advice.timing.measure.random_inputs import leaf_recipes
from jaxresid.advice.timing.measure.rounds import Measurement, VariantToTime, measured
from jaxresid.base.errors import InputsError
from jaxresid.base.option_types import Mode
from jaxresid.base.progress import Progress, Stage
from jaxresid.inspector.call.question import Question, in_two_calls
from jaxresid.inspector.checkpoints.policies import description
from jaxresid.inspector.memory.compilers import check_lifetimes, has_estimate
from jaxresid.inspector.next_step import ask_compiler
from jaxresid.inspector.report import subject
from jaxresid.inspector.subject.base import Subject, gc_paused, without_gradient
from jaxresid.inspector.variants.candidates import candidates
from jaxresid.inspector.variants.choices import Choice
from jaxresid.results import Comparison, ComparisonRow, NextStep, with_answers
from jaxresid.xla.places import Place, why_unavailable


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How to time the variants; `leaves` are concrete where the user gave values."""

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
      argnums, has_aux, mode, on, mesh, trips: As for `jaxresid.inspect`.
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
        own = ((description(p) or "None", p) for p in policies if not isinstance(p, str))
        chosen = replace(written, own=(*written.own, *own))

    def compared(*args: Any, **kwargs: Any) -> Comparison:
        traced = subject(question.of(args, kwargs))
        leaves = jax_compat.import_jax().tree.leaves((args, kwargs)) if measure else ()
        settings = cached_settings()
        return comparison(
            traced,
            at=at,
            policies=chosen,
            measure=MeasureOptions(dynamic_leaves(traced, leaves), rounds) if measure else None,
            compile=settings if compile else None,
            limit_s=compile_time,
            lifetimes=lifetimes,
        )

    return compared


def dynamic_leaves(subject: Subject, leaves: Sequence[Any]) -> list[Any]:
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
      policies: The policies to try; None means all of JAX's.
      measure: How to time the variants; None means not to.
      compile: How to compile the variants for the subject's place; None means not to, unless
        peaks are not estimated there.
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
            for candidate in wanted(candidates(table.names()), policies.names):
                table.add(candidate.text, target.choices(Choice(candidate.policy)))
        drawn = table.lifetimes() if lifetimes else ()
    rows: Sequence[ComparisonRow] = table.rows
    warnings = (*subject.warnings, *remarks(variants))
    is_estimated = has_estimate(subject.place)
    if compile is None and not is_estimated:
        compile = cached_settings()
    if compile is not None:
        compiles = LimitedCompiles(subject.place, compile, limit_s=limit_s, progress=progress)
        rows = _compiled(rows, table, compiles)
        warnings += (*_late(rows, subject.place), *warnings_of(compile))
    if not is_estimated:
        rows = tuple(replace(row, peak_nbytes=row.xla_nbytes) for row in rows)
    rows = with_answers(with_frontier(ranked(rows)), subject.place_info.memory_nbytes)
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
    variants = [(i, table.variants[row.policy]) for i, row in enumerate(rows) if row.error is None]
    compiled_rows = list(rows)
    with gc_paused(), table.subject.tracing():
        programs = [
            PolicyProgram(rows[i].policy, v.trace, v.program, v.residuals()) for i, v in variants
        ]
    for (i, _), compiled in zip(variants, compiles.compiled(programs), strict=True):
        if compiled is not None:
            compiled_rows[i] = replace(compiled_rows[i], compiled=(compiled,))
    return tuple(compiled_rows)


def _late(rows: Sequence[ComparisonRow], place: Place) -> tuple[str, ...]:
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
