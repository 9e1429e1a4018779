"""In as many days as there are parts every test is run, also where the gate's time is up early."""

from types import SimpleNamespace

import pytest

from tests.shares import SKIPPED_AT_MOST, shared

ITEMS = [SimpleNamespace(nodeid=f"test_{i}") for i in range(5000)]


def of_day(day, parts):
    before, today = shared(f"{day}/{parts}", ITEMS)
    return before + today


@pytest.mark.parametrize("parts", [1, 8, 28])
def test_all_parts_are_all_tests(parts):
    days = [{i.nodeid for i in of_day(20_000 + day, parts)} for day in range(parts)]
    assert set().union(*days) == {item.nodeid for item in ITEMS}
    assert max(map(len, days)) < 1.3 * len(ITEMS) / parts


def test_what_was_skipped_for_time_comes_first_on_the_next_day():
    first, second = (of_day(day, 28) for day in (7, 8))
    skipped = first[len(first) - int(SKIPPED_AT_MOST * len(first)) :]
    assert 0 < len(skipped) < len(first)
    assert {i.nodeid for i in skipped} <= {i.nodeid for i in second[: len(skipped) + 1]}
