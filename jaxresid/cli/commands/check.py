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
    TargetOptions,
    inspected,
    own_options,
    provide_devices,
    target_options,
    trips_option,
)
from jaxresid.cli.options.limits import limit_options, taken_growth, taken_limits
from jaxresid.cli.options.named_targets import every_target, optional_target
from jaxresid.cli.options.places import placed
from jaxresid.cli.options.typed import typed_arguments
from jaxresid.cli.show_findings import (
    check_combination,
    check_statistics,
    selecting_options,
    show,
    showing_options,
    with_format,
)
from jaxresid.linter.run.files import LintRun
from jaxresid.render.report.heading import question
from jaxresid.render.style.words import place_text
from jaxresid.settings.config import Options, load

if TYPE_CHECKING:
    from jaxresid.advice.check.growth import Earlier
    from jaxresid.base.violations import Linted
    from jaxresid.inspector.subject.base import Inspection
    from jaxresid.results import Limits, Report


class CheckRequest(NamedTuple):
    """The requests of the command line beyond the target and the configuration."""

    config: Path | None
    isolated: bool
    statistics: bool
    ignore_noqa: bool
    exit_zero: bool
    output: str | None
    color: str
    quiet: bool


class CheckTarget(NamedTuple):
    """A target to check, what it may take, and its options as they were typed."""

    options: TargetOptions
    limits: Limits
    typed: tuple[str, ...]

    @property
    def growing(self) -> GrowingTarget:
        """The target as one whose growth is held."""
        options = self.options
        name = options.name or options.target
        # One of several sizes; else the size is that of the baseline's own table.
        batch = [f"--batch={options.batch}"] * (" " in name)
        arguments = (*self.typed, *batch, *(f"--on={place}" for place in options.on))
        return GrowingTarget(options.reference, name.partition(" ")[0], arguments)


class CheckedTarget(NamedTuple):
    """A target as it was inspected, and its findings by file."""

    name: str
    found: Inspection
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
    options: TargetOptions | None, compile_: bool, compiling: CompilingOptions, **given: Any
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
    limits, growth = taken_limits(given), taken_growth(given)
    names = set(Options._fields)
    overriding = Options(**{k: v for k, v in given.items() if k in names})
    request = CheckRequest(**{k: v for k, v in given.items() if k not in names})
    check_combination(request)
    config = load(Path(), overriding, config_file=request.config, isolated=request.isolated)
    config = with_format(config, request)
    run = LintRun(
        config,
        nearest=None if request.isolated or request.config is not None else overriding,
        ignore_noqa=request.ignore_noqa,
    )
    run.entries(config)  # refuses unknown codes before anything is traced
    check_statistics(request, config)
    is_one = options is not None
    if options is not None:
        asked = [CheckTarget(options, limits, _typed(click.get_current_context()))]
    else:
        asked = _all_targets()
    growing = [each for each in asked if each.limits.growth is not None]
    check_growth(growth, grows=bool(growing))
    lock = lockfile(growth, request.config, isolated=request.isolated)
    asked = [each._replace(options=_placed(each, compile_)) for each in asked]
    provide_devices([mesh for each in asked for mesh in each.options.mesh])
    done: list[CheckedTarget] = []
    failed = False
    earlier: Mapping[str, Earlier] = {}
    with showing_progress(f"tracing {asked[0].options.reference}", quiet=request.quiet) as say:
        if growing and not growth.update:
            named = {each.options.reference for each in growing}
            held = [each.growing for each in asked if each.options.reference in named]
            earlier = earlier_of(growth, lock, held, compile_, say)
        for each in asked:
            name = each.options.reference
            say(Stage(f"tracing {name}"))
            try:
                held_against = earlier.get(name)
                one = _checked(each, held_against, lock, run, compile_, compiling, say)
                done.append(one)
                findings = [v for linted in one.results for v in linted.violations]
                report = one.found.report
                keep_result("check", each.options, report, since=since, findings=findings)
            except JaxresidError as e:
                if is_one:
                    raise
                tell(f"jaxresid: error: {name}: {e}")
                failed = True
    for one in done:
        _tell_remarks(one, "" if is_one else f"{one.name}: ", quiet=request.quiet)
    if is_one:
        results = done[0].results
    else:
        from jaxresid.advice.check.merged import merged

        results = merged((one.name, one.results) for one in done)
    code = show(request, config, results)
    failed |= any(v.code == CRASHED_FINDING for linted in results for v in linted.violations)
    for one in done:
        failed |= print_errors(one.found.report.compiled)
    if growth.update and failed:
        tell(f"jaxresid: {lock}: not written, as not everything could be checked")
    elif growth.update:
        _write_lockfile(lock, done, is_one=is_one, quiet=request.quiet)
    if config.output_format == "text" and not request.quiet:
        for one in done:
            place, target = one.found.report.place, one.found.report.target
            whose = "figures" if is_one else f"figures of {one.name}"
            tell(f"jaxresid: {whose} are for {place.name}, {place.origin}; {question(target)}")
    return EXIT_FAILED if failed else code


