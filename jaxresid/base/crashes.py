"""Errors of our own code in one part of a result: the others are shown, and it is told of.

The part that looks for one finding may crash, on a JAX that removed a function for instance. That
costs this finding alone, and the report's warnings name it. Under `--traceback` and in our tests
the error is raised instead.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType

from jaxresid.base.errors import summary
from jaxresid.base.home import FOLDER

logging.getLogger("jaxresid").addHandler(logging.NullHandler())

# Whether errors of our own are raised where they would cost a part of a result alone.
RAISES: ContextVar[bool] = ContextVar("raises", default=False)


@dataclass(frozen=True, slots=True)
class Crash:
    """An error of our own code that cost a part of a result.

    Attributes:
      part: what is missing, as a message names it: `the finding logits-at-peak`.
      error: the error's type and message, in one line.
      place: where our code raised it or called what did: `inspector/memory/peak.py:12`.
    """

    part: str
    error: str
    place: str


@contextlib.contextmanager
def raising(on: bool) -> Iterator[None]:
    """Raise errors of our own in the context if `on`; see `RAISES`."""
    token = RAISES.set(on or RAISES.get())
    try:
        yield
    finally:
        RAISES.reset(token)


def crash_of(part: str, error: BaseException) -> Crash:
    """Return the crash of a part of a result by an error."""
    return Crash(part, summary(error), _place(error.__traceback__))


def crash_warnings(crashes: Iterable[Crash]) -> tuple[str, ...]:
    """Return what a result says of crashes: a line for all parts that one error cost."""
    by_error: dict[str, list[Crash]] = {}
    for crash in crashes:
        by_error.setdefault(crash.error, []).append(crash)
    warnings = []
    for error, alike in by_error.items():
        parts = _joined(list(dict.fromkeys(crash.part for crash in alike)))
        places = ", ".join(dict.fromkeys(crash.place for crash in alike))
        warnings.append(
            f"a bug in jaxresid: {parts} could not be looked for, so this result is not complete:"
            f" {error} ({places}); --traceback shows more, please report it"
        )
    return tuple(warnings)


def _joined(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _place(tb: TracebackType | None) -> str:
    """Return the innermost line of our code in a traceback, from the package's folder."""
    place = "an unknown line"
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        if file.startswith(FOLDER):
            place = f"{file.removeprefix(FOLDER).replace(os.sep, '/')}:{tb.tb_lineno}"
        tb = tb.tb_next
    return place
