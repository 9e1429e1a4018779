"""Lint paths: find files, index their project."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from jaxresid.linter.rules import INDEX, KNOWN, TRACED, RuleEntry, rule
from jaxresid.linter.run.discover import (
    FoundFile,
    UnreadablePath,
    discover,
    is_excluded,
    module_name,
    project_root,
)
from jaxresid.linter.run.workers import CandidateFile, lint_files
from jaxresid.linter.text import prefilter as funnel
from jaxresid.linter.text.time_limit import start_again
from jaxresid.settings.config import Config, Options, Selection, load, matches
from jaxresid.settings.toml_values import ConfigFileError, display_path

if TYPE_CHECKING:
    from jaxresid.base.violations import Linted
    from jaxresid.linter.resolve.neighbours import Remembered
    from jaxresid.linter.resolve.project import Project
    from jaxresid.linter.resolve.project_module import ProjectModule
    from jaxresid.linter.run.engine import FixResult, LintSettings
    from jaxresid.settings.requirements.in_use import Directory

# Nobody need have looked for these, so a suppression of more than them is judged without them.
_OPTIONAL = frozenset(e.code for e in INDEX if not e.is_default) | {e.code for e in TRACED}


class LintRun:
    """One run: a configuration, and what is shared between its files.

    Args:
      config: what holds for the run as a whole, and for every file unless `nearest` is given.
      nearest: what overrides the configuration nearest to each file, which then holds for it.
      complete: directories that the user asked to lint as a whole, so that what is in none of
        their files is nowhere.
      overlay: contents that replace files.
      ignore_noqa: whether to report what comments silence as well.
      folders: where files may be read: the project of a file in one of them does not begin above
        it, and any other file is linted on its own, by `config`. None for anywhere.
      reports_configuration: whether what is wrong with the configuration of a directory is a
        finding, and its files are linted by that of the directory above; else it is raised.

    Attributes:
      found_nothing: whether the last `run` had no file to lint.
      over_limit_files: the files that took too long, which others read as if they were empty.
    """

    def __init__(
        self,
        config: Config,
        *,
        nearest: Options | None = None,
        complete: Sequence[Path] = (),
        overlay: dict[Path, bytes] | None = None,
        ignore_noqa: bool = False,
        folders: Sequence[Path] | None = None,
        reports_configuration: bool = False,
    ) -> None:
        self.config = config
        self.nearest = nearest
        self.complete = tuple(complete)
        self.overlay = overlay or {}
        self.ignore_noqa = ignore_noqa
        self.folders = None if folders is None else tuple(folders)
        self.found_nothing = False
        self._reports_configuration = reports_configuration
        self._wrong: dict[Path, ConfigFileError] = {}
        self.over_limit_files: frozenset[Path] = frozenset()
        self._projects: dict[Path, Project] = {}
        self._listed: dict[Path, tuple[FoundFile, ...]] = {}
        self._configs: dict[Path, Config] = {}
        self._known: dict[Path, Directory] = {}
        self._entries: dict[Config, tuple[RuleEntry, ...]] = {}
        self._markers: dict[Config, frozenset[bytes]] = {}
        self._markers_in: dict[str, frozenset[bytes]] = {}
        self._roots: dict[str, Path] = {}
        self._named: dict[Path, tuple[ProjectModule, ...]] = {}
        self._remembered: Remembered | None = None

    def config_in(self, directory: Path) -> Config:
        """Return the configuration for the files of a directory.

        Raises:
          ConfigError: It is not understood, or names a rule that does not exist.
        """
        if self.nearest is None or self.is_alone(directory):
            return self.config
        if directory not in self._configs:
            try:
                config = load(directory, self.nearest, known=self._known)
                self.entries(config)
            except ConfigFileError as error:
                if not self._reports_configuration or directory == directory.parent:
                    raise
                self._wrong.setdefault(error.file, error)
                config = _without_fixes(self.config_in(directory.parent))
            self._configs[directory] = config
        return self._configs[directory]

    def entries(self, config: Config) -> tuple[RuleEntry, ...]:
        """Return the rules that a configuration turns on, apart from exceptions for single files.

        Raises:
          ConfigError: The configuration names a rule that does not exist.
        """
        if config not in self._entries:
            config.validate(KNOWN)
            self._entries[config] = tuple(
                e for e in INDEX if config.enabled(e.code, e.name, e.is_default)
            )
        return self._entries[config]

    def markers(self, config: Config) -> frozenset[bytes]:
        """Return the words to look for: a file with none of them concerns no rule that is on."""
        if config not in self._markers:
            self._markers[config] = frozenset(m for e in self.entries(config) for m in e.markers)
        return self._markers[config]

    def settings(self, path: Path) -> LintSettings:
        """Return the settings for one file."""
        from jaxresid.linter.run.engine import LintSettings

        config = self.config_in(path.parent)
        ignored = config.ignored_in(path)
        return LintSettings(
            tuple(
                rule(e.name)
                for e in self.entries(config)
                if not any(matches(s, e.code, e.name) for s in ignored)
            ),
            KNOWN,
            _OPTIONAL,
            config.target_jax,
            unsafe_fixes=config.unsafe_fixes,
            ignore_noqa=self.ignore_noqa,
            fixable=_Fixable(config),
        )

    def discover(self, paths: Sequence[str]) -> tuple[FoundFile | UnreadablePath, ...]:
        """Return the files that paths stand for, each subject to the excludes nearest to it.

        Raises:
          UsageError: A path does not exist.
        """
        groups: dict[Config, list[str]] = {}
        for path in paths:
            absolute = Path(os.path.abspath(path))
            directory = absolute if absolute.is_dir() else absolute.parent
            groups.setdefault(self.config_in(directory), []).append(path)
        if len(groups) == 1:
            return discover(paths, *groups)
        found: dict[str, FoundFile | UnreadablePath] = {}
        for config, group in groups.items():
            for item in discover(group, config):
                found.setdefault(os.path.abspath(item.path), item)
        return tuple(sorted(found.values(), key=lambda item: item.path))

    # -- the project around a file -----------------------------------------------------------

    def root(self, path: Path) -> Path:
        """Return the directory of the project that a file belongs to."""
        directory = os.path.dirname(path)
        known = self._roots.get(directory)
        if known is None:
            around = [f for f in self.folders or () if path.parent.is_relative_to(f)]
            # All of them are prefixes of one path.
            known = self._roots[directory] = max([project_root(path), *around])
        return known

    def is_alone(self, path: Path) -> bool:
        """Return whether no other file may be read for one."""
        return self.folders is not None and not any(map(path.is_relative_to, self.folders))

    def project_files(self, root: Path) -> tuple[FoundFile, ...]:
        """Return the project's Python files."""
        if root not in self._listed:
            config = replace(self.config_in(root), force_exclude=False)
            # The directory of a buffer that was never saved need not exist.
            found = discover([str(root)], config) if root.is_dir() else ()
            self._listed[root] = tuple(filter(_is_python, found))
        return self._listed[root]

    def project(self, root: Path) -> Project:
        """Return the index of a project."""
        from jaxresid.linter.resolve.project import Project

        if root not in self._projects:
            self._projects[root] = Project(
                lambda: self._modules(root),
                complete=self._is_complete(root),
                contents=self.overlay,
                target_jax=self.config_in(root).target_jax,
                remembered=self._remembered,
            )
        return self._projects[root]

    def _modules(self, root: Path) -> tuple[ProjectModule, ...]:
        """Return the modules of a project, those first that are on the disk."""
        if root not in self._named:
            self._named[root] = _named((f.absolute for f in self.project_files(root)), root)
        return (*self._named[root], *_named(self._never_saved(root), root))

    def _never_saved(self, root: Path) -> Iterator[Path]:
        """Yield what takes the place of files of a project that are not there yet."""
        new = (p for p in self.overlay if p.suffix in (".py", ".pyi") and not p.exists())
        for path in new:
            is_here = path.is_relative_to(root) and self.root(path) == root
            if is_here and not is_excluded(str(path), self.config_in(root)):
                yield path

    def _is_complete(self, root: Path) -> bool:
        if any(path.is_relative_to(root) for path in self.over_limit_files):
            return False
        return _is_project(root) or any(root.is_relative_to(d) for d in self.complete)

    # -- files -------------------------------------------------------------------------------

    def file(self, path: str, absolute: Path) -> Linted:
        """Lint one file."""
        raw = self.overlay.get(absolute)
        if raw is None:
            try:
                raw = absolute.read_bytes()
            except OSError as e:
                return _unreadable(path, e.strerror or str(e))
        return self.content(raw, path, absolute)

    def content(self, raw: bytes, path: str, absolute: Path) -> Linted:
        """Lint bytes as the content of a file."""
        from jaxresid.base.violations import Linted
        from jaxresid.linter.run.engine import INVALID_SYNTAX, broken, lint_bytes

        project = None if self.is_alone(absolute) else self.project(self.root(absolute))
        try:
            return lint_bytes(raw, path, self.settings(absolute), project=project, file=absolute)
        except RecursionError:
            return Linted(path, (broken(path, INVALID_SYNTAX, "too deeply nested to be linted"),))

    def replacing(self, overlay: dict[Path, bytes]) -> LintRun:
        """Return a run with other contents in place of files.

        The files of projects are not listed again, nor are those that are not replaced read, nor
        is the configuration.
        """
        from jaxresid.linter.resolve.neighbours import Remembered

        if self._remembered is None:
            self._remembered = Remembered()
        run = LintRun(
            self.config,
            nearest=self.nearest,
            complete=self.complete,
            overlay=overlay,
            ignore_noqa=self.ignore_noqa,
            folders=self.folders,
            reports_configuration=self._reports_configuration,
        )
        run._listed, run._configs, run._known = self._listed, self._configs, self._known
        run._roots, run._named = self._roots, self._named
        run._entries, run._markers = self._entries, self._markers
        run._remembered = self._remembered
        run.over_limit_files = self.over_limit_files
        return run

    def leave_out(self, path: Path) -> None:
        """Take a file for empty from now on, and forget what is known of others by their content.

        Whatever was being found out when a file took too long is only half there.
        """
        self.over_limit_files |= {path}
        self.overlay = {**self.overlay, path: b""}
        self._projects, self._remembered = {}, None

    def fix_content(self, raw: bytes, path: str, absolute: Path) -> FixResult:
        """Fix bytes as the content of a file."""
        from jaxresid.linter.run.engine import FixResult, fix_bytes

        def project(now: bytes) -> Project | None:
            start_again()  # each round has the time of a file
            if self.is_alone(absolute):
                return None
            root = self.root(absolute)
            return self.replacing({**self.overlay, absolute: now}).project(root)

        try:
            return fix_bytes(raw, path, self.settings(absolute), project=project, file=absolute)
        except RecursionError:
            return FixResult(raw, (), self.content(raw, path, absolute))

    def suppress(self, raw: bytes, path: str, absolute: Path, reason: str) -> tuple[bytes, int]:
        """Return the file with a comment that silences each finding, and how many findings.

        Args:
          raw: the file's bytes.
          path: the file as it is shown.
          absolute: the file's absolute path.
          reason: text that follows the codes in new comments.
        """
        from jaxresid.base.violations import Violation
        from jaxresid.linter.run.engine import violations_in
        from jaxresid.linter.text.document import read

        document = read(raw, path)
        if isinstance(document, Violation):
            return raw, 0
        project = self.project(self.root(absolute))
        settings = self.settings(absolute)
        try:
            found = violations_in(document, settings, project=project, file=absolute)
        except RecursionError:
            return raw, 0
        from jaxresid.linter.text import suppress

        text = document.source.text
        newline = "\r\n" if "\r\n" in text else "\n"
        edits = suppress.add(document.source.lines, found, reason, newline=newline)
        count = sum(v.code not in suppress.UNSUPPRESSABLE for v in found)
        return document.edited(edits), count if edits else 0

    def run(self, paths: Sequence[str], *, jobs: int | None = None) -> tuple[Linted, ...]:
        """Lint files and directories.

        Args:
          paths: the files and directories.
          jobs: number of processes; None for one per processor.

        Returns:
          One entry per file with findings, sorted by path.

        Raises:
          UsageError: A path does not exist.
        """
        directories = [Path(os.path.abspath(p)) for p in paths if os.path.isdir(p)]
        self.complete = (*self.complete, *directories)
        found = self.discover(paths)
        self.found_nothing = not found
        for directory in directories:
            # A project that was walked just now is not walked again for its index.
            if len(paths) == 1 and self.root(directory / "x.py") == directory:
                self._listed[directory] = tuple(filter(_is_python, found))
        results: list[Linted] = [
            _unreadable(f.path, f.reason) for f in found if isinstance(f, UnreadablePath)
        ]
        candidates: list[CandidateFile] = []
        for item in found:
            if isinstance(item, FoundFile):
                outcome = self._candidate(item)
                if isinstance(outcome, CandidateFile):
                    candidates.append(outcome)
                elif outcome is not None:
                    results.append(outcome)
        another = partial(
            LintRun,
            self.config,
            nearest=self.nearest,
            complete=self.complete,
            ignore_noqa=self.ignore_noqa,
            reports_configuration=self._reports_configuration,
        )
        results += lint_files(candidates, jobs, self, another)
        results += map(_misconfigured, self._wrong.values())
        return tuple(sorted((r for r in results if r.violations), key=lambda r: r.path))

    def _candidate(self, found: FoundFile) -> CandidateFile | Linted | None:
        try:
            with open(found.absolute, "rb", buffering=0) as file:
                raw = file.readall()
        except OSError as e:
            return _unreadable(found.path, e.strerror or str(e))
        concerns = funnel.mentions if found.path.endswith(".ipynb") else funnel.mentions_in_code
        if not concerns(raw, self._markers_for(found.absolute)):
            return None
        return CandidateFile(found.path, found.absolute, raw)

    def _markers_for(self, path: Path) -> frozenset[bytes]:
        """Return the words to look for in a file."""
        directory = os.path.dirname(path)
        known = self._markers_in.get(directory)
        if known is None:
            known = self._markers_in[directory] = self.markers(self.config_in(path.parent))
        return known


