"""`jaxresid check`: report the verdicts and other findings of a traced function as violations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxresid.advice.check.source_lines import FindingFile, FindingPlacer
from jaxresid.advice.check.verdict_rules import verdict_finding
from jaxresid.advice.compile.ahead_of_time import CompileSettings
from jaxresid.advice.compile.limited import COMPILE_SECONDS
from jaxresid.advice.compile.report import confirmed
from jaxresid.errors import InputsError
from jaxresid.inspector.call.question import Question, in_two_calls
from jaxresid.inspector.report import inspection
from jaxresid.inspector.subject.base import Inspection
from jaxresid.linter.rules import KNOWN
from jaxresid.linter.run.files import LintRun
from jaxresid.linter.text import suppress
from jaxresid.option_types import Mode
from jaxresid.settings.config import Options, load, matches
from jaxresid.violations import Linted, Violation
from jaxresid.xla.places import Place
from jaxresid.xla.processes.cache import CompileCache, default_directory


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
) -> Callable[..., tuple[Violation, ...]]:
    """Return a function that checks the checkpoints of `fun` and the residuals that it keeps.

    Use it as `jaxresid.check(fun)(*args, **kwargs)`.

    The violations are the verdicts on the checkpoints and the other findings that a trace allows,
    with their figures in `measured`; keys that end in `nbytes` hold bytes. The configuration
    nearest to each file and the comments in it apply as on the command line.

    Args:
      fun: The function to check, as for `jaxresid.inspect`.
      argnums: Positional arguments to differentiate, as for `jaxresid.inspect`.
      has_aux: Whether `fun` returns `(output, auxiliary data)`, as for `jaxresid.inspect`.
      mode: Whether `fun` is a function or a training step, as for `jaxresid.inspect`.
      on: The place that the figures are for, as for `jaxresid.inspect`.
      mesh: The mesh that the program is split over, as for `jaxresid.inspect`.
      compile: Whether the verdicts are to be XLA's, as for `jaxresid.inspect`.
      compile_time: Seconds that compiling may take, as for `jaxresid.inspect`.

    Returns:
      A function of the arguments of `fun` that returns a tuple of `Violation`s.

    Raises:
      JaxresidError: As `jaxresid.inspect`, or because the configuration is wrong.
    """
    question = Question(fun, argnums=argnums, has_aux=has_aux, mode=mode, on=on, mesh=mesh)

    def checked_in(*args: Any, **kwargs: Any) -> tuple[Violation, ...]:
        run = LintRun(load(Path(), Options()), nearest=Options())
        found = inspection(question.of(args, kwargs))
        if compile:
            settings = CompileSettings(cache=CompileCache(default_directory()))
            found = confirmed(found, settings, limit_s=compile_time)
        return tuple(v for linted in checked(found, run) for v in linted.violations)

    return checked_in


def checked(inspection: Inspection, run: LintRun) -> tuple[Linted, ...]:
    """Return the violations of an inspected function by file, sorted by path.

    Args:
      inspection: The inspected function.
      run: The configuration of the run, which may say that comments silence nothing.

    Returns:
      One `Linted` for each file with violations.

    Raises:
      ConfigError: The configuration of a file is not understood.
      InputsError: The function is a training step that does nothing with its gradients.
    """
    if inspection.subject.is_dead:
        raise InputsError(inspection.report.warnings[-1])
    report = inspection.report
    placer = FindingPlacer(inspection.subject.fun, report.target.name, inspection.subject.frames)
    measured = {"on": report.place.name, "profile": report.place.profile, "jax": report.jax.version}
    reported = [f for c in report.checkpoints if (f := verdict_finding(c)) is not None]
    reported += inspection.subject.findings(report)
    by_file: dict[Path, tuple[FindingFile, list[Violation]]] = {}
    for finding in reported:
        file, violation = placer.violation(finding, measured)
        by_file.setdefault(file.absolute, (file, []))[1].append(violation)
    results = [_linted(file, violations, run) for file, violations in by_file.values()]
    return tuple(sorted((r for r in results if r.violations), key=lambda r: r.path))


def _linted(file: FindingFile, violations: Sequence[Violation], run: LintRun) -> Linted:
    """Return the violations of one file that its configuration selects and no comment silences."""
    config = run.config_in(file.absolute.parent)
    config.validate(KNOWN)
    ignored = config.ignored_in(file.absolute)
    # Infos too are on: unlike the linter's they come with figures.
    wanted = {
        code
        for code, name in KNOWN.items()
        if config.enabled(code, name, True) and not any(matches(s, code, name) for s in ignored)
    }
    left = sorted((v for v in violations if v.code in wanted), key=lambda v: v.sort_key)
    document = file.document
    if document is None:
        return Linted(file.path, tuple(left))
    if not run.ignore_noqa:
        # Which suppressions are unused is for the linter to say: one target is a part of its files.
        kept, _ = suppress.apply(
            left,
            suppress.parse(document.source.text),
            enabled=lambda _: False,
            known=KNOWN,
            path=file.path,
        )
        left = list(kept)
    return Linted(file.path, tuple(left), document.lines(left))
