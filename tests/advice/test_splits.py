"""Splits of a place's calls, against every split, with peaks and costs that are given."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from jaxresid.advice.plan.search.combinations import TracedVariant
from jaxresid.advice.plan.search.options import Menu, Option
from jaxresid.advice.plan.search.splits import try_splits
from jaxresid.inspector.variants.choices import CheckpointPlace, Choice

HEAVY, LIGHT = Option(Choice()), Option(None)


@dataclass
class OnePlace:
    """A search at one place whose peaks, by the number of calls under HEAVY, are given."""

    peaks: list[int]
    budget: int
    tried: dict[int, TracedVariant] = field(default_factory=dict)

    def __post_init__(self):
        self.place = CheckpointPlace("call", "layer", None, self.calls, self.calls, can_split=True)
        self.menus = (Menu(self.place, LIGHT, (HEAVY,), (), True),)
        for count in (0, self.calls):
            self.trial({self.place: ((HEAVY, count), (LIGHT, self.calls - count))})

    @property
    def calls(self):
        return len(self.peaks) - 1

    def trial(self, chosen):
        runs = chosen[self.place]
        count = sum(n for option, n in runs if option is HEAVY)
        made = TracedVariant({self.place: runs}, SimpleNamespace(), float(count))
        return self.tried.setdefault(count, made)

    def known(self, chosen):
        return self.tried.get(self.calls if chosen[self.place] is HEAVY else 0)

    def others(self, place, tried):
        return {}

    def peak(self, tried):
        return self.peaks[int(tried.cost)]

    def fits(self, tried):
        return self.peak(tried) <= self.budget

    def best(self):
        return min(filter(self.fits, self.tried.values()), key=lambda t: t.cost, default=None)


@given(st.lists(st.integers(1, 50), min_size=2, max_size=100), st.data())
def test_the_fewest_calls_that_fit_are_found(falls, data):
    peaks = [sum(falls[i:]) for i in range(len(falls) + 1)]
    search = OnePlace(peaks, data.draw(st.integers(0, peaks[0] - 1)))
    try_splits(search)
    fewest = next(count for count, peak in enumerate(peaks) if peak <= search.budget)
    assert search.best().cost == fewest


@pytest.mark.parametrize("calls", [6, 12, 48, 96])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_two_traces_find_it_where_peaks_go_evenly(calls, share):
    search = OnePlace([1000 * (calls - i) for i in range(calls + 1)], int(1000 * calls * share))
    try_splits(search)
    assert len(search.tried) <= 2 + 2


def test_no_mixture_is_traced_that_is_dearer_than_the_best():
    search = OnePlace([100] * 49 + [60, 50], 60)
    cheaper = TracedVariant({}, SimpleNamespace(), 45.5)
    search.best = lambda: cheaper
    try_splits(search)
    assert set(search.tried) == {0, 40, 48, 50}
