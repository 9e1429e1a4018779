"""`jaxresid check`: print the traced findings of a function."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from jaxresid.cli.help import command
from jaxresid.cli.main import EXIT_FAILED, showing_progress, tell
from jaxresid.cli.options.compiling import (
    CompilingOptions,
    compile_options,
    limit_s,
    print_errors,
    settings,
)
from jaxresid.cli.options.inputs import TargetOptions, inspected, target_options
from jaxresid.cli.options.places import placed
from jaxresid.cli.show_findings import (
    check_combination,
    check_statistics,
    selecting_options,
    show,
    showing_options,
    with_format,
)
from jaxresid.linter.run.files import LintRun
from jaxresid.render.style.words import place_text
from jaxresid.settings.config import Options, load


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


@command(
    examples=(
        ("findings at the lines they are about", "jaxresid check train.py:loss"),
        ("in a workflow of GitHub", "jaxresid check train.py:loss --format github"),
    )
)
@target_options
@selecting_options
@showing_options
@compile_options
def check(options: TargetOptions, compile_: bool, compiling: CompilingOptions, **given: Any) -> int:
    """Find checkpoints and residuals of TARGET that do not pay off.

    TARGET is module:function, path/to/file.py:function or a name from pyproject.toml; it is traced,
    not run. The findings are the linter's and those that only a trace can show (JXR8..), each with
    its figures, at the line it is about. The linter's configuration and comments silence them too,
    but infos are shown by default. With --compile TARGET is compiled for the place of --on, also
    without each of the ten checkpoints that drop most, and the verdicts on these are XLA's. Exits 0
    if there are only infos, 1 if there are findings, 2 if something went wrong.
    """
    names = {f.name for f in fields(Options)}
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
    options, _ = placed(options, compiles=compile_)
    with showing_progress(f"tracing {options.target}", quiet=request.quiet) as say:
        found = inspected(options)
        if compile_:
            from jaxresid.advice.compile.report import confirmed

            found = confirmed(found, settings(compiling), say, limit_s=limit_s(compiling))
        from jaxresid.advice.check.check import checked

        results = checked(found, run)
    for warning in () if request.quiet else found.report.warnings:
        tell(f"jaxresid: warning: {warning}")
    if not request.quiet and found.report.place.profile is None and not found.report.compiled:
        where = found.report.place.name
        tell(
            f"jaxresid: peaks on {where} are not estimated: findings that need a peak are left out"
            " (--compile asks the compiler)"
        )
    for checkpoint in found.report.checkpoints:
        if checkpoint.unconfirmed and not request.quiet:
            where = f" at {place_text(checkpoint.location)}" if checkpoint.location else ""
            tell(f"jaxresid: {checkpoint.function}{where}: unconfirmed: {checkpoint.unconfirmed}")
    code = show(request, config, results)
    if print_errors(found.report.compiled):
        code = EXIT_FAILED
    if config.output_format == "text" and not request.quiet:
        place = found.report.place
        tell(f"jaxresid: figures are for {place.name}, {place.origin}")
    return code
