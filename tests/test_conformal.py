"""How the intervals around estimates are made: what they cover, what is merged and left out."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from fractions import Fraction

import pytest

from jaxresid.inspector.memory import intervals
from jaxresid.inspector.memory.intervals import ProgramKind, interval_of
from tests.benchmarks.accuracy import conformal
from tests.benchmarks.accuracy.conformal import (
    Kind,
    Residual,
    bounds,
    calibrated,
    kinds,
    shape_of,
    usable,
)
from tests.benchmarks.accuracy.rows import Row
from tests.benchmarks.accuracy.split import set_of

GIB = 1 << 30
NAMES = [f"random:{seed}" for seed in range(2000)]
CONFORM = [name for name in NAMES if set_of(name) == "conform"]
FIT = [name for name in NAMES if set_of(name) == "fit"]


@pytest.mark.parametrize("count", [9, 10, 18, 19, 29, 59, 100, 199])
def test_with_a_value_each_the_ends_are_at_the_usual_rank(count):
    values = random.Random(count).sample(range(-5 * count, 5 * count), count)
    rank = math.ceil((count + 1) * Fraction(9, 10))
    size = sorted(map(abs, values))[rank - 1]
    assert bounds([[value] for value in values]) == (-size, size)
    # The same value again tells nothing new.
    assert bounds([[value] * (1 + value % 3) for value in values]) == (-size, size)
    # Ends that are known to be apart are moved by the same.
    beyond = sorted(max(-3 - value, value - 7) for value in values)[rank - 1]
    assert bounds([[value] for value in values], (-3, 7)) == (-3 - beyond, 7 + beyond)


def test_fewer_than_nine_families_have_no_finite_interval():
    assert bounds([[float(n)] for n in range(9)]) == (-8.0, 8.0)
    assert bounds([[float(n)] for n in range(8)]) is None
    assert bounds([[float(n)] * 100 for n in range(8)]) is None
    assert bounds([]) is None


def test_a_family_counts_once_however_many_programs_it_has():
    families = [[float(n)] for n in range(99)]
    assert bounds(families) == (-89.0, 89.0)
    assert bounds([*families, [200.0] * 500]) == (-90.0, 90.0)
    assert bounds([*families, [0.0, 200.0]]) == (-90.0, 90.0)


def _drawn(chance, families):
    """Residuals of families of different sizes: what they share is skewed, the rest is small."""
    found = []
    for _ in range(families):
        shared = chance.expovariate(3) - 0.2
        found.append([chance.gauss(shared, 0.05) for _ in range(chance.choice([1, 2, 2, 12]))])
    return found


@pytest.mark.parametrize("families", [11, 18, 25, 60])
@pytest.mark.parametrize("shape", [(0.0, 0.0), (-0.2, 0.6)])
def test_nine_of_ten_of_unseen_families_are_inside(families, shape):
    chance, inside = random.Random(families), []
    for _ in range(300):
        low, high = bounds(_drawn(chance, families), shape)
        inside += [low <= chance.choice(each) <= high for each in _drawn(chance, 20)]
    assert 0.88 <= sum(inside) / len(inside) <= 0.95


def test_an_interval_begins_as_in_the_fit_set():
    def fitted(log, count, **kind):
        return [
            Residual(_row(f"{FIT[n]}/none", math.exp(log + n / 1000), **kind), 2 * GIB)
            for n in range(count)
        ]

    whole, scan = Kind(None, None), Kind(True, None)
    assert shape_of([], whole) == (0.0, 0.0)
    assert shape_of(fitted(0.5, 8), whole) == (0.0, 0.0)
    assert shape_of(fitted(0.5, 9), whole) == pytest.approx((0.5, 0.508))
    # One in twenty is left out on each side: of a hundred the fifth and the ninety-fifth count.
    assert shape_of(fitted(0.5, 100), whole) == pytest.approx((0.504, 0.594))
    both = [*fitted(0.2, 50, has_loop=True), *fitted(0.5, 50, has_loop=False)]
    assert shape_of(both, scan) == pytest.approx((0.202, 0.247))
    few = [*fitted(0.2, 8, has_loop=True), *fitted(0.5, 50, has_loop=False)]
    assert shape_of(few, scan)[1] > 0.5


def _row(program, ratio=1.0, place="gpu:h100", jaxlib="0.12.0.1", **more):
    values = {"has_loop": True, "is_checkpointed": True, "fits": True} | more
    compiler = f"jaxlib {jaxlib}, libtpu 0.0.52" if place[0] == "t" else f"jaxlib {jaxlib}, NVIDIA"
    peak = int(2 * GIB * ratio)
    values = {"estimate_nbytes": 2 * GIB, "peak_nbytes": peak} | values
    return Row(program, place, jaxlib, compiler, **values)


def _residuals(counts, start=0):
    """One program a family, as many of each kind as asked."""
    names = iter(CONFORM[start:])
    return [
        Residual(
            _row(f"{next(names)}/none", 1.1 + n / 1000, has_loop=loop, is_checkpointed=is_it),
            2 * GIB,
        )
        for (loop, is_it), count in counts.items()
        for n in range(count)
    ]


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ((30, 30, 30, 30), [(True, True), (True, False), (False, True), (False, False)]),
        ((30, 29, 30, 30), [(True, None), (False, True), (False, False)]),
        ((29, 1, 1, 29), [(True, None), (False, None)]),
        ((40, 40, 28, 1), [(None, None)]),
        ((40, 40, 0, 0), [(None, None)]),
        ((10, 10, 5, 4), [(None, None)]),
        ((3, 2, 2, 2), [(None, None)]),
        ((3, 2, 2, 1), []),
    ],
)
def test_kinds_with_too_few_programs_are_merged(counts, found):
    each = [(True, True), (True, False), (False, True), (False, False)]
    residuals = _residuals(dict(zip(each, counts, strict=True)))
    merged = kinds(residuals)
    assert [(kind.has_loop, kind.is_checkpointed) for kind in merged] == found
    assert sum(len(kind.residuals) for kind in merged) == (len(residuals) if found else 0)


def test_kinds_of_too_few_families_are_merged():
    plenty = _residuals({(False, True): 30, (False, False): 30})
    few = [
        Residual(_row(f"{CONFORM[100 + n % 8]}/{n}", is_checkpointed=is_it), 2 * GIB)
        for n in range(40)
        for is_it in (True, False)
    ]
    assert [kind.has_loop for kind in kinds([*plenty, *few])] == [None]
    ninth = [
        Residual(_row(f"{CONFORM[200]}/{is_it}", is_checkpointed=is_it), 2 * GIB)
        for is_it in (True, False)
    ]
    assert len(kinds([*plenty, *few, *ninth])) == 4


def test_a_program_counts_once_however_often_it_was_compiled():
    def residuals(count):
        return [
            Residual(_row(f"{name}/none", jaxlib=jaxlib, has_loop=has_loop), 2 * GIB)
            for has_loop in (True, False)
            for name in CONFORM[count * has_loop : count * has_loop + count]
            for jaxlib in ("0.11.2", "0.12.0.1")
        ]

    assert [kind.has_loop for kind in kinds(residuals(29))] == [None]
    assert [kind.has_loop for kind in kinds(residuals(30))] == [True, False]


def test_only_scored_programs_of_the_conform_set_are_used():
    named = [f"{name}/none" for name in CONFORM[:30]]
    rows = [_row(name) for name in named]
    others = [
        _row("random:0/none"),
        _row("random:7/none"),
        _row(f"{CONFORM[31]}/none", fits=False),
        _row(f"{CONFORM[32]}/none", peak_nbytes=None),
        _row(f"{CONFORM[33]}/none", ratio=0.1),
    ]
    assert usable([*rows, *others]) == rows
    # A jaxlib with few programs is not what the intervals were measured with.
    few = [_row(name, jaxlib="0.11.2") for name in named[:9]]
    assert usable([*rows, *few]) == rows
    elsewhere = [_row(name, place="tpu:v5e") for name in named[:9]]
    assert usable([*rows, *elsewhere]) == rows
    enough = [_row(name, jaxlib="0.11.2") for name in named[:10]]
    assert usable([*rows, *enough]) == [*rows, *enough]


def test_what_is_kept_is_what_is_read(monkeypatch, tmp_path):
    residuals = _residuals({(True, True): 39, (False, True): 39})
    tpu = [
        Residual(_row(f"{name}/none", 0.9, "tpu:v5e", has_loop=n % 2 == 0), 2 * GIB)
        for n, name in enumerate(CONFORM[:60])
    ]
    few = [Residual(_row(f"{CONFORM[0]}/none", place="cpu"), 2 * GIB)]
    fitted = [Residual(_row(f"{FIT[n]}/none", 1.1 + n / 1000), 2 * GIB) for n in range(39)]
    text = json.dumps(calibrated([*residuals, *tpu, *few], fitted))
    (tmp_path / "intervals.json").write_text(text)
    monkeypatch.setattr(intervals.resources, "files", lambda _: tmp_path)
    found = intervals.calibrations.__wrapped__()
    assert found.keys() == {"gpu", "tpu"}
    basis = found["gpu"].basis
    assert (basis.programs, basis.places, basis.compilers) == (
        *(78, ("gpu:h100",)),
        {"jaxlib": ("0.12.0.1",)},
    )
    assert basis.smallest_nbytes == int(2.2 * GIB)
    assert found["tpu"].basis.compilers == {"jaxlib": ("0.12.0.1",), "libtpu": ("0.0.52",)}
    monkeypatch.setattr(intervals, "calibrations", lambda **_: found)
    versions = {"jaxlib": "0.12.0.1"}
    gpu = interval_of(1000, ProgramKind(True, True), "gpu", versions)
    # The fit set is as far off, so the ends stay; but the estimate is always inside.
    assert gpu.low_nbytes == 1000
    assert 1135 <= gpu.high_nbytes <= 1139
    tpu_interval = interval_of(1000, ProgramKind(False, False), "tpu", versions)
    assert 899 <= tpu_interval.low_nbytes <= 900
    assert 1111 <= tpu_interval.high_nbytes <= 1113
    inside = Residual(_row("random:7/none", 1.13), 2 * GIB)
    assert conformal.is_held(inside) is True
    assert conformal.is_held(Residual(_row("random:7/none", 1.15), 2 * GIB)) is False
    assert conformal.is_held(Residual(_row("random:7/none", 1.15, jaxlib="0.7.0"), 2 * GIB)) is True
    assert conformal.is_held(Residual(_row("random:7/none", place="cpu"), 2 * GIB)) is None


@pytest.mark.parametrize("gradients", ["none", "many"])
def test_programs_with_no_gradient_or_many_have_an_interval_that_is_never_narrower(gradients):
    residuals = _residuals({(True, True): 39, (False, True): 39})
    forward = [
        Residual(_row(f"{FIT[n]}/none", 1.5 if n % 2 else 1 / 1.5, gradients=gradients), 2 * GIB)
        for n in range(20)
    ]
    found = calibrated(residuals, forward)["profiles"]["gpu"]
    loops, straight, *others = found["kinds"]
    assert [each["gradients"] for each in found["kinds"]] == [gradients, gradients, None, None]
    assert found["own"].keys() == {gradients}
    for own, other in ((loops, others[0]), (straight, others[1])):
        assert own["low"] == pytest.approx(1 / 1.5, abs=0.002)
        assert own["high"] == pytest.approx(1.5, abs=0.002)
        assert own["low"] < other["low"] <= other["high"] < own["high"]
        assert own["has_loop"] == other["has_loop"]
    assert found["programs"] == 78
    close = [replace(r, estimate_nbytes=r.row.peak_nbytes) for r in forward]
    own, _, other, _ = calibrated(residuals, close)["profiles"]["gpu"]["kinds"]
    assert (own["low"], own["high"]) == (other["low"], other["high"])
    few = calibrated(residuals, forward[:8])["profiles"]["gpu"]["kinds"]
    assert [each["gradients"] for each in few] == [None, None]


def test_other_versions_are_wider_by_what_versions_differ_by():
    rows = [_row(f"{n}/none", jaxlib=v) for n in CONFORM[:10] for v in ("0.11.2", "0.12.0.1")]
    assert conformal.widening(rows) == 1.26
    assert conformal.widening([]) == 1.26
    apart = [
        _row(f"{name}/none", ratio, jaxlib=jaxlib)
        for n, name in enumerate(CONFORM[:10])
        for jaxlib, ratio in (("0.11.2", 1.0), ("0.12.0.1", [2.0, 1 / 1.5][n % 2] if n else 9.0))
    ]
    assert conformal.widening(apart) == pytest.approx(2.0)
    # The same program at another place is no other version.
    places = [_row(row.program, 9.0, "gpu:a100", row.jaxlib) for row in rows]
    assert conformal.widening([*rows, *places]) == 1.26


def test_coverage_is_counted_without_the_own_family():
    families = {name: n / 100 for n, name in enumerate(CONFORM[:40])}
    residuals = [
        Residual(_row(f"{name}/{k}", math.exp(value)), 2 * GIB)
        for name, value in families.items()
        for k in range(2)
    ]
    assert conformal.inside(residuals) == (80, 72)
