"""What libraries log past Python, and what of it a user of the command line reads."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import BinaryIO

_STDERR = 2
# JAX tells its users to set it to 0 where they want to see all.
_VARIABLE = "TF_CPP_MIN_LOG_LEVEL"
# Lines of absl's logger, and what it and libtpu 0.0.52 write around them.
_LOGGED = re.compile(
    r"[IWEF]\d{4} \d\d:\d\d:\d\d"
    r"|WARNING: (?:All log messages before absl|Logging before InitGoogle)"
    r"|Failed to find host bounds for accelerator type: "
    r"|=== Source Location Trace: ===\s*$"
    r"|[\w./-]+\.cc:\d+\s*$"
)

_keeps = False


@contextlib.contextmanager
def keeping_logs() -> Iterator[None]:
    """Have `logs_kept` keep logs during the context, unless TF_CPP_MIN_LOG_LEVEL is 0."""
    global _keeps  # noqa: PLW0603 - descriptors are the process's, too
    before = _keeps
    _keeps = os.environ.get(_VARIABLE) != "0"
    try:
        yield
    finally:
        _keeps = before


def are_logs_kept() -> bool:
    """Return whether `logs_kept` keeps logs."""
    return _keeps


@contextlib.contextmanager
def logs_kept() -> Iterator[None]:
    """Send what libraries log in the context to the logger `jaxresid`, not to stderr.

    They write it to the descriptor of stderr. All else that is written there meanwhile comes when
    the context ends, and the log too if it ends in an error. Nothing changes outside
    `keeping_logs`.
    """
    if not _keeps:
        yield
        return
    import tempfile

    with contextlib.ExitStack() as stack:
        try:
            shown = os.dup(_STDERR)
            stack.callback(os.close, shown)
            file = stack.enter_context(tempfile.TemporaryFile())
        except OSError:  # it is closed, or nothing can be written
            yield
            return
        _flush()
        os.dup2(file.fileno(), _STDERR)
        has_failed = False
        try:
            yield
        except Exception:
            has_failed = True
            raise
        finally:
            _flush()
            os.dup2(shown, _STDERR)
            _hand_on(file, with_logs=has_failed)


def _flush() -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
        sys.stderr.flush()


def _hand_on(file: BinaryIO, *, with_logs: bool) -> None:
    import logging

    file.seek(0)
    lines = file.read().splitlines(keepends=True)
    logger = logging.getLogger("jaxresid")
    rest = []
    for line in lines:
        text = line.decode(errors="replace")
        is_logged = _LOGGED.match(text) is not None
        if is_logged:
            logger.debug("%s", text.rstrip())
        if with_logs or not is_logged:
            rest.append(line)
    with contextlib.suppress(OSError), open(_STDERR, "wb", closefd=False) as stream:
        stream.write(b"".join(rest))
