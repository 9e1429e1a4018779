"""Lint files one by one in this process, or in a pool of processes where that saves time."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from jaxresid.errors import JaxresidError
from jaxresid.interrupts import blocking_interrupts
from jaxresid.linter.text.time_limit import OverLimitError, limited

if TYPE_CHECKING:
    from jaxresid.linter.resolve.notes import Dependencies
    from jaxresid.linter.resolve.project import Project
    from jaxresid.linter.run.known_results import AnswerDigests, FileNames, Learned
    from jaxresid.violations import Linted

_T = TypeVar("_T")
# Below this much to parse, a pool of processes costs more than it saves (measured on flax: equal
# at 0.4 MB).
_POOL_NBYTES = 500_000
_CHUNKS_PER_JOB = 4
# Trees are made of many small objects, nearly all of which live until their file is done: to look
# for cycles after every 700 of them takes a quarter of the time on this repository, a tenth on jax.
_OBJECTS_PER_COLLECTION = 50_000


class CandidateFile(NamedTuple):
    """A file that passed the filter on its bytes."""

    path: str
    absolute: Path
    raw: bytes


class _Outcome(NamedTuple):
    """What came of linting a file.

    Attributes:
      linted: the result.
      learned: what it depends on; None where nobody asks.
      left_out: the files that took too long until then, in the process that linted it.
    """

    linted: Linted
    learned: Learned | None
    left_out: frozenset[Path]


class FileLinter(Protocol):
    """What lints a file in its project: `files.LintRun`.

    Attributes:
      over_limit_files: the files that took too long.
    """

    over_limit_files: frozenset[Path]

    def content(self, raw: bytes, path: str, absolute: Path) -> Linted:
        """Lint bytes as the content of a file."""

    def dependencies(self, absolute: Path) -> Dependencies:
        """Return what the result of a file that was linted depends on."""

    def root(self, path: Path) -> Path:
        """Return the directory of the project that a file belongs to."""

    def project(self, root: Path) -> Project:
        """Return the index of a project."""

    def leave_out(self, path: Path) -> None:
        """Take a file for empty from now on, and forget what is known of others."""


def lint_files(
    candidates: Sequence[CandidateFile],
    jobs: int | None,
    names: FileNames | None,
    lint: FileLinter,
    another: Callable[[], FileLinter],
) -> list[tuple[Linted, Learned | None]]:
    """Lint files; with names for the cache, tell what each result depends on.

    Other files of their projects that take too long to read have a result as well.

    Args:
      candidates: the files.
      jobs: number of processes; None for one per processor.
      names: the names of files in the cache; None where nobody asks what results depend on.
      lint: what lints in this process.
      another: makes what lints in each other process; it can be sent there.
    """
    outcomes = _outcomes(candidates, jobs, names, lint, another)
    left_out = {path for outcome in outcomes for path in outcome.left_out}
    named = [(outcome.linted, outcome.learned) for outcome in outcomes]
    if not left_out:
        return named
    from jaxresid.linter.run.engine import over_limit

    # Of these nobody asked, as they concern no rule, but others were linted without them.
    others = sorted(left_out - {candidate.absolute for candidate in candidates})
    return [*named, *((over_limit(_shown(path)), None) for path in others)]


def _shown(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _outcomes(
    candidates: Sequence[CandidateFile],
    jobs: int | None,
    names: FileNames | None,
    lint: FileLinter,
    another: Callable[[], FileLinter],
) -> list[_Outcome]:
    workers = min(jobs or available_cpus(), len(candidates))
    # JAX's threads and a fork may deadlock, so a notebook that has imported it lints alone.
    alone = workers < 2 or "jax" in sys.modules
    if alone or sum(len(c.raw) for c in candidates) < _POOL_NBYTES:
        worker = Worker(lint, names)
        with collecting_rarely():
            return [worker.lint(candidate) for candidate in candidates]
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children

    # Big files first, so that none of them is left for the end.
    ordered = sorted(candidates, key=lambda c: -len(c.raw))
    others = set(active_children())
    chunk = max(1, len(ordered) // (workers * _CHUNKS_PER_JOB))
    with ProcessPoolExecutor(workers, initializer=_start, initargs=(another, names)) as pool:
        try:
            with blocking_interrupts():  # and so are the processes that this starts
                found = pool.map(_in_worker, ordered, chunksize=chunk)
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


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let Python look for garbage in cycles only now and then, until the block ends."""
    before = gc.get_threshold()
    _collect_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _collect_rarely() -> None:
    often, *older = gc.get_threshold()
    if often:  # 0 is never
        gc.set_threshold(max(often, _OBJECTS_PER_COLLECTION), *older)


def available_cpus() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def within_limit(lint: FileLinter, absolute: Path, work: Callable[[], _T]) -> _T | None:
    """Return what work on a file returns, None where it takes longer than a file may.

    Where reading another file takes that long, that one is left out, and the work begins again.

    Args:
      lint: what lints.
      absolute: the file.
      work: does the work, with what lints.
    """
    while True:
        try:
            with limited(absolute):
                return work()
        except OverLimitError as stopped:
            is_over = stopped.path == absolute or stopped.path in lint.over_limit_files
            lint.leave_out(stopped.path)
            if is_over:
                return None


class Worker:
    """What lints files one by one, in this process or in one of its own.

    Args:
      lint: the run.
      names: the names of files in the cache; None where nobody asks what results depend on.
    """

    def __init__(self, lint: FileLinter, names: FileNames | None) -> None:
        self._lint = lint
        self._digests: AnswerDigests | None = None
        if names is not None:
            from jaxresid.linter.run.known_results import AnswerDigests

            self._digests = AnswerDigests(names)

    def lint(self, file: CandidateFile) -> _Outcome:
        """Lint a file.

        One that takes too long is stopped, and so is one that does for this one to read: then this
        one is linted without it.
        """
        result = None
        if file.absolute not in self._lint.over_limit_files:
            result = within_limit(self._lint, file.absolute, lambda: self._linted(file))
        if result is None:
            from jaxresid.linter.run.engine import over_limit

            result = over_limit(file.path), None
        return _Outcome(*result, self._lint.over_limit_files)

    def _linted(self, file: CandidateFile) -> tuple[Linted, Learned | None]:
        linted = self._lint.content(file.raw, file.path, file.absolute)
        # What depends on a file that was left out depends on how fast the machine is.
        if self._digests is None or self._lint.over_limit_files:
            return linted, None
        root = self._lint.root(file.absolute)
        digest_of = self._lint.project(root).contents.digest
        return linted, self._digests.learned(
            root, self._lint.dependencies(file.absolute), digest_of
        )


_worker: Worker | None = None


def _start(another: Callable[[], FileLinter], names: FileNames | None) -> None:
    global _worker  # noqa: PLW0603
    _worker = Worker(another(), names)
    _collect_rarely()  # in this process for good


def _in_worker(file: CandidateFile) -> _Outcome:
    assert _worker is not None
    return _worker.lint(file)
