"""Exceptions for everything that can go wrong, with messages written for the user.

The command line prints the message after `jaxresid: error:` and exits 2; it shows no traceback
unless `--traceback` asks for it. The first line says what was wrong and, where there is one
answer, what to write instead; further lines may show a signature or a caret.
"""

import re
from collections.abc import Callable
from types import CodeType
from typing import TypeVar

# What is no failure of the user's code, whatever else it may raise.
NOT_CAUGHT = (KeyboardInterrupt, GeneratorExit)
_AROUND = 60  # how many characters of a SPEC stand on either side of the one that is wrong
_LENGTH = 300  # of an exception's message in a summary

F = TypeVar("F", bound=Callable[..., object])
_CALLERS: set[CodeType] = set()


class JaxresidError(Exception):
    """Any failure with a message for the user."""


class MissingJaxError(JaxresidError):
    """The error of a command that needs jax where none, or one that is too old, is installed."""


class TargetError(JaxresidError):
    """The error of a target that does not name a function that can be loaded."""


class InputsError(JaxresidError):
    """The error of inputs that are missing, ambiguous, or do not fit the target."""


class SpecError(InputsError):
    """The error of a SPEC of `--arg` or `--kwarg` that does not parse.

    Attributes:
      column: 0-based offset of the offending character in the SPEC.
    """

    def __init__(self, spec: str, column: int, reason: str) -> None:
        self.column = column
        start = max(0, column - _AROUND) if len(spec) > 2 * _AROUND else 0
        shown = spec[start : start + 2 * _AROUND]
        before, after = "…" * bool(start), "…" * (start + len(shown) < len(spec))
        caret = " " * (len(before) + column - start) + "^"
        super().__init__(f"{reason}\n  {before}{shown}{after}\n  {caret}")


class DocumentError(JaxresidError):
    """The error of a file that holds no result, or a damaged one."""


class TraceError(JaxresidError):
    """The error of a target that JAX could not trace or differentiate."""


class RetraceError(JaxresidError):
    """The error of a program that JAX cannot trace or differentiate again with a change.

    The user's code or JAX raised its cause; see `inspector.trace.retracing`.
    """


def calls_user_code(function: F) -> F:
    """Return a function of ours, marked as one that calls a function of the user's.

    What such a call raises is the user's error, not ours.
    """
    _CALLERS.add(function.__code__)
    return function


def is_caller(code: CodeType) -> bool:
    """Return whether code is that of a function which `calls_user_code`."""
    return code in _CALLERS


def summary(error: BaseException) -> str:
    """Return `Type: message` of an exception in one line, without JAX's explanations."""
    try:
        text = str(error).strip()
    except Exception:  # even that is the user's code
        text = ""
    first = re.split(r"\n\s*\n|\nThe error occurred|\nSee https|\nThis concrete", text)[0]
    first = re.sub(r"\s+", " ", first)
    if len(first) > _LENGTH:
        first = first[: _LENGTH - 1] + "…"
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