def _named(paths: Iterable[Path], root: Path) -> tuple[ProjectModule, ...]:
    """Return the files of a project that can be imported, with the names that they then have."""
    from jaxresid.linter.resolve.project_module import ProjectModule

    packages: dict[Path, bool] = {}
    inside: dict[str, str | None] = {}
    found = []
    for path in paths:
        directory, file_name = os.path.split(path)
        if directory not in inside:
            inside[directory] = module_name(path.with_name("x.py"), root, packages)
        prefix = inside[directory]
        if prefix is None:
            continue
        stem = os.path.splitext(file_name)[0]
        name = prefix[:-2] if stem == "__init__" else f"{prefix[:-1]}{stem}"
        if name and stem.isidentifier():
            found.append(ProjectModule(path, name))
    return tuple(found)


def _is_python(item: FoundFile | UnreadablePath) -> TypeGuard[FoundFile]:
    return isinstance(item, FoundFile) and item.path.endswith((".py", ".pyi"))


def _unreadable(path: str, reason: str) -> Linted:
    from jaxresid.linter.run.engine import unreadable

    return unreadable(path, reason)


def _misconfigured(error: ConfigFileError) -> Linted:
    from jaxresid.base.violations import INVALID_CONFIGURATION, Linted
    from jaxresid.linter.run.engine import broken

    path = display_path(error.file)
    message = (
        f"{error.reason}; the files below are linted by the configuration above, and not fixed"
    )
    row, column = error.line or 1, (error.column or 1) - 1
    return Linted(path, (broken(path, INVALID_CONFIGURATION, message, row, column),))


def _without_fixes(config: Config) -> Config:
    return replace(config, selections=(*config.selections, Selection(unfixable=("ALL",))))


class _Fixable:
    """A function that tells whether the configuration allows a rule's fixes.

    It is a class so that it can be sent to another process.
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    def __call__(self, code: str) -> bool:
        return self._config.fix_allowed(code, KNOWN.get(code, ""))


def _is_project(root: Path) -> bool:
    return any((root / f).exists() for f in ("pyproject.toml", "setup.py", "setup.cfg", ".git"))
