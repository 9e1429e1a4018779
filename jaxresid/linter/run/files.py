"""Lint paths: find files, index their project, spread work over processes, use the cache."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from jaxresid.errors import JaxresidError
from jaxresid.interrupts import blocking_interrupts
from jaxresid.linter.rules import INDEX, KNOWN, TRACED, RuleEntry, rule
from jaxresid.linter.run.discover import (
    FoundFile,
    UnreadablePath,
    discover,
    module_name,
    project_root,
)
from jaxresid.linter.text import prefilter as funnel
from jaxresid.settings.config import Config, Options, load, matches

if TYPE_CHECKING:
    from jaxresid.linter.resolve.project import Project, ProjectModule
    from jaxresid.linter.run.cache import LintCache
    from jaxresid.linter.run.engine import FixResult, LintSettings
    from jaxresid.settings.requirements.in_use import Directory
    from jaxresid.violations import Linted

# Below this much to parse, a pool of processes costs more than it saves (measured on flax: equal
# at 0.4 MB).
_POOL_NBYTES = 500_000
_CHUNKS_PER_JOB = 4
# Nobody need have looked for these, so a suppression of more than them is judged without them.
_OPTIONAL = frozenset(e.code for e in INDEX if not e.is_default) | {e.code for e in TRACED}


class CandidateFile(NamedTuple):
    """A file that passed the filter on its bytes."""

    path: str
    absolute: Path
    raw: bytes
    stat: os.stat_result


class LintRun:
    """One run: a configuration, and what is shared between its files.

    Args:
      config: what holds for the run as a whole, and for every file unless `nearest` is given.
      nearest: what overrides the configuration nearest to each file, which then holds for it.
      complete: directories that the user asked to lint as a whole, so that what is in none of
        their files is nowhere.
      overlay: contents that replace files.
      ignore_noqa: whether to report what comments silence as well.

    Attributes:
      found_nothing: whether the last `run` had no file to lint.
    """

    def __init__(
        self,
        config: Config,
        *,
        nearest: Options | None = None,
        complete: Sequence[Path] = (),
        overlay: dict[Path, bytes] | None = None,
        ignore_noqa: bool = False,
    ) -> None:
        self.config = config
        self.nearest = nearest
        self.complete = tuple(complete)
        self.overlay = overlay or {}
        self.ignore_noqa = ignore_noqa
        self.found_nothing = False
        self._projects: dict[Path, Project] = {}
        self._listed: dict[Path, tuple[FoundFile, ...]] = {}
        self._configs: dict[Path, Config] = {}
        self._known: dict[Path, Directory] = {}
        self._entries: dict[Config, tuple[RuleEntry, ...]] = {}
        self._markers: dict[Config, frozenset[bytes]] = {}

    def config_in(self, directory: Path) -> Config:
        """Return the configuration for the files of a directory.

        Raises:
          ConfigError: It is not understood, or names a rule that does not exist.
        """
        if self.nearest is None:
            return self.config
        if directory not in self._configs:
            self._configs[directory] = load(directory, self.nearest, known=self._known)
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
        found: dict[str, FoundFile | UnreadablePath] = {}
        for config, group in groups.items():
            for item in discover(group, config):
                found.setdefault(os.path.abspath(item.path), item)
        return tuple(sorted(found.values(), key=lambda item: item.path))

    # -- the project around a file -----------------------------------------------------------

    def root(self, path: Path) -> Path:
        """Return the directory of the project that a file belongs to."""
        return project_root(path)

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
                complete=_is_project(root) or any(root.is_relative_to(d) for d in self.complete),
                overlay=self.overlay,
                target_jax=self.config_in(root).target_jax,
                display_paths=_DisplayPaths(),
            )
        return self._projects[root]

    def _modules(self, root: Path) -> Iterator[ProjectModule]:
        from jaxresid.linter.resolve.project import ProjectModule

        packages: dict[Path, bool] = {}
        for found in self.project_files(root):
            name = module_name(found.absolute, root, packages)
            if name is not None:
                yield ProjectModule(found.absolute, name)

    def project_digest(self, root: Path) -> str:
        """Return a digest of the project, which a file's findings depend on besides the file."""
        import hashlib

        from jaxresid.linter.run.cache import GRANULARITY_NS

        digest = hashlib.blake2b(digest_size=16)
        fresh = time.time_ns() - GRANULARITY_NS
        for found in self.project_files(root):
            try:
                stat = os.stat(found.absolute)
                line = f"{found.absolute}\0{stat.st_mtime_ns}\0{stat.st_size}\0{stat.st_ctime_ns}\n"
                digest.update(line.encode("utf-8", "surrogateescape"))
                if max(stat.st_mtime_ns, stat.st_ctime_ns) > fresh:
                    # It may change once more without a change of its timestamps.
                    digest.update(found.absolute.read_bytes())
            except OSError:
                continue
        digest.update(repr(self.project(root)._complete).encode())
        return digest.hexdigest()

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
        from jaxresid.linter.run.engine import INVALID_SYNTAX, broken, lint_bytes
        from jaxresid.violations import Linted

        project = self.project(self.root(absolute))
        try:
            return lint_bytes(raw, path, self.settings(absolute), project=project, file=absolute)
        except RecursionError:
            return Linted(path, (broken(path, INVALID_SYNTAX, "too deeply nested to be linted"),))

    def fix_content(self, raw: bytes, path: str, absolute: Path) -> FixResult:
        """Fix bytes as the content of a file."""
        from jaxresid.linter.run.engine import FixResult, fix_bytes

        root = self.root(absolute)

        def project(now: bytes) -> Project:
            lint = LintRun(
                self.config,
                nearest=self.nearest,
                complete=self.complete,
                overlay={absolute: now},
            )
            lint._listed, lint._configs = self._listed, self._configs
            return lint.project(root)

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
        from jaxresid.linter.run.engine import violations_in
        from jaxresid.linter.text.document import read
        from jaxresid.violations import Violation

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

    def run(
        self, paths: Sequence[str], *, jobs: int | None = None, cache: bool = True
    ) -> tuple[Linted, ...]:
        """Lint files and directories.

        Args:
          paths: the files and directories.
          jobs: number of processes; None for one per processor.
          cache: whether to keep results in the configuration's cache directory, and use them.

        Returns:
          One entry per file with findings, sorted by path.

        Raises:
          UsageError: A path does not exist.
        """
        directories = [Path(os.path.abspath(p)) for p in paths if os.path.isdir(p)]
        self.complete = (*self.complete, *directories)
        before_reading = time.time_ns()
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
        if cache and candidates:
            results += self._cached(self._open_cache(before_reading), candidates, jobs)
        else:
            results += self._lint(candidates, jobs)
        return tuple(sorted((r for r in results if r.violations), key=lambda r: r.path))

    def _candidate(self, found: FoundFile) -> CandidateFile | Linted | None:
        try:
            with open(found.absolute, "rb", buffering=0) as file:
                stat = os.fstat(file.fileno())  # before reading, for the cache
                raw = file.readall()
        except OSError as e:
            return _unreadable(found.path, e.strerror or str(e))
        if not funnel.mentions(raw, self.markers(self.config_in(found.absolute.parent))):
            return None
        return CandidateFile(found.path, found.absolute, raw, stat)

    def _lint(self, candidates: Sequence[CandidateFile], jobs: int | None) -> Iterable[Linted]:
        workers = min(jobs or available_cpus(), len(candidates))
        # JAX's threads and a fork may deadlock, so a notebook that has imported it lints alone.
        alone = workers < 2 or "jax" in sys.modules
        if alone or sum(len(c.raw) for c in candidates) < _POOL_NBYTES:
            return [self.content(c.raw, c.path, c.absolute) for c in candidates]
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool
        from multiprocessing import active_children

        # Big files first, so that none of them is left for the end.
        ordered = sorted(candidates, key=lambda c: -len(c.raw))
        work = [(c.raw, c.path, c.absolute) for c in ordered]
        others = set(active_children())
        chunk = max(1, len(work) // (workers * _CHUNKS_PER_JOB))
        with ProcessPoolExecutor(
            workers,
            initializer=_start,
            initargs=(self.config, self.nearest, self.complete, self.ignore_noqa),
        ) as pool:
            try:
                with blocking_interrupts():  # and so are the processes that this starts
                    found = pool.map(_in_worker, work, chunksize=chunk)
                return list(found)
            except BaseException as e:
                # Nobody waits for them any more.
                for process in set(active_children()) - others:
                    process.terminate()
                if isinstance(e, BrokenProcessPool):
                    raise JaxresidError(
                        "a linting process was killed (out of memory?); --jobs 1 uses only one"
                    ) from None
                raise

    def _open_cache(self, before_reading: int) -> LintCache:
        from jaxresid._version import __version__
        from jaxresid.linter.run.cache import LintCache, cache_key
        from jaxresid.linter.run.cache_format import code_fingerprint

        rules = f"{code_fingerprint()} {self.ignore_noqa}"
        key = cache_key(__version__, rules, self.config.fingerprint(), self.config.root)
        return LintCache.open(self.config.cache_dir, key, since_ns=before_reading)

    def _cached(
        self, cache: LintCache, candidates: Sequence[CandidateFile], jobs: int | None
    ) -> Iterable[Linted]:
        from jaxresid.linter.run.cache_format import as_json, from_json

        states = {
            root: self.project_digest(root) for root in {self.root(c.absolute) for c in candidates}
        }

        def depends_on(candidate: CandidateFile) -> str:
            config = self.config_in(candidate.absolute.parent)
            return f"{states[self.root(candidate.absolute)]} {config.fingerprint()}"

        results: list[Linted] = []
        missed: list[CandidateFile] = []
        for candidate in candidates:
            depends = depends_on(candidate)
            where = candidate.absolute, candidate.stat
            stored = cache.get(*where, depends=depends) or cache.get(
                *where, depends=depends, content=candidate.raw
            )
            try:
                results.append(from_json(stored, candidate.path))
            except (ValueError, RecursionError):  # there is none, or someone else wrote it
                missed.append(candidate)
        linted = {r.path: r for r in self._lint(missed, jobs)}
        for candidate in missed:
            results.append(linted[candidate.path])
            cache.put(
                candidate.absolute,
                candidate.stat,
                candidate.raw,
                as_json(linted[candidate.path]),
                depends=depends_on(candidate),
            )
        cache.save()
        return results


def _is_python(item: FoundFile | UnreadablePath) -> TypeGuard[FoundFile]:
    return isinstance(item, FoundFile) and item.path.endswith((".py", ".pyi"))


def _unreadable(path: str, reason: str) -> Linted:
    from jaxresid.linter.run.engine import unreadable

    return unreadable(path, reason)


class _Fixable:
    """A function that tells whether the configuration allows a rule's fixes.

    It is a class so that it can be sent to another process.
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    def __call__(self, code: str) -> bool:
        return self._config.fix_allowed(code, KNOWN.get(code, ""))


class _DisplayPaths(dict[Path, str]):
    """The paths by which files that nobody named are shown.

    They are relative to the working directory where they are below it.
    """

    def get(self, path: Path, default: str | None = None) -> str:  # type: ignore[override]
        relative = os.path.relpath(path)
        return relative if not relative.startswith("..") else str(path)


def _is_project(root: Path) -> bool:
    return any((root / f).exists() for f in ("pyproject.toml", "setup.py", "setup.cfg", ".git"))


def available_cpus() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_worker: LintRun | None = None


def _start(
    config: Config, nearest: Options | None, complete: tuple[Path, ...], ignore_noqa: bool
) -> None:
    global _worker  # noqa: PLW0603
    _worker = LintRun(config, nearest=nearest, complete=complete, ignore_noqa=ignore_noqa)


def _in_worker(work: tuple[bytes, str, Path]) -> Linted:
    assert _worker is not None
    return _worker.content(*work)
