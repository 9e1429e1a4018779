"""Follow the tracebacks in a log, to tell which function of the user's ran out of memory."""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass

_BEGINS = "Traceback (most recent call last)"
_FRAME = re.compile(r'^\s+File "([^"\n]{1,4096})", line \d{1,9}, in (\S.*)$')
_MARKS = re.compile(r"^\s*[~^]+\s*$")
_CALL = re.compile(r"(?<![\w.])([A-Za-z_][\w.]{0,200}+)\(")
# Where code is not the user's own.
_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|^<")
# Functions that call the one that runs out, and are no loss and no training step.
_CALLERS = {"<module>", "main", "<lambda>"}
_MOST_FRAMES = 1_000


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function as a traceback names it: its file, and its name there."""

    file: str
    name: str


@dataclass(slots=True)
class _Frame:
    file: str
    function: str
    code: str = ""
    marks: str = ""


class TracebackReader:
    """The last traceback of one process."""

    def __init__(self) -> None:
        self._frames: list[_Frame] = []
        self._is_open = False

    @property
    def is_open(self) -> bool:
        return self._is_open

    def read(self, line: str) -> UserFunction | None:
        """Take in a line, and return the user's function if the line ends a traceback of one."""
        if _BEGINS in line:
            self._frames, self._is_open = [], True
            return None
        if not self._is_open or not line.strip():
            return None
        if frame := _FRAME.match(line):
            self._frames = [*self._frames[-_MOST_FRAMES:], _Frame(frame[1], frame[2])]
        elif line[0].isspace():
            self._detail(line)
        else:
            self._is_open = False
            return _innermost(self._frames)
        return None

    def _detail(self, line: str) -> None:
        if not self._frames:
            return
        frame = self._frames[-1]
        if not frame.code:
            frame.code = line
        elif not frame.marks and _MARKS.match(line):
            frame.marks = line


def begins(line: str) -> bool:
    return _BEGINS in line


def _innermost(frames: list[_Frame]) -> UserFunction | None:
    """Return the function that the innermost frame of the user's calls, or else is of."""
    frame = next((f for f in reversed(frames) if not _LIBRARY.search(f.file)), None)
    if frame is None or not frame.file.endswith(".py"):
        return None
    name = _called(frame) or frame.function
    if name in _CALLERS or name.startswith("__") or not name.isidentifier():
        return None
    return UserFunction(frame.file, name)


def _called(frame: _Frame) -> str | None:
    """Return the name of the function of the module that a frame's line calls; None for another."""
    code = frame.code
    if "^" in frame.marks:
        start = len(frame.marks) - len(frame.marks.lstrip())
        code = code[start : len(frame.marks.rstrip())]
    call = _CALL.search(code)
    if call is None or "." in call[1] or hasattr(builtins, call[1]):
        return None
    return call[1]
