"""`jaxresid check`: report the verdicts and other findings of a traced function as violations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxresid.advice.check.budgets import BUDGET_CODES, BudgetFinding, budget_findings
from jaxresid.advice.check.microbatches import NAME as MICROBATCHES
from jaxresid.advice.check.microbatches import microbatch_proposals
from jaxresid.advice.check.source_lines import FindingFile, FindingPlacer
from jaxresid.advice.check.verdict_rules import verdict_finding
from jaxresid.advice.compile.ahead_of_time import CompileSettings
from jaxresid.advice.compile.changes import judged_alone
from jaxresid.advice.compile.limited import COMPILE_SECONDS, LimitedCompiles
from jaxresid.advice.compile.report import confirmed
from jaxresid.base.crashes import crash_warnings
from jaxresid.base.errors import InputsError
from jaxresid.base.option_types import Mode
from jaxresid.base.text.units import parse_budget
from jaxresid.base.violations import CRASHED_FINDING, Linted, Violation
from jaxresid.inspector.call.question import Question, in_two_calls
from jaxresid.inspector.findings.collect import collected
from jaxresid.inspector.memory.compilers import has_estimate
from jaxresid.inspector.report import inspection
from jaxresid.inspector.subject.base import Inspection
from jaxresid.linter.rules import KNOWN
from jaxresid.linter.run.files import LintRun
from jaxresid.linter.text import suppress
from jaxresid.results import Finding, Limits, Report
from jaxresid.settings.config import Options, load, matches
from jaxresid.xla.places import Place
from jaxresid.xla.processes.cache import CompileCache, default_directory


def _within_limits(report: Report) -> tuple[BudgetFinding, ...]:
    return ()


@in_two_calls
def check(
    fun: Callable[..., Any],
    *,
    argnums: int | Sequence[int] | None = None,
    has_aux: bool = False,
    mode: Mode = "auto",
    on: str | Place | None = None,
    mesh: Any = None,
    compile: bool = False,
    compile_time: float = COMPILE_SECONDS,
    max_peak: str | None = None,
    max_kept: str | None = None,
) -> Callable[..., tuple[Violation, ...]]:
    """Return a function that checks the checkpoints of `fun` and the residuals that it keeps.

    Use it as `jaxresid.check(fun)(*args, **kwargs)`.

    The violations are the verdicts on the checkpoints and the other findings that a trace allows,
    with their figures in `measured`; keys that end in `nbytes` hold bytes. The configuration
    nearest to each file and the comments in it apply as on the command line. A finding that could
    not be looked for, because of a bug in jaxresid, is a violation with the code `crashed-finding`.

    Args:
      fun: The function to check, as for `jaxresid.inspect`.
      argnums: Positional arguments to differentiate, as for `jaxresid.inspect`.
      has_aux: Whether `fun` returns `(output, auxiliary data)`, as for `jaxresid.inspect`.
      mode: Whether `fun` is a loss or a program as it is, as for `jaxresid.inspect`.
      on: The place that the figures are for, as for `jaxresid.inspect`.
      mesh: The mesh that the program is split over, as for `jaxresid.inspect`.
      compile: Whether the verdicts are to be XLA's, and the changes that findings propose confirmed
        or refuted by it, as for `jaxresid.inspect`.
      compile_time: Seconds that compiling may take, as for `jaxresid.inspect`.
      max_peak: The bytes that the peak may have, such as `12GiB`. The estimate decides, or XLA's
        figure with `compile` and on a CPU.
      max_kept: The bytes that the backward pass may keep in device memory, arguments aside.

    Returns:
      A function of the arguments of `fun` that returns a tuple of `Violation`s.

    Raises:
      JaxresidError: As `jaxresid.inspect`, or because the configuration is wrong.
    """
    question = Question(fun, argnums=argnums, has_aux=has_aux, mode=mode, on=on, mesh=mesh)
    limits = Limits(_limit("max_peak", max_peak), _limit("max_kept", max_kept))

    def checked_in(*args: Any, **kwargs: Any) -> tuple[Violation, ...]:
        run = LintRun(load(Path(), Options()), nearest=Options())
        found = inspection(question.of(args, kwargs))
        unasked = max_peak is not None and not has_estimate(found.subject.place)
        settings = CompileSettings(cache=CompileCache(default_directory()))
        compiles = LimitedCompiles(found.subject.place, settings, limit_s=compile_time)
        if compile or unasked:
            found = confirmed(found, compiles, checkpoints=compile)
        results = checked(
            found,
            run,
            lambda report: budget_findings(report, limits),
            limits.peak_nbytes,
            compiles if compile else None,
        )
        return tuple(v for linted in results for v in linted.violations)

    return checked_in


def _limit(name: str, text: str | None) -> int | None:
    try:
        return None if text is None else parse_budget(text)
    except ValueError as e:
        raise InputsError(f"{name}: {e}") from None


def checked(
    inspection: Inspection,
    run: LintRun,
    over: Callable[[Report], Iterable[BudgetFinding]] = _within_limits,
    limit_nbytes: int | None = None,
    compiles: LimitedCompiles | None = None,
) -> tuple[Linted, ...]:
    """Return the violations of an inspected function by file, sorted by path.

    Args:
      inspection: The inspected function.
      run: The configuration of the run, which may say that comments silence nothing.
      over: A function that returns what is said of the limits that the program has.
      limit_nbytes: The bytes that the peak may have; None: those of the place.
      compiles: The compiles that the program and its changes were compiled in, for what is found
        here; None where it was not compiled.

    Returns:
      One `Linted` for each file with violations.

    Raises:
      ConfigError: The configuration of a file is not understood.
      InputsError: The function is a training step that does nothing with its gradients, or a
        figure with a limit is not known.
    """
    if inspection.subject.is_dead:
        raise InputsError(inspection.report.warnings[-1])
    report = inspection.report
    placer = FindingPlacer(inspection.subject.fun, report.target.name, inspection.subject.frames)
    measured = {"on": report.place.name, "profile": report.place.profile, "jax": report.jax.version}
    # Why a policy matches nothing says more than that it does.
    explained = {f.source.location for f in report.findings if f.name == "defeated-policy"}
    reported = [
        f
        for c in report.checkpoints
        if (f := verdict_finding(c)) is not None
        and not (f.name == "unmatched-policy" and f.source.location in explained)
    ]
    reported += [f for c in report.checkpoints for f in c.findings]
    reported += report.findings
    crashes = list(inspection.crashes)

    def in_microbatches() -> Iterator[Finding]:
        for proposal in microbatch_proposals(inspection, limit_nbytes):
            finding = proposal.finding
            yield finding if compiles is None else judged_alone(inspection, proposal, compiles)

    reported += collected([(MICROBATCHES, in_microbatches)], crashes)
    placed = [placer.violation(finding, measured) for finding in reported]
    placed += [placer.crash(warning) for warning in crash_warnings(crashes)]
    for each in over(report):
        file, violation = placer.violation(each.finding, measured)
        placed.append((file, violation if each.fails else replace(violation, severity="info")))
    by_file: dict[Path, tuple[FindingFile, list[Violation]]] = {}
    for file, violation in placed:
        by_file.setdefault(file.absolute, (file, []))[1].append(violation)
    results = [_linted(file, violations, run) for file, violations in by_file.values()]
    return tuple(sorted((r for r in results if r.violations), key=lambda r: r.path))


def _linted(file: FindingFile, violations: Sequence[Violation], run: LintRun) -> Linted:
    """Return the violations of one file that its configuration selects and no comment silences.

    A limit is of the whole program: what is above one needs not be selected, and no comment at
    the line where it happens to be reported silences it.
    """
    config = run.config_in(file.absolute.parent)
    config.validate(KNOWN)
    ignored = config.ignored_in(file.absolute)
    whole = replace(config, selections=tuple(s._replace(select=None) for s in config.selections))
    # Infos too are on: unlike the linter's they come with figures.
    wanted = {
        code
        for code, name in KNOWN.items()
        if (whole if code in BUDGET_CODES else config).enabled(code, name, True)
        and not any(matches(s, code, name) for s in ignored)
    }
    left = [v for v in violations if v.code in wanted or v.code == CRASHED_FINDING]
    document = file.document
    if document is not None and not run.ignore_noqa:
        # Which suppressions are unused is for the linter to say: one target is a part of its files.
        kept, _ = suppress.apply(
            [v for v in left if v.code not in (*BUDGET_CODES, CRASHED_FINDING)],
            suppress.parse(document.source.text),
            enabled=lambda _: False,
            known=KNOWN,
            path=file.path,
        )
        left = [*kept, *(v for v in left if v.code in (*BUDGET_CODES, CRASHED_FINDING))]
    left.sort(key=lambda v: v.sort_key)
    return Linted(file.path, tuple(left), {} if document is None else document.lines(left))
