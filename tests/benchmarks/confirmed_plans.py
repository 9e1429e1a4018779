"""Plans that XLA confirmed, against XLA: does the code fit, and is nothing cheaper there?

    python -m tests.benchmarks.confirmed_plans --on gpu:h100 [--only REGEX] [--most 30] [--every]

Plans for programs of `accuracy/corpus.py` (random models, the zoo, models of libraries) that have
no checkpoint, without those of the test set, three budgets each: a quarter, half and three quarters
of the way from the lowest peak to that without any checkpoint, as estimated. The code of each plan
is compiled as it would be written, apart from the variant that the plan was confirmed with. With
`--every` all variants that the search traced are compiled too, and the recomputed FLOPs are held
against the least of those that fit, in shares of the program's FLOPs; that takes minutes to hours.
Needs the compiler of the place; nothing runs. Exits 1 if something that is said to fit does not.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jaxresid.advice.compile.ahead_of_time import (
    CompileSettings,
    PolicyProgram,
    program_as_written,
)
from jaxresid.advice.compile.limited import LimitedCompiles
from jaxresid.advice.plan import confirmation
from jaxresid.advice.plan.live_patch import UnpatchableError, patched
from jaxresid.advice.plan.plan import Planning
from jaxresid.advice.plan.verification import in_process_check
from jaxresid.advice.timing.chips import chip_of
from jaxresid.base.errors import JaxresidError
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.jaxpr.bindings import intercept_bind
from jaxresid.inspector.report import subject
from jaxresid.inspector.subject.base import gc_paused
from jaxresid.results import Plan
from jaxresid.xla.places import parse_place, why_unavailable
from jaxresid.xla.processes.cache import CompileCache, default_directory
from tests.benchmarks.accuracy import corpus, estimates
from tests.plans import drafted

SHARES = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class Case:
    """A plan for one budget.

    Attributes:
      plan: the plan.
      code_nbytes: what XLA says that its code needs; None where it cannot be traced here, or is
        left to the user's hands.
      least: the least that a variant recomputes that fits by XLA, as a share; None: not asked, or
        none fits.
      seconds: what planning took.
    """

    plan: Plan
    code_nbytes: int | None
    least: float | None
    seconds: float

    @property
    def is_rejected(self) -> bool:
        """Whether it is said to fit, and its code does not."""
        return self.plan.fits and (self.code_nbytes or 0) > self.plan.budget_nbytes


def cases(program: corpus.Program, on: str, limit_s: float, *, every: bool) -> Iterator[Case]:
    """Yield the plans for one program."""
    place = parse_place(on)
    settings = CompileSettings(cache=CompileCache(default_directory()))
    fun, args = program.build()
    question = Question(fun, args, on=place, **program.options)
    found = subject(question)
    low = drafted(found, 1)[0]
    for share in SHARES:
        budget = int(low.lowest_nbytes + (low.plain_nbytes - low.lowest_nbytes) * share)
        start = time.monotonic()
        compiles = confirmation.compiles_for(place, settings, limit_s=limit_s)
        check = in_process_check(found, question)
        plan, edits = drafted(found, budget, check=check, compiles=compiles)
        seconds = time.monotonic() - start
        least = None
        if every:
            least = least_that_fits(found, budget, LimitedCompiles(place, settings, limit_s=1e9))
        # What is left to the user's hands is not in the edits.
        code = None if plan.unwritten else code_nbytes(found, question, edits, settings)
        yield Case(plan, code, least, seconds)


def code_nbytes(found, question, edits, settings: CompileSettings) -> int | None:
    """Return what XLA says that edited code needs; None where it cannot be traced here."""
    try:
        with patched(edits, question.fun) as new, intercept_bind({}):
            written = subject(replace(question, fun=new, mode=found.target.mode))
            compiles = LimitedCompiles(found.place, settings)
            (row,) = compiles.compiled([program_as_written(written)])
    except (UnpatchableError, JaxresidError):
        return None
    return row.peak_nbytes if row is not None else None


def least_that_fits(found, budget: int, compiles: LimitedCompiles) -> float | None:
    """Return the least share that a variant recomputes that fits by XLA; None where none does."""
    with gc_paused(), found.tracing():
        planning = Planning(found, budget, chip_of(found.place), False, lambda text: None)
        planning.search.run()
        for menu in planning.search.menus:
            for option in menu.options:
                planning.search.trial({menu.place: option})
        tried = planning.search.tried
        programs = [
            PolicyProgram(
                confirmation.description(t.combination), t.variant.trace, t.variant.program
            )
            for t in tried
        ]
        rows = compiles.compiled(programs)
    fitting = [
        t.cost
        for t, row in zip(tried, rows, strict=True)
        if row is not None and row.peak_nbytes is not None and row.peak_nbytes <= budget
    ]
    return min(fitting) / planning.plain.cost.flops if fitting else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", required=True, help="a place: gpu:h100, tpu:v5e")
    parser.add_argument("--only", default="", metavar="REGEX", help="programs whose name has this")
    parser.add_argument("--most", type=int, default=30, help="how many programs")
    parser.add_argument("--every", action="store_true", help="compile every variant, too")
    parser.add_argument("--compile-time", type=float, default=120.0, help="seconds for one plan")
    options = parser.parse_args()
    if (reason := why_unavailable(parse_place(options.on))) is not None:
        sys.exit(reason)
    programs = [
        p
        for p in corpus.PROGRAMS
        if not p.is_checkpointed and p.set != "test" and re.search(options.only, p.name)
    ]
    print(f"on {options.on}")
    print(
        f"{'program':28} {'budget':>10}  {'answer':12} {'by XLA':>10} {'its code':>10}"
        f" {'compiles':>8} {'recompute':>9} {'least':>7} {'s':>6}"
    )
    made: list[Case] = []
    for program in programs[: options.most]:
        try:
            for case in cases(program, options.on, options.compile_time, every=options.every):
                made.append(case)
                print(text(program.name, case), flush=True)
        except JaxresidError as e:
            print(f"{program.name:28} {' '.join(str(e).split())}", flush=True)
        estimates.forget()
    rejected = [case for case in made if case.is_rejected]
    held = [case for case in made if case.least is not None]
    compiled = sum(case.code_nbytes is not None for case in made)
    worse = [case for case in held if excess(case) > 0.01]
    count = statistics.median([case.plan.compiles for case in made] or [0])
    print(
        f"{len(made)} plans: {sum(case.plan.fits for case in made)} fit,"
        f" {sum(case.plan.confirmed for case in made)} confirmed, the code of {compiled} compiled,"
        f" {len(rejected)} that XLA rejects"
    )
    print(f"median number of compiles {count:g}")
    if held:
        print(f"{len(worse)} of {len(held)} recompute over 1 % more than the best")
    sys.exit(1 if rejected else 0)


def excess(case: Case) -> float:
    """Return what a plan recomputes more than the best, as a share of the program's FLOPs."""
    if not case.plan.fits:
        return 1.0
    return case.plan.recompute_fraction - (case.least or 0.0)


def text(name: str, case: Case) -> str:
    """Return the line of a case."""
    plan = case.plan
    xla = format_bytes(plan.peak_nbytes) if plan.confirmed else "-"
    written = "-" if case.code_nbytes is None else format_bytes(case.code_nbytes)
    least = "-" if case.least is None else f"{case.least:.2%}"
    mark = "  REJECTED" if case.is_rejected else ""
    return (
        f"{name:28} {format_bytes(plan.budget_nbytes):>10}  {plan.answer:12} {xla:>10}"
        f" {written:>10} {plan.compiles:8} {plan.recompute_fraction:9.2%} {least:>7}"
        f" {case.seconds:6.1f}{mark}"
    )


if __name__ == "__main__":
    main()
