"""`jaxresid lint`: lint source, with the option names and meanings of ruff."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from jaxresid.base.errors import JaxresidError
from jaxresid.base.text.safe_text import visible
from jaxresid.base.violations import OVER_LIMIT
from jaxresid.cli.help import ExplainedCommand, Group, command, option
from jaxresid.cli.main import EXIT_FAILED, tell, write
from jaxresid.cli.show_findings import (
    check_combination,
    check_statistics,
    list_option,
    selecting_options,
    selectors,
    show,
    showing_options,
    with_format,
)
from jaxresid.linter.run.discover import FoundFile, UsageError, discover
from jaxresid.linter.run.files import LintRun
from jaxresid.settings.config import Config, Options, load, parse_target_jax
from jaxresid.settings.toml_values import display_path

if TYPE_CHECKING:
    from jaxresid.base.violations import Linted, Violation
    from jaxresid.linter.run.engine import FixResult

_STDIN = "-"


class LintRequest(NamedTuple):
    """The requests of the command line beyond the configuration."""

    paths: tuple[str, ...]
    config: Path | None
    isolated: bool
    fix_only: bool
    diff: bool
    show_fixes: bool
    show_files: bool
    statistics: bool
    add_noqa: str | None
    ignore_noqa: bool
    exit_zero: bool
    exit_non_zero_on_fix: bool
    jobs: int | None
    stdin_filename: str | None
    output: str | None
    color: str
    quiet: bool
    watch: bool


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
def lint(**given: Any) -> int:
    """Find misplaced and mistaken uses of jax.checkpoint in code.

    PATHS are files and directories, by default the current directory; `-` is standard input. The
    linted code is neither imported nor run. Exits 0 if there are only infos, 1 if there are
    findings, 2 if something went wrong.
    """
    names = set(Options._fields)
    options = Options(**{k: v for k, v in given.items() if k in names})
    rest = {k: v for k, v in given.items() if k not in names}
    request = LintRequest(**rest)
    _check(request, options)
    if request.watch:
        from jaxresid.cli.watch import watch

        return watch(lambda: _run_once(request, options), lambda: _files(request, options))
    return _run_once(request, options)


def _check(request: LintRequest, options: Options) -> None:
    """Raise UsageError for combinations of options of which one half would be ignored."""
    stdin = _STDIN in request.paths
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


def _run_once(request: LintRequest, options: Options) -> int:
    # As for ruff: what concerns the run, as the format, comes from the configuration nearest to
    # where it runs, what concerns a file from the one nearest to the file.
    config = _base(request, options)
    run = LintRun(
        config,
        nearest=None if request.isolated or request.config is not None else options,
        ignore_noqa=request.ignore_noqa,
        reports_configuration=not request.show_files,
    )
    run.entries(config)  # refuses unknown codes before anything is read
    check_statistics(request, config)
    if request.show_files:
        files = [f.path for f in _found(request, run) if isinstance(f, FoundFile)]
        write("".join(f"{visible(path)}\n" for path in files), request.output)
        return 0
    if _STDIN in request.paths:
        return _stdin(request, run)
    paths = request.paths or (".",)
    results = run.run(paths, jobs=request.jobs)
    if run.found_nothing and not request.quiet:
        click.echo("jaxresid: warning: no Python files found", err=True)
    if request.add_noqa is not None:
        return _add_noqa(run, results, request.add_noqa)
    if config.fix or request.fix_only or request.diff:
        return _fix(request, run, results)
    return _show(request, run, results)


def _base(request: LintRequest, options: Options) -> Config:
    start = Path(request.stdin_filename or ".")
    found = load(start, options, config_file=request.config, isolated=request.isolated)
    return with_format(found, request)


def _found(request: LintRequest, run: LintRun) -> tuple[Any, ...]:
    return run.discover([p for p in request.paths if p != _STDIN] or ["."])


def _files(request: LintRequest, options: Options) -> tuple[Path, ...]:
    """Return the paths to watch: the files, the projects around them, and the configuration."""
    config = _base(request, options)
    run = LintRun(config, nearest=None if request.isolated or request.config else options)
    found = {f.absolute for f in _found(request, run) if isinstance(f, FoundFile)}
    directories = {path.parent for path in found}
    for root in {run.root(directory) for directory in directories}:
        found.update(f.absolute for f in run.project_files(root))
    configs = [config, *map(run.config_in, directories)]
    files = {each.file for each in configs} | {each.target_jax_file for each in configs}
    return (*sorted(found), *sorted(f for f in files if f is not None))


def _show(
    request: LintRequest,
    run: LintRun,
    results: Sequence[Linted],
    *,
    fixed: int = 0,
    to_stderr: bool = False,
) -> int:
    """Print results and return the exit code."""
    code = show(request, run.config, results, fixed=fixed, to_stderr=to_stderr)
    return max(code, 1) if fixed and request.exit_non_zero_on_fix else code


def _fix(request: LintRequest, run: LintRun, results: Sequence[Linted]) -> int:
    """Make the fixes (or print them as a diff), show what is left, and return the exit code."""
    from jaxresid.linter.run.atomic_write import replace_content

    made: list[str] = []
    diffs: list[str] = []
    stopped = [linted for linted in results if _is_over_limit(linted)]
    writable, left_alone = _writable([r for r in results if any(v.fix for v in r.violations)], run)
    for linted in writable:
        absolute = Path(os.path.abspath(linted.path))
        try:
            raw = absolute.read_bytes()
            fixed = _fixed(run, raw, linted.path, absolute)
            if request.diff:
                diffs += _diff(raw, fixed.raw, linted.path)
            elif fixed.raw != raw and not replace_content(absolute, raw, fixed.raw):
                raise JaxresidError(f"{linted.path} changed while it was being fixed; run again")
        except OSError as e:
            raise JaxresidError(f"cannot write {linted.path}: {e.strerror or e}") from e
        made += [f"{linted.path}: {v.code} {v.fix.title}" for v in fixed.fixes if v.fix]
        stopped += [fixed.linted] if _is_over_limit(fixed.linted) else []
    if request.diff or request.fix_only:
        _name(v for linted in stopped for v in linted.violations)
    if request.diff:
        if diffs:
            write("".join(diffs), request.output, verbatim=True)
        if not request.quiet:
            what = "fix" if len(made) == 1 else "fixes"
            click.echo(f"Would make {len(made)} {what}." if made else "No fixes.", err=True)
        failed = EXIT_FAILED if stopped else left_alone
        return failed or int(bool(diffs) and not request.exit_zero)
    if request.show_fixes and made:
        tell("\n".join(["Fixed:", *(f"  {visible(m)}" for m in made)]))
    if request.fix_only:
        if not request.quiet:
            click.echo(
                f"Fixed {len(made)} {'finding' if len(made) == 1 else 'findings'}.", err=True
            )
        failed = EXIT_FAILED if stopped else left_alone
        return failed or int(bool(made) and request.exit_non_zero_on_fix)
    if made:
        # What was fixed in one file may change what is found in another.
        run = LintRun(
            run.config,
            nearest=run.nearest,
            ignore_noqa=run.ignore_noqa,
            reports_configuration=True,
        )
        results = run.run(request.paths or (".",), jobs=request.jobs)
    return _show(request, run, results, fixed=len(made))


def _writable(results: Sequence[Linted], run: LintRun) -> tuple[list[Linted], int]:
    """Return the results whose files may be changed, and the exit code of leaving out the others.

    Each of the others is reached by a link that leads out of what is linted, which is said.
    """
    from jaxresid.linter.run.links import way_out

    writable = []
    for linted in results:
        path = Path(os.path.abspath(linted.path))
        link = way_out(path, run.complete)
        if link is None:
            writable.append(linted)
        else:
            tell(
                f"jaxresid: warning: {visible(linted.path)} is not changed: the link"
                f" {visible(display_path(link))} leads out of what is linted, to"
                f" {visible(os.path.realpath(link))}"
            )
    return writable, 0 if len(writable) == len(results) else EXIT_FAILED


def _fixed(run: LintRun, raw: bytes, path: str, absolute: Path) -> FixResult:
    from jaxresid.linter.run.engine import FixResult, over_limit
    from jaxresid.linter.run.workers import within_limit

    fixed = within_limit(run, absolute, lambda: run.fix_content(raw, path, absolute))
    return fixed or FixResult(raw, (), over_limit(path))


def _diff(before: bytes, after: bytes, path: str) -> Iterator[str]:
    from jaxresid.linter.run.diffing import unified_diff

    return unified_diff(before, after, path, path)


def _add_noqa(run: LintRun, results: Sequence[Linted], reason: str) -> int:
    from jaxresid.linter.run.atomic_write import replace_content
    from jaxresid.linter.run.workers import within_limit
    from jaxresid.linter.text import suppress

    added = 0
    writable, left_alone = _writable(results, run)
    for linted in writable:
        absolute = Path(os.path.abspath(linted.path))
        try:
            raw = absolute.read_bytes()
            silenced = within_limit(
                run, absolute, partial(run.suppress, raw, linted.path, absolute, reason)
            )
            new, count = silenced or (raw, 0)
            if new != raw and replace_content(absolute, raw, new):
                added += count
        except OSError as e:
            raise JaxresidError(f"cannot write {linted.path}: {e.strerror or e}") from e
    click.echo(f"Silenced {added} {'finding' if added == 1 else 'findings'}.", err=True)
    broken = [v for r in results for v in r.violations if v.code in suppress.UNSUPPRESSABLE]
    _name(broken)
    failed = EXIT_FAILED if any(map(_is_over_limit, results)) else left_alone
    return failed or int(bool(broken))


def _is_over_limit(linted: Linted) -> bool:
    return any(violation.code == OVER_LIMIT for violation in linted.violations)


def _name(violations: Iterable[Violation]) -> None:
    """Say which files were not linted, and why."""
    for violation in violations:
        tell(f"{visible(violation.path)}: {violation.code}: {violation.message}")


def _stdin(request: LintRequest, run: LintRun) -> int:
    """Lint standard input under the name that it is given, and return the exit code.

    With --fix the fixed text goes to stdout and what is left to stderr, as an editor's formatter
    expects.
    """
    config = run.config
    raw = sys.stdin.buffer.read()
    path = request.stdin_filename or _STDIN
    absolute = Path(os.path.abspath(path)) if request.stdin_filename else Path.cwd() / "<stdin>"
    if config.force_exclude and request.stdin_filename and _is_excluded(path, config):
        if config.fix or request.fix_only:
            _write_bytes(raw)
        return _show(request, run, [])
    run = LintRun(config, overlay={absolute: raw}, ignore_noqa=request.ignore_noqa)
    from jaxresid.linter.run.engine import over_limit
    from jaxresid.linter.run.workers import within_limit

    if not (config.fix or request.fix_only or request.diff):
        work = partial(run.content, raw, path, absolute)
        linted = within_limit(run, absolute, work) or over_limit(path)
        return _show(request, run, [linted] if linted.violations else [])
    fixed = _fixed(run, raw, path, absolute)
    if request.diff:
        text = "".join(_diff(raw, fixed.raw, path))
        if text:
            write(text, request.output, verbatim=True)
        return int(bool(text) and not request.exit_zero)
    _write_bytes(fixed.raw)
    if request.fix_only:
        return int(bool(fixed.fixes) and request.exit_non_zero_on_fix)
    left = [fixed.linted] if fixed.linted.violations else []
    return _show(request, run, left, fixed=len(fixed.fixes), to_stderr=True)


def _is_excluded(path: str, config: Config) -> bool:
    if not os.path.lexists(path):
        excluded = config.excluder()
        absolute = Path(os.path.abspath(path))
        return any(excluded(str(p), p.name) for p in (absolute, *absolute.parents))
    return not discover([path], config)


def _write_bytes(raw: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(raw)
    sys.stdout.buffer.flush()
