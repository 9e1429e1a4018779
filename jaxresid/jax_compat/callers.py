"""Which frames JAX keeps of a traced function's callers."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from jaxresid.jax_compat.patches import patched
from jaxresid.jax_compat.version import import_jax


def without_callers() -> contextlib.AbstractContextManager[Any]:
    """Return the context in which what JAX traces has no line of those who asked for it.

    Modules of the same program are equal then, wherever they are lowered. Eqns that are traced
    already keep their lines.
    """
    from jax._src import source_info_util

    return source_info_util.user_context(_no_callers())  # type: ignore[no-any-return]


def untagged() -> contextlib.AbstractContextManager[None]:
    """Return the context in which what JAX traces has no tag of a derivative that is taken."""
    from jax._src import source_info_util

    return source_info_util.reset_name_stack()  # type: ignore[no-any-return]


@contextlib.contextmanager
def keeping_callers() -> Iterator[None]:
    """Let the first trace within the context keep the lines of those who asked for it.

    JAX forgets them since 0.7.1, but for the outermost trace.
    """
    from jax._src.interpreters import partial_eval

    cutting = getattr(partial_eval, "TracebackScope", None)

    def keep() -> contextlib.AbstractContextManager[None]:
        partial_eval.TracebackScope = cutting
        return contextlib.nullcontext()

    if cutting is None:
        yield
        return
    with patched({(partial_eval, "TracebackScope"): keep}):
        yield


@contextlib.contextmanager
def whole_tracebacks() -> Iterator[None]:
    """Let the tracebacks of exceptions that JAX hands on keep the lines in JAX."""
    config = import_jax().config
    before = config.jax_traceback_filtering
    config.update("jax_traceback_filtering", "off")
    try:
        yield
    finally:
        config.update("jax_traceback_filtering", before)


def running_code(above: int = 0) -> Iterator[tuple[CodeType, int]]:
    """Yield the code of the frames that run, with the offset that each is at, innermost first.

    They begin so many frames above the one that asks for the first of them.
    """
    frame: FrameType | None = sys._getframe(above + 1)
    while frame is not None:
        yield frame.f_code, frame.f_lasti
        frame = frame.f_back


@functools.cache
def _no_callers() -> Any:
    from jax._src.lib import xla_client

    tracebacks: list[Any] = []
    thread = threading.Thread(
        target=lambda: tracebacks.append(xla_client.Traceback.get_traceback())
    )
    thread.start()
    thread.join()
    return tracebacks[0]