def _all_targets() -> list[CheckTarget]:
    """Return the targets of the configuration; one with several batch sizes is one for each."""
    found = []
    for context in every_target(click.get_current_context()):
        options, others = own_options(context, context.params)
        assert options is not None
        limits, typed = taken_limits(others), _typed(context)
        for size in options.batch.listed or (None,):
            name, words, sizes = options.name, options.words, options.batch.at(size)
            if len(options.batch.listed) > 1:
                name, words = f"{name} --batch {sizes}", (*words, "--batch", str(sizes))
            one = replace(options, batch=sizes, name=name, words=words)
            found.append(CheckTarget(one, limits, typed))
    return found


def _placed(target: CheckTarget, compile_: bool) -> TargetOptions:
    return placed(target.options, compiles=compile_)[0]


def _checked(
    target: CheckTarget,
    earlier: Earlier | None,
    lock: Path,
    run: LintRun,
    compile_: bool,
    compiling: CompilingOptions,
    say: Progress,
) -> CheckedTarget:
    """Return a target with its findings; a limit on a peak that is not estimated is compiled for.

    Raises:
      JaxresidError: Something is wrong with the target, its inputs or its trace.
    """
    found = inspected(target.options)
    limits, reference = target.limits, target.options.reference
    needs_peak = limits.peak_nbytes is not None or limits.growth is not None
    unasked = needs_peak and found.report.place.profile is None
    compiles = None
    if compile_ or unasked:
        from jaxresid.advice.compile.limited import LimitedCompiles
        from jaxresid.advice.compile.report import confirmed

        compiles = LimitedCompiles(
            found.subject.place, settings(compiling), limit_s=limit_s(compiling), progress=say
        )
        found = confirmed(found, compiles, checkpoints=compile_)
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

    results = checked(found, run, over, limits.peak_nbytes, compiles if compile_ else None)
    return CheckedTarget(reference, found, results)


def _typed(context: click.Context) -> tuple[str, ...]:
    """Return the options of the target that were typed, except for its place."""
    names = {*TargetOptions.__dataclass_fields__} - {"target", "name", "on"}
    return typed_arguments(context, tuple(names))


def _write_lockfile(
    file: Path, done: Sequence[CheckedTarget], *, is_one: bool, quiet: bool
) -> None:
    """Write the figures of targets into the lockfile; without TARGET, those of no others."""
    from jaxresid.advice.check.growth import baseline_of

    root = Path(os.path.abspath(file)).parent
    made = {one.name: baseline_of(one.found.report, root) for one in done}
    changed = updated(file, made, None if is_one else list(made))
    if not quiet:
        what = f"wrote {', '.join(changed)}" if changed else "nothing has changed"
        tell(f"jaxresid: {file}: {what}")


def _tell_remarks(target: CheckedTarget, prefix: str, *, quiet: bool) -> None:
    """Say on stderr what was assumed, what is not known, and what is not confirmed."""
    if quiet:
        return
    report = target.found.report
    crashes = crash_warnings(target.found.crashes)  # which are findings
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
