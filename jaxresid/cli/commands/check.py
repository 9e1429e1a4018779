"""`jaxresid check`: print the traced findings of a function."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from jaxresid.base.crashes import crash_warnings
from jaxresid.base.errors import JaxresidError
from jaxresid.base.progress import Progress, Stage
from jaxresid.base.violations import CRASHED_FINDING
from jaxresid.cli.help import command
from jaxresid.cli.keep_result import keep_result
from jaxresid.cli.main import EXIT_FAILED, showing_progress, tell
from jaxresid.cli.options.baselines import (
    GrowingTarget,
    check_growth,
    earlier_of,
    lockfile,
    updated,
)
from jaxresid.cli.options.compiling import (
    CompilingOptions,
    compile_options,
    limit_s,
    print_errors,
    settings,
)
from jaxresid.cli.options.inputs import (
    own_options,
    target_options,
    trips_option,
)
from jaxresid.cli.options.limits import limit_options, taken_growth, taken_limits
from jaxresid.cli.options.named_targets import every_target, optional_target
from jaxresid.cli.options.places import placed
from jaxresid.cli.options.request import Request
from jaxresid.cli.options.words import typed_arguments
from jaxresid.cli.resolve import inspected, provide_devices
from jaxresid.cli.show_findings import (
    Display,
    check_combination,
    check_statistics,
    divided,
    selecting_options,
    show,
    showing_options,
    with_format,
)
from jaxresid.linter.run.files import LintRun
from jaxresid.render.report.heading import question
from jaxresid.render.style.words import place_text
from jaxresid.settings.config import load

if TYPE_CHECKING:
    from jaxresid.advice.check.growth import Earlier
    from jaxresid.base.violations import Linted
    from jaxresid.inspector.subject.base import Inspection
    from jaxresid.results import Limits, Report


class CheckTarget(NamedTuple):
    """A target to check, what it may take, and its options as they were typed."""

    request: Request
    limits: Limits
    typed: tuple[str, ...]

    @property
    def growing(self) -> GrowingTarget:
        """The target as one whose growth is held."""
        request = self.request
        name = request.name or request.target
        # One of several sizes; else the size is that of the baseline's own table.
        batch = [f"--batch={request.batch}"] * (" " in name)
        arguments = (*self.typed, *batch, *(f"--on={place}" for place in request.on))
        return GrowingTarget(request.reference, name.partition(" ")[0], arguments)


class CheckedTarget(NamedTuple):
    """A target as it was inspected, and its findings by file."""

    name: str
    inspection: Inspection
    results: tuple[Linted, ...]


@command(
    examples=(
        ("findings at the lines they are about", "jaxresid check train.py:loss"),
        ("fail where the peak is too high", "jaxresid check train.py:loss --max-peak 12GiB"),
        ("in a workflow, with all targets of pyproject.toml", "jaxresid check --format github"),
    )
)
@optional_target
@target_options
@trips_option
@limit_options
@selecting_options
@showing_options
@compile_options
def check(
    request: Request | None, compile_: bool, compiling: CompilingOptions, **values: Any
) -> int:
    """Find checkpoints and residuals of TARGET that do not pay off, and hold it to its limits.

    TARGET is module:function, path/to/file.py:function or a name from pyproject.toml; without one
    every target of pyproject.toml is checked. They are traced, not run. The findings are the
    linter's and those that only a trace can show (JXR8..), each with its figures, at the line it is
    about. The linter's configuration and comments silence them too, but infos are shown by default,
    and what is over --max-peak or --max-kept is always a finding. With --compile TARGET is compiled
    for the place of --on, also without each of the ten checkpoints that drop most, and the verdicts
    on these are XLA's; and with each change that a finding proposes, made in the trace, which XLA
    confirms or refutes. Exits 0 if there are only infos, 1 if there are findings, 2 if something
    went wrong.
    """
    since = time.time()
    limits, growth = taken_limits(values), taken_growth(values)
    options, others = divided(values)
    display = Display(**others)
    check_combination(display)
    config = load(Path(), options, config_file=display.config, isolated=display.isolated)
    config = with_format(config, display)
    run = LintRun(config, nearest=display.overriding(options), ignore_noqa=display.ignore_noqa)
    run.entries(config)  # refuses unknown codes before anything is traced
    check_statistics(display, config)
    is_one = request is not None
    if request is not None:
        targets = [CheckTarget(request, limits, _typed(click.get_current_context()))]
    else:
        targets = _all_targets()
    growing = {it.request.reference for it in targets if it.limits.growth is not None}
    check_growth(growth, grows=bool(growing))
    lock = lockfile(growth, display.config, isolated=display.isolated)
    targets = [it._replace(request=placed(it.request, compiles=compile_)[0]) for it in targets]
    provide_devices([mesh for it in targets for mesh in it.request.mesh])
    checked: list[CheckedTarget] = []
    failed = False
    baselines: Mapping[str, Earlier] = {}
    with showing_progress(f"tracing {targets[0].request.reference}", quiet=display.quiet) as say:
        if growing and not growth.update:
            limited = [it.growing for it in targets if it.request.reference in growing]
            baselines = earlier_of(growth, lock, limited, compile_, say)
        for target in targets:
            name = target.request.reference
            say(Stage(f"tracing {name}"))
            try:
                one = _checked(target, baselines.get(name), lock, run, compile_, compiling, say)
                checked.append(one)
                findings = [v for linted in one.results for v in linted.violations]
                report = one.inspection.report
                keep_result("check", target.request, report, since=since, findings=findings)
            except JaxresidError as e:
                if is_one:
                    raise
                tell(f"jaxresid: error: {name}: {e}")
                failed = True
    if not display.quiet:
        for one in checked:
            _tell_remarks(one, "" if is_one else f"{one.name}: ")
    if is_one:
        results = checked[0].results
    else:
        from jaxresid.advice.check.merged import merged

        results = merged((one.name, one.results) for one in checked)
    code = show(display, config, results)
    failed |= any(v.code == CRASHED_FINDING for linted in results for v in linted.violations)
    for one in checked:
        failed |= print_errors(one.inspection.report.compiled)
    if growth.update and failed:
        tell(f"jaxresid: {lock}: not written, as not everything could be checked")
    elif growth.update:
        _write_lockfile(lock, checked, is_one=is_one, quiet=display.quiet)
    if config.output_format == "text" and not display.quiet:
        for one in checked:
            report = one.inspection.report
            whose = "figures" if is_one else f"figures of {one.name}"
            place = report.place
            tell(
                f"jaxresid: {whose} are for {place.name}, {place.origin}; {question(report.target)}"
            )
    return EXIT_FAILED if failed else code


def _all_targets() -> list[CheckTarget]:
    """Return the targets of the configuration; one with several batch sizes is one for each."""
    targets = []
    for context in every_target(click.get_current_context()):
        request, others = own_options(context, context.params)
        assert request is not None
        limits, typed = taken_limits(others), _typed(context)
        for size in request.batch.listed or (None,):
            name, words, sizes = request.name, request.words, request.batch.at(size)
            if len(request.batch.listed) > 1:
                name, words = f"{name} --batch {sizes}", (*words, "--batch", str(sizes))
            one = replace(request, batch=sizes, name=name, words=words)
            targets.append(CheckTarget(one, limits, typed))
    return targets


def _checked(
    target: CheckTarget,
    earlier: Earlier | None,
    lock: Path,
    run: LintRun,
    compile_: bool,
    compiling: CompilingOptions,
    say: Progress,
) -> CheckedTarget:
    """Inspect a target, by the compiler too where a limit needs a peak that is not estimated."""
    inspection = inspected(target.request)
    limits, reference = target.limits, target.request.reference
    needs_peak = limits.peak_nbytes is not None or limits.growth is not None
    unasked = needs_peak and inspection.report.place.profile is None
    compiles = None
    if compile_ or unasked:
        from jaxresid.advice.compile.limited import LimitedCompiles
        from jaxresid.advice.compile.report import confirmed

        compiles = LimitedCompiles(
            inspection.subject.place, settings(compiling), limit_s=limit_s(compiling), progress=say
        )
        inspection = confirmed(inspection, compiles, checkpoints=compile_)
    from jaxresid.advice.check.budgets import BudgetFinding, budget_findings
    from jaxresid.advice.check.check import checked
    from jaxresid.advice.check.growth import growth_finding

    def over(report: Report) -> Iterator[BudgetFinding]:
        yield from budget_findings(report, limits, reference)
        if earlier is not None and limits.growth is not None:
            root = Path(os.path.abspath(lock)).parent
            grown = growth_finding(report, earlier, limits.growth, reference, root)
            if grown is not None:
                yield grown

    results = checked(inspection, run, over, limits.peak_nbytes, compiles if compile_ else None)
    return CheckedTarget(reference, inspection, results)


def _typed(context: click.Context) -> tuple[str, ...]:
    names = {*Request.__dataclass_fields__} - {"target", "name", "on"}
    return typed_arguments(context, names)


def _write_lockfile(
    file: Path, checked: Sequence[CheckedTarget], *, is_one: bool, quiet: bool
) -> None:
    """Write the figures of targets into the lockfile; without TARGET, those of no others."""
    from jaxresid.advice.check.growth import baseline_of

    root = Path(os.path.abspath(file)).parent
    baselines = {one.name: baseline_of(one.inspection.report, root) for one in checked}
    changed = updated(file, baselines, None if is_one else list(baselines))
    if not quiet:
        what = f"wrote {', '.join(changed)}" if changed else "nothing has changed"
        tell(f"jaxresid: {file}: {what}")


def _tell_remarks(target: CheckedTarget, prefix: str) -> None:
    """Say on stderr what was assumed, what is not known, and what is not confirmed."""
    report = target.inspection.report
    crashes = crash_warnings(target.inspection.crashes)  # which are findings
    for warning in report.warnings:
        if warning in crashes:
            continue
        tell(f"jaxresid: warning: {prefix}{warning}")
    if report.place.profile is None and not report.compiled:
        tell(
            f"jaxresid: {prefix}peaks on {report.place.name} are not estimated: findings that need"
            " a peak are left out (--compile asks the compiler)"
        )
    for checkpoint in report.checkpoints:
        if checkpoint.unconfirmed:
            where = f" at {place_text(checkpoint.location)}" if checkpoint.location else ""
            tell(
                f"jaxresid: {prefix}{checkpoint.function}{where}: unconfirmed:"
                f" {checkpoint.unconfirmed}"
            )
