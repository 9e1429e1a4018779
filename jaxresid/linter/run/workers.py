"""Lint files one by one in this process, or in a pool of processes where that saves time."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from jaxresid.base.errors import JaxresidError
from jaxresid.base.interrupts import blocking_interrupts
from jaxresid.linter.text.time_limit import OverLimitError, limited

if TYPE_CHECKING:
    from jaxresid.base.violations import Linted

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
      left_out: the files that took too long until then, in the process that linted it.
    """

    linted: Linted
    left_out: frozenset[Path]


class FileLinter(Protocol):
    """What lints a file in its project: `files.LintRun`.

    Attributes:
      over_limit_files: the files that took too long.
    """

    over_limit_files: frozenset[Path]

    def content(self, raw: bytes, path: str, absolute: Path) -> Linted:
        """Lint bytes as the content of a file."""

    def leave_out(self, path: Path) -> None:
        """Take a file for empty from now on, and forget what is known of others."""


def lint_files(
    candidates: Sequence[CandidateFile],
    jobs: int | None,
    lint: FileLinter,
    another: Callable[[], FileLinter],
) -> list[Linted]:
    """Lint files.

    Other files of their projects that take too long to read have a result as well.

    Args:
      candidates: the files.
      jobs: number of processes; None for one per processor.
      lint: what lints in this process.
      another: makes what lints in each other process; it can be sent there.
    """
    outcomes = _outcomes(candidates, jobs, lint, another)
    left_out = {path for outcome in outcomes for path in outcome.left_out}
    linted = [outcome.linted for outcome in outcomes]
    if not left_out:
        return linted
    from jaxresid.linter.run.engine import over_limit

    # Of these nobody asked, as they concern no rule, but others were linted without them.
    others = sorted(left_out - {candidate.absolute for candidate in candidates})
    return [*linted, *(over_limit(_shown(path)) for path in others)]


def _shown(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _outcomes(
    candidates: Sequence[CandidateFile],
    jobs: int | None,
    lint: FileLinter,
    another: Callable[[], FileLinter],
) -> list[_Outcome]:
    workers = min(jobs or available_cpus(), len(candidates))
    # JAX's threads and a fork may deadlock, so a notebook that has imported it lints alone.
    alone = workers < 2 or "jax" in sys.modules
    if alone or sum(len(c.raw) for c in candidates) < _POOL_NBYTES:
        with collecting_rarely():
            return [_outcome(lint, candidate) for candidate in candidates]
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children

    # Big files first, so that none of them is left for the end.
    ordered = sorted(candidates, key=lambda c: -len(c.raw))
    others = set(active_children())
    chunk = max(1, len(ordered) // (workers * _CHUNKS_PER_JOB))
    with ProcessPoolExecutor(workers, initializer=_start, initargs=(another,)) as pool:
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


def _outcome(lint: FileLinter, file: CandidateFile) -> _Outcome:
    """Lint a file.

    One that takes too long is stopped, and so is one that does for this one to read: then this one
    is linted without it.
    """
    linted = None
    if file.absolute not in lint.over_limit_files:
        work = partial(lint.content, file.raw, file.path, file.absolute)
        linted = within_limit(lint, file.absolute, work)
    if linted is None:
        from jaxresid.linter.run.engine import over_limit

        linted = over_limit(file.path)
    return _Outcome(linted, lint.over_limit_files)


_lint: FileLinter | None = None


def _start(another: Callable[[], FileLinter]) -> None:
    global _lint  # noqa: PLW0603
    _lint = another()
    _collect_rarely()  # in this process for good


def _in_worker(file: CandidateFile) -> _Outcome:
    assert _lint is not None
    return _outcome(_lint, file)
