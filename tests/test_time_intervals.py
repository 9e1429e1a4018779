"""Intervals of times: against brute force and their definition, the data, what they are for."""

import dataclasses
import itertools
import math
import random
from fractions import Fraction

import pytest

from jaxresid.advice.timing import intervals
from jaxresid.advice.timing.intervals import Checked, checked, checked_on, time_basis, time_interval
from jaxresid.advice.timing.roofline import Seconds
from jaxresid.results import TimeBasis
from jaxresid.xla.places import parse_place
from tests.benchmarks.accuracy.split import set_of
from tests.benchmarks.times import collect
from tests.benchmarks.times.conformal import by_family, coverage_for, entry, factor
from tests.benchmarks.times.ratios import Told, pairs, sources

BASIS = TimeBasis("gpu:h100", "chip", {"jaxlib": ("0.11.2",)}, 6, 138, 0.8, 1.25)


def least_factor(families, coverage):
    """The least factor that enough of the families' residuals are within, tried one by one."""
    enough = []
    for tried in sorted({abs(value) for each in families for value in each}):
        inside = sum(
            Fraction(sum(abs(value) <= tried for value in each), len(each)) for each in families
        )
        if inside / (len(families) + 1) >= coverage:
            enough.append(tried)
    return math.exp(min(enough))


@pytest.mark.parametrize(("count", "share"), [(4, "4/5"), (6, "4/5"), (9, "9/10"), (14, "9/10")])
def test_the_factor_is_the_least_that_enough_is_within(count, share):
    chance = random.Random(count)
    for _ in range(50):
        families = [
            [chance.gauss(0, 0.1) for _ in range(chance.choice([1, 3, 15]))] for _ in range(count)
        ]
        assert factor(families, Fraction(share)) == pytest.approx(
            least_factor(families, Fraction(share)), rel=1e-12
        )


def test_a_share_takes_so_many_models():
    assert [coverage_for(n) for n in (3, 4, 8, 9)] == [None, *[Fraction(4, 5)] * 2, Fraction(9, 10)]
    # With one model less not even the largest residual would do.
    for share, least in ((Fraction(9, 10), 9), (Fraction(4, 5), 4)):
        assert Fraction(least, least + 1) >= share > Fraction(least - 1, least)


def test_all_pairs_of_one_model_in_one_form():
    told = {"zoo:a/scan/none": 1.0, "zoo:a/scan/dots": 2.0, "zoo:a/scan/names": 3.0}
    told |= {"zoo:a/unroll/none": 5.0, "zoo:b/scan/none": 7.0, "zoo:a/scan/lost": 9.0}
    ours = {name: 1.0 + i for i, name in enumerate(told) if "lost" not in name}
    found = pairs(Told("gpu:h100", "chip", {"jaxlib": "1"}, told), ours)
    scans = [name for name in ours if name.startswith("zoo:a/scan")]
    assert [pair.programs for pair in found] == list(itertools.combinations(scans, 2))
    for pair in found:
        a, b = pair.programs
        assert math.exp(pair.error) == pytest.approx(told[a] / told[b] / (ours[a] / ours[b]))
        assert pair.family == "zoo:a" and pair.has_loop


def test_an_entry_says_what_it_is_of():
    told = {f"zoo:m{i}/unroll/{p}": 1.0 + i for i in range(5) for p in ("none", "dots")}
    ours = {name: s * (1.3 if "dots" in name else 1) for name, s in told.items()}
    found = Told("tpu:v5p", "compiler", {"jaxlib": "1", "libtpu": "2"}, told)
    made = entry(found, pairs(found, ours))
    assert made == {
        "place": "tpu:v5p",
        "by": "compiler",
        "compilers": {"jaxlib": ["1"], "libtpu": ["2"]},
        "has_loop": False,
        "models": 5,
        "pairs": 5,
        "coverage": 0.8,
        "factor": pytest.approx(1.3, abs=0.001),
    }
    assert entry(found, pairs(found, {n: s for n, s in ours.items() if "m0" in n})) is None


# What is kept.


def test_what_is_kept_is_of_the_data():
    """The file is of the sets that it may be of, and its figures of pairs are those of the data."""
    by_place = {told.place: told for told in sources()}
    assert checked()
    for each in checked():
        told = by_place[each.basis.place]
        names = [n for n in told.seconds if set_of(n.partition("/")[0]) in ("fit", "conform")]
        found = pairs(told, dict.fromkeys(names, 1.0))
        assert each.basis.pairs == len(found)
        assert each.basis.models == len(by_family(found))
        assert each.basis.coverage == float(coverage_for(each.basis.models))
        assert each.basis.compilers == {name: (v,) for name, v in told.versions.items()}
        assert 1 < each.basis.factor < 2


def test_every_program_is_asked_once():
    for file in collect.DATA.glob("*.jsonl"):
        names = [row["program"] for row in collect.read(file)]
        assert len(names) == len(set(names))
        assert set(names) <= {program.name for program in collect.chosen()}


# What they are for.


@pytest.fixture
def known(monkeypatch):
    """Data of an H100, and of a v5p without loops."""
    straight = dataclasses.replace(BASIS, place="tpu:v5p", by="compiler", factor=1.1)
    found = (Checked(None, BASIS), Checked(False, straight))
    monkeypatch.setattr(intervals, "checked", lambda: found)
    return found


@pytest.mark.parametrize(
    ("place", "has_loop", "number"),
    [
        ("gpu:h100", True, 0),
        ("gpu:h100", False, 0),
        ("gpu:h100:8", True, 0),
        ("tpu:v5p", False, 1),
        ("tpu:v5p:2x2x1", False, 1),
        ("tpu:v5p", True, None),
        ("tpu:v5e", False, None),
        ("gpu:h200", True, None),
        ("gpu:a100-80", True, None),
        ("cpu", True, None),
    ],
)
def test_a_place_has_the_basis_of_its_chip(known, place, has_loop, number):
    expected = None if number is None else known[number].basis
    assert time_basis(parse_place(place), has_loop=has_loop) == expected
    assert checked_on() == ("gpu:h100", "tpu:v5p (programs without loops)")


def test_an_interval_is_the_ratio_by_the_factor():
    plain = Seconds(1.0, 1.0, 0.0, 2.0)
    slower = dataclasses.replace(plain, total=3.0)
    around = time_interval(slower, plain, BASIS, is_split=False)
    assert (around.low, around.high) == (pytest.approx(1.5 / 1.25 - 1), pytest.approx(0.875))
    assert not around.is_about_the_same
    near = time_interval(dataclasses.replace(plain, total=2.4), plain, BASIS, is_split=False)
    assert near.is_about_the_same
    same = time_interval(plain, plain, BASIS, is_split=False)
    assert same.low == same.high == 0


def test_what_nothing_was_told_of_has_no_interval():
    plain = Seconds(1.0, 1.0, 0.0, 2.0)
    slower = dataclasses.replace(plain, total=3.0)
    assert time_interval(slower, plain, None, is_split=False) is None
    assert time_interval(slower, plain, BASIS, is_split=True) is None
    for change in ({"transfers": 0.5}, {"uncosted": ("psum",)}):
        other = dataclasses.replace(slower, **change)
        assert time_interval(other, plain, BASIS, is_split=False) is None
        assert time_interval(plain, other, BASIS, is_split=False) is None
    nothing = dataclasses.replace(plain, total=0.0)
    assert time_interval(slower, nothing, BASIS, is_split=False) is None
