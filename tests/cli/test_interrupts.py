import contextlib
import gc
import os
import signal
import sys
import threading
import time
import weakref

import pytest

from jaxresid.base.interrupts import reraising_interrupts


@pytest.fixture
def dropped(monkeypatch):
    """What Python printed and forgot."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: found.append(unraisable.exc_type))
    return found


pytestmark = pytest.mark.usefixtures("interruptible")


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):  # Python calls the handler between two instructions
        pass


class Thing:
    pass


class Dying:
    def __del__(self):
        interrupt()


def collected():
    """The garbage collector calls back."""

    def callback(phase, info):
        gc.callbacks.remove(callback)
        interrupt()

    gc.callbacks.append(callback)
    gc.collect()


def referenced():
    """A weak reference calls back."""
    thing = Thing()
    kept = weakref.ref(thing, lambda _: interrupt())
    del thing
    return kept


def deleted():
    Dying()


PLACES = pytest.mark.parametrize("place", [collected, referenced, deleted])


def pass_through(place, began=None):
    with reraising_interrupts():
        place()
        if began is not None:  # the garbage collector can take seconds
            began.append(time.monotonic())
        time.sleep(5)


def is_cut_short(place):
    """Whether an interrupt in this place, dropped there, ends the sleep that follows."""
    began = []
    with pytest.raises(KeyboardInterrupt):
        pass_through(place, began)
    return not began or time.monotonic() - began[0] < 4


@PLACES
def test_without_it_an_interrupt_is_dropped(place, dropped):
    place()
    time.sleep(0.1)
    assert dropped == [KeyboardInterrupt]


@pytest.mark.integration
@PLACES
def test_one_that_is_dropped_comes_again(place, dropped):
    # A signal between the moment that a sleep gives up the interpreter's lock and the system's call
    # does not end it: seen once, with two busy processors.
    assert any(is_cut_short(place) for _ in range(3))
    assert dropped == []


@pytest.mark.integration
def test_one_that_is_dropped_twice_comes_a_third_time(dropped):
    def twice():
        collected()
        kept, end = [], time.monotonic() + 5
        with contextlib.suppress(KeyboardInterrupt):
            while time.monotonic() < end:
                kept.append(time.monotonic())
        collected()

    with pytest.raises(KeyboardInterrupt):
        pass_through(twice)
    assert dropped == []


def test_one_elsewhere_comes_at_once():
    after = []

    def going_on():
        interrupt()
        after.append("went on")

    with pytest.raises(KeyboardInterrupt):
        pass_through(going_on)
    assert after == []


def test_what_else_is_dropped_is_said_as_before(dropped):
    class Failing:
        def __del__(self):
            raise ValueError

    with reraising_interrupts():
        Failing()
    assert dropped == [ValueError]


def test_the_hook_is_put_back():
    before = sys.unraisablehook
    with reraising_interrupts():
        outer = sys.unraisablehook
        with reraising_interrupts():
            assert sys.unraisablehook is not outer
        assert sys.unraisablehook is outer
    assert sys.unraisablehook is before


def test_the_hook_of_someone_else_is_left(monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with reraising_interrupts():
        sys.unraisablehook = theirs = lambda unraisable: None
    assert sys.unraisablehook is theirs


def test_nothing_is_done_in_another_thread():
    found = []

    def in_a_thread():
        with reraising_interrupts():
            found.append(sys.unraisablehook)

    before = sys.unraisablehook
    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert found == [before]
