"""Which line of a file as it was is which line now, against all that may be said of it."""

import random

import pytest

from jaxresid.base.violations import Span, Violation
from jaxresid.server.traced.line_map import line_map
from jaxresid.server.traced.shown import _moved


def edited(random_, lines):
    now = list(lines)
    for _ in range(random_.randrange(4)):
        at = random_.randrange(len(now) + 1)
        now[at : at + random_.randrange(3)] = [
            random_.choice(("", "x", f"new {random_.random()}"))
            for _ in range(random_.randrange(3))
        ]
    return now


@pytest.mark.parametrize("seed", range(200))
def test_of_random_edits(seed):
    """Only equal lines are the same, in their order, and what is not near an edit is."""
    random_ = random.Random(seed)
    lines = [random_.choice(("", "x", f"line {n}")) for n in range(random_.randrange(30))]
    now = edited(random_, lines)
    found = line_map(lines, now)
    rows = sorted(found)
    assert [found[row] for row in rows] == sorted(set(found.values()))
    assert all(lines[row - 1] == now[found[row] - 1] for row in rows)
    # A line that occurs once in both, between others that do, is found.
    unique = [n for n, line in enumerate(lines, 1) if line.startswith("line") and line in now]
    assert set(unique) <= set(found)
    assert all(now.index(lines[row - 1]) + 1 == found[row] for row in unique)


def test_of_the_same_and_of_nothing():
    assert line_map(("a", "a"), ("a", "a")) == {1: 1, 2: 2}
    assert line_map((), ("a",)) == line_map(("a",), ()) == {}
    # What is in front of and behind an edit is what it was, however often it occurs.
    assert line_map(("a", "b", "a"), ("a", "c", "a", "a")) == {1: 1, 3: 4}


def test_findings_of_several_lines_move_as_a_whole():
    found = Violation("JXR801", "x", "info", "m", "a.py", Span(2, 4, 4, 1), noqa_rows=(2, 4))
    moved = _moved(found, {2: 5, 3: 6, 4: 7})
    assert (moved.span, moved.noqa_rows) == (Span(5, 4, 7, 1), (5, 7))
    assert _moved(found, {2: 5, 4: 7}) is None  # the line between is another one
    assert _moved(found, {2: 5, 3: 6, 4: 8}) is None  # there is one more
