"""Share what commands that report findings need: choosing rules, formats, output, exit codes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click
from click.core import ParameterSource

from jaxresid._version import __version__
from jaxresid.base.violations import INVALID_CONFIGURATION, OVER_LIMIT
from jaxresid.cli.completion import values
from jaxresid.cli.help import Group, option
from jaxresid.cli.main import EXIT_FAILED, terminal_width, use_color, write
from jaxresid.cli.options.output import (
    color_option,
    format_of,
    format_option,
    output_option,
    traceback_option,
)
from jaxresid.linter.rules import INDEX, TRACED, rule
from jaxresid.linter.run.discover import UsageError
from jaxresid.render.lint import FORMATS, STATISTICS_FORMATS, render, statistics
from jaxresid.settings.config import Config, parse_per_file_ignores, split_selectors

# What is not linted as it should be: never only a finding.
_FAILURES = frozenset({INVALID_CONFIGURATION, OVER_LIMIT})

if TYPE_CHECKING:
    from jaxresid.base.violations import Linted, RuleInfo


class DisplayOptions(Protocol):
    """The command line's wishes about how findings are shown."""

    @property
    def config(self) -> Path | None:
        """The configuration file to use; None means the nearest one."""

    @property
    def isolated(self) -> bool:
        """Whether no configuration file is used."""

    @property
    def statistics(self) -> bool:
        """Whether findings are counted by rule."""

    @property
    def exit_zero(self) -> bool:
        """Whether the exit code is 0 even if there are findings."""

    @property
    def output(self) -> str | None:
        """The file to write to; None or `-` means stdout."""

    @property
    def color(self) -> str:
        """When to colour: `auto`, `always` or `never`."""

    @property
    def quiet(self) -> bool:
        """Whether only findings are printed, without a summary."""


def _selectors(
    context: click.Context, parameter: click.Parameter, value: Sequence[str]
) -> tuple[str, ...] | None:
    if not value:
        return None
    selectors = split_selectors(value)
    if not selectors:
        raise UsageError(f"{parameter.opts[0]} selects no rules; `jaxresid rules` lists them")
    return selectors


def _per_file(context: click.Context, parameter: click.Parameter, value: Sequence[str]) -> Any:
    return parse_per_file_ignores(value) if value else None


def list_option(
    name: str,
    metavar: str,
    help: str,
    callback: Callable[..., Any],
    group: Group = Group.RULES,
    complete: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Return an option that may be given several times, or once with commas."""
    return option(
        f"--{name}",
        metavar=metavar,
        multiple=True,
        callback=callback,
        group=group,
        shell_complete=complete,
        help=help,
    )


def selectors(name: str, help: str, group: Group = Group.RULES) -> Callable[..., Any]:
    """Return an option that takes rules: codes, prefixes of codes, names."""
    return list_option(name, "CODES", help, _selectors, group, values.codes)


def selecting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which rules are on."""
    for decorate in (
        list_option("per-file-ignores", "GLOB:CODE", "Rules not to run in some files.", _per_file),
        selectors("extend-select", "Rules to run besides the selected ones."),
        selectors("ignore", "Rules not to run."),
        selectors("select", "Rules to run: codes, prefixes, names, ALL."),
    ):
        command = decorate(command)
    return command


def showing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how findings are shown."""
    for decorate in (
        traceback_option,
        option(
            "--isolated", is_flag=True, group=Group.GENERAL, help="Ignore all configuration files."
        ),
        option(
            "--config",
            type=click.Path(path_type=Path),
            metavar="FILE",
            group=Group.GENERAL,
            help="The pyproject.toml to use instead of the nearest one.",
        ),
        option(
            "-q",
            "--quiet",
            is_flag=True,
            group=Group.OUTPUT,
            help="Print findings only, no summary.",
        ),
        color_option,
        option(
            "--exit-zero",
            is_flag=True,
            group=Group.OUTPUT,
            help="Exit 0 even if there are findings.",
        ),
        option(
            "--ignore-noqa",
            is_flag=True,
            group=Group.RULES,
            help="Also report findings that comments silence.",
        ),
        option(
            "--statistics", is_flag=True, group=Group.OUTPUT, help="Count the findings by rule."
        ),
        output_option("--output-file"),
        format_option(
            *("--output-format", "output_format"),
            formats=FORMATS,
            envvar="JAXRESID_OUTPUT_FORMAT",
            help="The format.  [default: by the suffix of -o, else text]",
        ),
    ):
        command = decorate(command)
    return command


def check_combination(display: DisplayOptions) -> None:
    """Raise UsageError for combinations of options of which one half would be ignored."""
    if display.isolated and display.config is not None:
        raise UsageError(
            "--isolated ignores all configuration files; it cannot be combined with --config"
        )


def with_format(config: Config, display: DisplayOptions) -> Config:
    """Return the configuration with the format that the suffix of -o stands for, without -f.

    Call it while the command's context is the current one.

    Raises:
      click.UsageError: The suffix is that of a format that findings are not shown in.
    """
    source = click.get_current_context().get_parameter_source("output_format")
    if source is ParameterSource.COMMANDLINE:
        return config
    return replace(config, output_format=format_of(display.output, FORMATS, config.output_format))


def check_statistics(display: DisplayOptions, config: Config) -> None:
    """Raise UsageError for statistics in a format that has none."""
    if display.statistics and config.output_format not in STATISTICS_FORMATS:
        raise UsageError(
            f"--statistics needs one of the formats {', '.join(STATISTICS_FORMATS)},"
            f" not {config.output_format}"
        )


def show(
    display: DisplayOptions,
    config: Config,
    results: Sequence[Linted],
    *,
    fixed: int = 0,
    to_stderr: bool = False,
) -> int:
    """Print results and return the exit code: 1 where more than infos was found, 2 for errors.

    An error is a file that takes too long to lint, or could not be linted as its configuration
    says.

    Args:
      display: How findings are to be shown.
      config: The configuration of the run.
      results: The findings by file.
      fixed: How many findings were fixed and are not in `results`.
      to_stderr: Whether stdout is taken by the fixed source.
    """
    if not results and display.quiet and config.output_format in ("text", "concise"):
        return 0
    infos = _documented({v.code for r in results for v in r.violations})
    output = display.output
    to_stderr = to_stderr and output in (None, "-")
    if display.statistics:
        text = statistics(results, infos, config.output_format, unsafe_fixes=config.unsafe_fixes)
    else:
        text = render(
            config.output_format,
            results,
            infos,
            Path.cwd(),
            version=__version__,
            color=use_color(display.color, "stderr" if to_stderr else output),
            width=terminal_width(to_stdout=output in (None, "-") and not to_stderr),
            fixed=fixed,
            unsafe_fixes=config.unsafe_fixes,
            summary=not display.quiet,
        )
    if text and to_stderr:
        click.echo(text, nl=False, err=True)
    elif text:
        write(text, output, verbatim=config.output_format == "github")
    if any(v.code in _FAILURES for r in results for v in r.violations):
        return EXIT_FAILED
    failed = any(v.severity != "info" for r in results for v in r.violations)
    return int(failed and not display.exit_zero)


def _documented(codes: Iterable[str]) -> list[RuleInfo]:
    """Return the documentation of the rules of some codes."""
    codes = set(codes)
    infos = [rule(e.name).info() for e in INDEX if e.code in codes]
    traced = [e.name for e in TRACED if e.code in codes]
    if traced:
        from jaxresid.advice.check.rules import traced_rule

        infos += [traced_rule(name).info() for name in traced]
    return infos
