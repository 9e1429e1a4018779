"""`jaxresid lint`: lint source, with the option names and meanings of ruff."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from jaxresid.cli.help import ExplainedCommand, Group, command, option
from jaxresid.cli.lint_files import STDIN, LintRequest, run_once, watched
from jaxresid.cli.show_findings import (
    check_combination,
    divided,
    list_option,
    selecting_options,
    selectors,
    showing_options,
)
from jaxresid.linter.run.discover import UsageError
from jaxresid.settings.config import Options
from jaxresid.settings.keys import parse_target_jax


def _globs(context: click.Context, parameter: click.Parameter, value: Sequence[str]) -> Any:
    return tuple(g.strip() for v in value for g in v.split(",") if g.strip()) or None


def _target(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    return parse_target_jax(value) if value else None


class _Command(ExplainedCommand):
    """A command that takes the reason of --add-noqa from `--add-noqa=REASON` only, as ruff does.

    A path that follows is a path.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        bare = ["--add-noqa=" if arg == "--add-noqa" else arg for arg in args[:end]]
        return super().parse_args(ctx, bare + args[end:])


@command(
    cls=_Command,
    examples=(
        ("the current directory", "jaxresid lint"),
        ("look at the fixes, which --fix makes", "jaxresid lint src --diff"),
        ("for code scanning", "jaxresid lint src -o findings.sarif"),
    ),
)
@click.argument("paths", nargs=-1, type=click.Path(), metavar="[PATHS]...")
@option(
    "--fix/--no-fix",
    group=Group.FIXES,
    default=None,
    help="Apply the safe fixes, and report what is left.",
)
@option(
    "--unsafe-fixes/--no-unsafe-fixes",
    group=Group.FIXES,
    default=None,
    help="With --fix or --diff, also make fixes that may change values, memory or compute.",
)
@option("--fix-only", group=Group.FIXES, is_flag=True, help="Apply the fixes and report nothing.")
@option(
    "--diff", group=Group.FIXES, is_flag=True, help="Print the fixes as a diff and write nothing."
)
@option("--show-fixes", group=Group.FIXES, is_flag=True, help="List the fixes that were made.")
@selecting_options
@selectors("fixable", "Rules whose fixes may be applied.", Group.FIXES)
@selectors("unfixable", "Rules whose fixes may not be applied.", Group.FIXES)
@list_option("exclude", "GLOBS", "Files and directories to leave out.", _globs, Group.FILES)
@list_option(
    "extend-exclude",
    "GLOBS",
    "Files and directories to leave out besides the default ones.",
    _globs,
    Group.FILES,
)
@option(
    "--force-exclude/--no-force-exclude",
    group=Group.FILES,
    default=None,
    help="Leave out excluded files even if they are named, as a commit hook does.",
)
@option(
    "--respect-gitignore/--no-respect-gitignore",
    group=Group.FILES,
    default=None,
    help="Leave out the files that .gitignore names.  [default: respect]",
)
@option(
    "--target-jax",
    group=Group.RULES,
    metavar="X.Y",
    callback=_target,
    help="The newest JAX that the code must run on.  [default: what uv.lock or pyproject.toml"
    " says, else the newest]",
)
@showing_options
@option(
    "--show-files", group=Group.FILES, is_flag=True, help="List the files that would be linted."
)
@option(
    "--add-noqa",
    group=Group.FIXES,
    metavar="[=REASON]",
    default=None,
    help="Silence every finding with a comment in the source, and a reason if one is given.",
)
@option(
    "--exit-non-zero-on-fix", group=Group.FIXES, is_flag=True, help="Exit 1 if anything was fixed."
)
@option(
    "-j",
    "--jobs",
    group=Group.GENERAL,
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of processes.",
)
@option(
    "--stdin-filename",
    type=click.Path(),
    group=Group.FILES,
    metavar="FILE",
    help="The file name of the source read from `-`.",
)
@option(
    "-w", "--watch", group=Group.GENERAL, is_flag=True, help="Lint again whenever a file changes."
)
def lint(**values: Any) -> int:
    """Find misplaced and mistaken uses of jax.checkpoint in code.

    PATHS are files and directories, by default the current directory; `-` is standard input. The
    linted code is neither imported nor run. Exits 0 if there are only infos, 1 if there are
    findings, 2 if something went wrong.
    """
    options, others = divided(values)
    request = LintRequest(**others)
    _check(request, options)
    if request.watch:
        from jaxresid.cli.watch import watch

        return watch(lambda: run_once(request, options), lambda: watched(request, options))
    return run_once(request, options)


def _check(request: LintRequest, options: Options) -> None:
    """Raise UsageError for combinations of options of which one half would be ignored."""
    stdin = STDIN in request.paths
    if stdin and len(request.paths) > 1:
        raise UsageError("`-` must be the only path: lint standard input or files, not both")
    if request.stdin_filename is not None and not stdin:
        raise UsageError("--stdin-filename needs `-` as the path")
    writes = bool(options.fix) or request.fix_only
    for flag, on in (("--fix", writes), ("--add-noqa", request.add_noqa is not None)):
        if on and request.watch:
            raise UsageError(
                f"{flag} cannot be combined with --watch: it would change the watched files"
            )
    if request.add_noqa is not None and (writes or request.diff or stdin):
        raise UsageError("--add-noqa cannot be combined with --fix, --diff or `-`")
    for flag, on in (("--watch", request.watch), ("--show-files", request.show_files)):
        if on and stdin:
            raise UsageError(f"{flag} needs files, not `-`")
    check_combination(request)
