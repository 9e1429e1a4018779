"""Ctrl-C while JAX is at work: it comes where Python drops exceptions."""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_AGAIN_AFTER_S = 0.01


@contextlib.contextmanager
def minded() -> Iterator[None]:
    """Has a KeyboardInterrupt that Python drops raised again.

    Python raises it wherever the main thread is. In a callback of the garbage collector or of a
    weak reference it is printed and forgotten, and JAX has both: `_xla_gc_callback` ate 3 of 60
    that came while a function was lowered, on 0.7.0 and on 0.10.2. Outside of the main thread
    nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = sys.unraisablehook

    def hook(unraisable: UnraisableHookArgs) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            _thread.start_new_thread(_again, ())
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        # A generator that nobody closed may end late, and others have hooks, too.
        if sys.unraisablehook is hook:
            sys.unraisablehook = before


def _again() -> None:
    time.sleep(_AGAIN_AFTER_S)  # until the callback has returned
    if hasattr(signal, "pthread_kill"):  # which ends a sleep in the main thread, too
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()
