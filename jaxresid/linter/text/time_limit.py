"""Limit the CPU time that linting one file takes, so that one that never ends holds up no others.

The time that a project's other files take to read counts as theirs. The system's timer of CPU time
interrupts Python code and `re`; what other code does without an end is run in a process of its own,
which can be ended. Only the main thread can be interrupted, and not on Windows, which has no such
timer; elsewhere there is no limit.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeVar

_T = TypeVar("_T")
SECONDS = 10.0
# The timer goes off again, as what it raises in a finalizer is lost.
_AGAIN_S = 0.5
_LEAST_S = 0.001  # to set a timer to 0 is to stop it

# The file that is linted, and those that are read for it, each for the one before it.
_files: list[Path] = []


class OverLimitError(BaseException):
    """The end of the work on a file that takes too long; no error, so that nobody handles it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(f"{path} takes over {SECONDS:g} s of CPU time")


@contextmanager
def limited(path: Path) -> Iterator[None]:
    """Allow the work on a file as much CPU time as one may take.

    Raises:
      OverLimitError: It takes longer, or reading another file does.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if _files or not is_main or sys.platform == "win32":
        yield
        return
    before = signal.signal(signal.SIGPROF, _stop)
    _files.append(path)
    signal.setitimer(signal.ITIMER_PROF, SECONDS, _AGAIN_S)
    try:
        yield
    finally:
        _files.clear()  # from now on the timer does nothing
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def start_again() -> None:
    """Count the time of the file that is linted from now."""
    if _files and sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, SECONDS, _AGAIN_S)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Count the CPU time until the block ends as that of another file, which has its own limit."""
    if not _files or _files[-1] == path or sys.platform == "win32":
        yield
        return
    left, _ = signal.setitimer(signal.ITIMER_PROF, SECONDS, _AGAIN_S)
    _files.append(path)
    try:
        yield
    finally:
        del _files[-1:]
        signal.setitimer(signal.ITIMER_PROF, max(left, _LEAST_S), _AGAIN_S)


def _stop(signum: int, frame: FrameType | None) -> None:
    if _files:
        raise OverLimitError(_files[-1])


def in_child(function: Callable[[str], _T | None], text: str) -> _T | None:
    """Return what a function makes of a text, None where the process ends that it is run in.

    Use it for what no signal interrupts. Where a process cannot be copied, as it has threads, the
    function is run in this one.

    Raises:
      OverLimitError: It takes longer than a file may.
    """
    if (
        not _files
        or sys.platform == "win32"
        or threading.active_count() > 1
        or "jax" in sys.modules
    ):
        return function(text)
    import pickle  # takes 2 ms, which few files need

    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        status = 1
        try:
            with os.fdopen(writer, "wb") as file:
                pickle.dump(function(text), file)
            status = 0
        finally:
            os._exit(status)
    try:
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            answer = file.read()
    finally:
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        raise OverLimitError(_files[-1])
    return pickle.loads(answer) if status == 0 else None
