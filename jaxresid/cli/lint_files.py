"""Lint files or standard input for the command line: show, fix or silence what is found."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jaxresid.base.errors import JaxresidError
from jaxresid.base.text.safe_text import visible
from jaxresid.base.violations import OVER_LIMIT
from jaxresid.cli.main import EXIT_FAILED, tell, write, write_binary
from jaxresid.cli.show_findings import Display, check_statistics, show, with_format
from jaxresid.linter.run.discover import FoundFile, discover
from jaxresid.linter.run.files import LintRun
from jaxresid.settings.config import Config, Options, load
from jaxresid.settings.toml_values import display_path

if TYPE_CHECKING:
    from jaxresid.base.violations import Linted, Violation
    from jaxresid.linter.run.engine import FixResult

STDIN = "-"


@dataclass(frozen=True, slots=True)
class LintRequest(Display):
    """What the command line asks for beyond the configuration."""

    paths: tuple[str, ...]
    fix_only: bool
    diff: bool
    show_fixes: bool
    show_files: bool
    add_noqa: str | None
    exit_non_zero_on_fix: bool
    jobs: int | None
    stdin_filename: str | None
    watch: bool


def run_once(request: LintRequest, options: Options) -> int:
    """Lint what is requested, show or fix what is found, and return the exit code."""
    # As for ruff: what concerns the run, as the format, comes from the configuration nearest to
    # where it runs, what concerns a file from the one nearest to the file.
    config = _base(request, options)
    run = LintRun(
        config,
        nearest=request.overriding(options),
        ignore_noqa=request.ignore_noqa,
        reports_configuration=not request.show_files,
    )
    run.entries(config)  # refuses unknown codes before anything is read
    check_statistics(request, config)
    if request.show_files:
        text = "".join(f"{visible(file.path)}\n" for file in _discovered(request, run))
        write(text, request.output)
        return 0
    if STDIN in request.paths:
        return _stdin(request, run)
    paths = request.paths or (".",)
    results = run.run(paths, jobs=request.jobs)
    if run.found_nothing and not request.quiet:
        tell("jaxresid: warning: no Python files found")
    if request.add_noqa is not None:
        return _add_noqa(run, results, request.add_noqa)
    if config.fix or request.fix_only or request.diff:
        return _fix(request, run, results)
    return _show(request, run, results)


def _base(request: LintRequest, options: Options) -> Config:
    start = Path(request.stdin_filename or ".")
    config = load(start, options, config_file=request.config, isolated=request.isolated)
    return with_format(config, request)


def _discovered(request: LintRequest, run: LintRun) -> list[FoundFile]:
    items = run.discover([p for p in request.paths if p != STDIN] or ["."])
    return [item for item in items if isinstance(item, FoundFile)]


def watched(request: LintRequest, options: Options) -> tuple[Path, ...]:
    """Return the paths to watch: the files, the projects around them, and the configuration."""
    config = _base(request, options)
    run = LintRun(config, nearest=request.overriding(options))
    paths = {f.absolute for f in _discovered(request, run)}
    directories = {path.parent for path in paths}
    for root in {run.root(directory) for directory in directories}:
        paths.update(f.absolute for f in run.project_files(root))
    configs = [config, *map(run.config_in, directories)]
    files = {file for it in configs for file in (it.file, it.target_jax_file) if file is not None}
    return (*sorted(paths), *sorted(files))


def _show(
    request: LintRequest,
    run: LintRun,
    results: Sequence[Linted],
    *,
    fixed: int = 0,
    to_stderr: bool = False,
) -> int:
    code = show(request, run.config, results, fixed=fixed, to_stderr=to_stderr)
    return max(code, 1) if fixed and request.exit_non_zero_on_fix else code


def _fix(request: LintRequest, run: LintRun, results: Sequence[Linted]) -> int:
    """Make the fixes (or print them as a diff), show what is left, and return the exit code."""
    from jaxresid.linter.run.atomic_write import replace_content

    fixes: list[str] = []
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
        fixes += [f"{linted.path}: {v.code} {v.fix.title}" for v in fixed.fixes if v.fix]
        stopped += [fixed.linted] if _is_over_limit(fixed.linted) else []
    failed = EXIT_FAILED if stopped else left_alone
    if request.diff or request.fix_only:
        _tell_unlinted(v for linted in stopped for v in linted.violations)
    if request.diff:
        if diffs:
            write("".join(diffs), request.output, verbatim=True)
        if not request.quiet:
            what = "fix" if len(fixes) == 1 else "fixes"
            tell(f"Would make {len(fixes)} {what}." if fixes else "No fixes.")
        return failed or int(bool(diffs) and not request.exit_zero)
    if request.show_fixes and fixes:
        tell("\n".join(["Fixed:", *(f"  {visible(m)}" for m in fixes)]))
    if request.fix_only:
        if not request.quiet:
            tell(f"Fixed {_findings(len(fixes))}.")
        return failed or int(bool(fixes) and request.exit_non_zero_on_fix)
    if fixes:
        # What was fixed in one file may change what is found in another.
        run = LintRun(
            run.config,
            nearest=run.nearest,
            ignore_noqa=run.ignore_noqa,
            reports_configuration=True,
        )
        results = run.run(request.paths or (".",), jobs=request.jobs)
    return _show(request, run, results, fixed=len(fixes))


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
    tell(f"Silenced {_findings(added)}.")
    broken = [v for r in results for v in r.violations if v.code in suppress.UNSUPPRESSABLE]
    _tell_unlinted(broken)
    failed = EXIT_FAILED if any(map(_is_over_limit, results)) else left_alone
    return failed or int(bool(broken))


def _findings(count: int) -> str:
    return f"{count} {'finding' if count == 1 else 'findings'}"


def _is_over_limit(linted: Linted) -> bool:
    return any(violation.code == OVER_LIMIT for violation in linted.violations)


def _tell_unlinted(violations: Iterable[Violation]) -> None:
    for violation in violations:
        tell(f"{visible(violation.path)}: {violation.code}: {violation.message}")


def _stdin(request: LintRequest, run: LintRun) -> int:
    """Lint standard input under the name that it is given, and return the exit code.

    With --fix the fixed text goes to stdout and what is left to stderr, as an editor's formatter
    expects.
    """
    config = run.config
    raw = sys.stdin.buffer.read()
    path = request.stdin_filename or STDIN
    absolute = Path(os.path.abspath(path)) if request.stdin_filename else Path.cwd() / "<stdin>"
    if config.force_exclude and request.stdin_filename and _is_excluded(path, config):
        if config.fix or request.fix_only:
            write_binary(raw, None)
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
    write_binary(fixed.raw, None)
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
