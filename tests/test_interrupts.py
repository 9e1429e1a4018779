import contextlib
import gc
import os
import signal
import sys
import threading
import time

import pytest

from jaxresid.interrupts import minded


@pytest.fixture
def dropped(monkeypatch):
    """What Python printed and forgot."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: found.append(unraisable.exc_type))
    return found


@pytest.fixture(autouse=True)
def handler():
    # A shell's background jobs, and so the tests in one, start with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def called_back(function):
    def callback(phase, info):
        if phase == "start":
            function()

    gc.callbacks.append(callback)
    try:
        yield
    finally:
        gc.callbacks.remove(callback)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):  # Python calls the handler between two instructions
        pass


def collect_and_wait():
    with minded():
        gc.collect()
        time.sleep(5)


def interrupt_and_go_on(after):
    with minded():
        gc.collect()
        interrupt()
        after.append("went on")


def test_without_it_an_interrupt_is_dropped(dropped):
    with called_back(interrupt):
        gc.collect()
    time.sleep(0.1)
    assert dropped == [KeyboardInterrupt]


def test_one_in_a_callback_comes_after_it(dropped):
    began = time.monotonic()
    with called_back(interrupt), pytest.raises(KeyboardInterrupt):
        collect_and_wait()
    assert time.monotonic() - began < 4
    assert dropped == []


def test_one_in_what_a_callback_calls_comes_after_it(dropped):
    with called_back(lambda: [interrupt()]), pytest.raises(KeyboardInterrupt):
        collect_and_wait()
    assert dropped == []


def test_one_elsewhere_comes_at_once():
    after = []
    with called_back(int), pytest.raises(KeyboardInterrupt):
        interrupt_and_go_on(after)
    assert after == []


def test_the_handler_is_put_back():
    with minded():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        inner = signal.getsignal(signal.SIGINT)
        with minded():
            assert signal.getsignal(signal.SIGINT) is inner
        assert signal.getsignal(signal.SIGINT) is inner
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("theirs", [signal.SIG_IGN, signal.SIG_DFL, lambda number, frame: None])
def test_somebody_elses_is_left(theirs):
    signal.signal(signal.SIGINT, theirs)
    with minded():
        assert signal.getsignal(signal.SIGINT) == theirs
    assert signal.getsignal(signal.SIGINT) == theirs


def test_nothing_is_done_in_another_thread():
    found = []

    def in_a_thread():
        with minded():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
