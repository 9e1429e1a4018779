"""Ctrl-C while JAX is at work: it has Python called where exceptions are dropped."""

from __future__ import annotations

import _thread
import contextlib
import gc
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

_AGAIN_AFTER_S = 0.01


@contextlib.contextmanager
def minded() -> Iterator[None]:
    """Puts KeyboardInterrupt off while the garbage collector calls back.

    Python raises it wherever the main thread is. In a callback of the garbage collector it is
    printed and lost, and JAX has one (`_xla_gc_callback`): 3 of 60 that came while a function was
    lowered, on 0.7.0 and on 0.10.2. Outside of the main thread, or where someone else minds SIGINT,
    nothing is done.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _raise_or_put_off)
    try:
        yield
    finally:
        # A generator that nobody closed ends in whatever thread drops it.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _raise_or_put_off(number: int, frame: FrameType | None) -> None:
    if _is_in_gc_callback(frame):
        _thread.start_new_thread(_again, ())
    else:
        signal.default_int_handler(number, frame)


def _is_in_gc_callback(frame: FrameType | None) -> bool:
    codes = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


def _again() -> None:
    time.sleep(_AGAIN_AFTER_S)
    if hasattr(signal, "pthread_kill"):  # which ends a sleep in the main thread, too
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()
