"""Handle Ctrl-C while JAX is being loaded or is running.

An interrupt can arrive where extension modules crash on exceptions, or where Python drops it.
"""

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
    from types import FrameType

_AGAIN_AFTER_S = 0.01


@contextlib.contextmanager
def deferring_interrupts() -> Iterator[None]:
    """Hold back a Ctrl-C and deliver it when the block ends.

    This is for imports: if the handler raises while jaxlib's extension modules are being set up,
    the process ends in a segmentation fault, or the import fails and cannot be tried again. Outside
    the main thread, which alone receives Ctrl-C, and where Ctrl-C is not handled by Python, nothing
    is done.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # what was imported may have its own
            signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def blocking_interrupts() -> Iterator[None]:
    """Block Ctrl-C until the block ends.

    Processes that are started inside the block never receive it: ending them is up to whoever
    starts them.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def reraising_interrupts() -> Iterator[None]:
    """Raise a KeyboardInterrupt again if Python drops it inside the block.

    Python raises it wherever the main thread is. In a callback of the garbage collector or of a
    weak reference it is printed and forgotten, and JAX has both: `_xla_gc_callback` swallowed 3 of
    60 that came while a function was lowered, on 0.7.0 and on 0.10.2. Outside the main thread
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
