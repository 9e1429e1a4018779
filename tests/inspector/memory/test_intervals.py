"""The interval around an estimate: of which kind, for which compiler, and what it answers."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback
from jax.sharding import NamedSharding, PartitionSpec

import jaxresid
from jaxresid import jax_compat
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.memory import intervals
from jaxresid.inspector.memory.intervals import (
    Calibration,
    KindFactors,
    ProgramKind,
    basis_of,
    interval_of,
    kind_of,
)
from jaxresid.inspector.report import subject
from jaxresid.results import Interval, IntervalBasis, answer, interval_between
from jaxresid.xla.places import parse_place

V = {"jaxlib": "0.12.0.1"}
KINDS = (
    KindFactors(True, True, 0.5, 2.0),
    KindFactors(True, False, 0.6, 3.0),
    KindFactors(False, None, 0.9, 1.1),
)
BASIS = IntervalBasis(98, ("x",), {"jaxlib": ("0.11.2", "0.12.0.1"), "libtpu": ("0.0.52",)}, 1, 9)


@pytest.fixture
def calibrated(monkeypatch):
    found = {"tpu": Calibration(BASIS, KINDS, 1.25)}
    monkeypatch.setattr(intervals, "calibrations", lambda *, is_split: {} if is_split else found)


@pytest.mark.usefixtures("calibrated")
class TestInterval:
    @pytest.mark.parametrize(
        ("has_loop", "is_checkpointed", "ends"),
        [
            (True, True, (500, 2000)),
            (True, False, (600, 3000)),
            (False, True, (900, 1100)),
            (False, False, (900, 1100)),
        ],
    )
    def test_each_kind_has_its_own(self, has_loop, is_checkpointed, ends):
        found = interval_of(1000, ProgramKind(has_loop, is_checkpointed), "tpu", V)
        assert found == Interval(*ends)

    @pytest.mark.parametrize(
        ("versions", "others"),
        [
            ({"jaxlib": "0.12.0.1"}, {}),
            ({"jaxlib": "0.11.2", "libtpu": "0.0.52"}, {}),
            ({"jaxlib": "0.10.2"}, {"jaxlib": "0.10.2"}),
            ({"jaxlib": "0.12.0"}, {"jaxlib": "0.12.0"}),
            ({"jaxlib": "0.12.0.1", "libtpu": "0.0.40"}, {"libtpu": "0.0.40"}),
            ({}, {"jaxlib": "of an unknown version"}),
        ],
    )
    def test_it_is_wider_for_another_compiler(self, versions, others):
        found = interval_of(1000, ProgramKind(True, True), "tpu", versions)
        assert found == (Interval(400, 2500) if others else Interval(500, 2000))
        basis = basis_of("tpu", versions)
        assert basis.others == others
        assert basis.widened == (1.25 if others else 1.0)
        assert basis.programs == 98

    def test_it_is_rounded_outwards(self):
        assert interval_of(1001, ProgramKind(False, True), "tpu", V) == Interval(900, 1102)

    def test_without_data_there_is_none(self):
        assert interval_of(1000, ProgramKind(True, True), "gpu", V) is None
        assert basis_of("gpu", V) is None


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (2001, "fits"),
        (2000, "fits"),
        (1999, "too close"),
        (1000, "too close"),
        (999, "does not fit"),
    ],
)
def test_inside_the_interval_nothing_is_said_to_fit(budget, said):
    assert answer(Interval(1000, 2000), budget) == said
    assert answer(None, budget) == "too close"


def test_an_interval_has_two_ends():
    assert interval_between(1, 2) == Interval(1, 2)
    assert interval_between(None, 2) is interval_between(1, None) is None


W = jnp.ones((64, 64))


def layer(x, w):
    return jnp.sin(x @ w)


def straight(x, w):
    return layer(layer(x, w), w).sum()


def checkpointed(x, w):
    return jax.checkpoint(layer)(jax.checkpoint(layer)(x, w), w).sum()


def scanned(x, w):
    return jax.lax.scan(lambda x, _: (layer(x, w), None), x, None, 4)[0].sum()


def checkpointed_scan(x, w):
    body = jax.checkpoint(lambda x, _: (layer(x, w), None), prevent_cse=False)
    return jax.lax.scan(body, x, None, 4)[0].sum()


@pytest.mark.parametrize(
    ("fun", "has_loop", "is_checkpointed"),
    [
        (straight, False, False),
        (checkpointed, False, True),
        (scanned, True, False),
        (checkpointed_scan, True, True),
    ],
)
def test_the_kind_is_that_of_the_program(fun, has_loop, is_checkpointed):
    found = subject(Question(fun, (W, W), on=parse_place("tpu:v5e")))
    assert kind_of(found.program) == ProgramKind(has_loop, is_checkpointed)
    program = subject(Question(fun, (W, W), on=parse_place("tpu:v5e"), mode="program"))
    assert kind_of(program.program) == ProgramKind(has_loop, False, gradients="none")


@pytest.mark.parametrize("count", [1, 8])
def test_a_program_over_a_mesh_is_of_another_kind(count):
    sharding = NamedSharding(jax_compat.new_abstract_mesh({"data": count}), PartitionSpec("data"))
    w = jax.ShapeDtypeStruct(W.shape, W.dtype, sharding=sharding)
    found = subject(Question(straight, (w, W), on=parse_place("tpu:v5e:2x4")))
    assert kind_of(found.program).is_split == (count > 1)
    split = intervals.calibrations(is_split=True)["tpu"].basis
    assert (found.place_info.intervals.programs == split.programs) == (count > 1)


@pytest.mark.usefixtures("calibrated")
def test_results_have_the_interval_of_their_kind(monkeypatch):
    monkeypatch.setattr("jaxresid.jax_compat.compilers", lambda: V)
    report = jaxresid.inspect(checkpointed_scan, on="tpu:v5e")(W, W)
    nbytes = report.peak.nbytes
    assert report.peak.interval == Interval(nbytes // 2, nbytes * 2)
    found = json.loads(report.to_json())
    assert found["peak"]["low_nbytes"] == nbytes // 2
    assert found["peak"]["high_nbytes"] == nbytes * 2
    assert found["on"]["intervals"]["programs"] == 98
    assert found["on"]["intervals"]["compilers"]["jaxlib"] == ["0.11.2", "0.12.0.1"]
    # A variant is of the kind of its own program.
    rows = {row.policy: row for row in jaxresid.compare(checkpointed_scan, on="tpu:v5e")(W, W).rows}
    plain, written = rows["none"], rows["as-written"]
    assert plain.high_nbytes == plain.peak_nbytes * 3
    assert written.high_nbytes == written.peak_nbytes * 2
    plan = jaxresid.plan(checkpointed_scan, budget="1GiB", on="tpu:v5e")(W, W)
    assert plan.high_nbytes in (plan.peak_nbytes * 2, plan.peak_nbytes * 3)


@pytest.mark.usefixtures("calibrated")
def test_a_lower_bound_has_none():
    def called(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return io_callback(lambda x: x, shape, jax.lax.stop_gradient(x)).sum() + x.sum()

    report = jaxresid.inspect(called, on="tpu:v5e")(W)
    assert report.peak.uncounted
    assert report.peak.interval is None


@pytest.mark.parametrize("is_split", [False, True])
def test_what_is_kept_is_whole(is_split):
    assert set(intervals.calibrations(is_split=is_split)) == {"gpu", "tpu"}
    for calibration in intervals.calibrations(is_split=is_split).values():
        assert calibration.basis.programs >= 9  # as there are no fewer families
        assert calibration.other_versions >= 1.26
        assert calibration.basis.compilers["jaxlib"]
        for has_loop in (True, False):
            for is_checkpointed in (True, False):
                kind = ProgramKind(has_loop, is_checkpointed)
                of_kind = [each for each in calibration.kinds if each.is_of(kind)]
                assert len(of_kind) == 1
                for gradients in ("none", "many"):
                    other = replace(kind, gradients=gradients)
                    own = next(each for each in calibration.kinds if each.is_of(other))
                    assert own.gradients == (None if is_split else gradients)
                    assert 0 < own.low <= of_kind[0].low <= 1 <= of_kind[0].high <= own.high


@pytest.mark.parametrize(
    ("gradients", "fun"), [("none", jnp.tanh), ("many", jax.hessian(lambda x: (x**3).sum()))]
)
def test_programs_with_no_gradient_or_many_were_measured_with_compilers_of_their_own(
    gradients, fun
):
    versions = {"jaxlib": "0.12.0.1"}
    one, own = basis_of("gpu", versions), basis_of("gpu", versions, gradients=gradients)
    assert (one.others, own.others) == ({}, versions)
    assert own.programs < one.programs
    report = jaxresid.inspect(fun, on="gpu:h100", mode="program")(jnp.zeros(8))
    assert report.place.intervals.programs == own.programs


def _loss(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def _product(w, x):
    return jax.jvp(lambda w: jax.grad(_loss)(w, x), (w,), (w,))[1]


PROGRAMS = {
    "hessian": ("many", jax.hessian(_loss)),
    "jvp of grad": ("many", _product),
    "grad of jvp": ("many", jax.grad(lambda w, x: jax.jvp(lambda w: _loss(w, x), (w,), (w,))[1])),
    "in a loop": ("many", lambda w, x: jax.lax.map(lambda x: _product(w, x), x[None])),
    "of each example": ("many", jax.vmap(jax.grad(_loss), (None, 0))),
    "jacobian": ("many", jax.jacrev(lambda w, x: x @ w)),
    "step": ("one", lambda w, x: w - jax.grad(_loss)(w, x)),
    "one after the other": ("one", lambda w, x: jax.grad(_loss)(w - jax.grad(_loss)(w, x), x)),
    "of a vmap": ("one", jax.grad(lambda w, x: jax.vmap(_loss, (None, 0))(w, x).sum())),
    "of a vmap of checkpoints": (
        "one",
        jax.grad(lambda w, x: jax.vmap(jax.checkpoint(_loss), (None, 0))(w, x).sum()),
    ),
    "checkpointed, in a loop": (
        "one",
        lambda w, x: jax.lax.map(lambda x: jax.grad(jax.checkpoint(_loss))(w, x), x[None]),
    ),
}


@pytest.mark.parametrize(("gradients", "fun"), PROGRAMS.values(), ids=list(PROGRAMS))
def test_derivatives_of_derivatives_and_of_each_example_are_a_kind(gradients, fun):
    found = subject(Question(fun, (W, W), on=parse_place("tpu:v5e"), mode="program"))
    assert kind_of(found.program).gradients == gradients


@pytest.mark.parametrize("has_penalty", [False, True])
def test_a_loss_with_a_gradient_inside_is_of_that_kind(has_penalty):
    def loss(w):
        slopes = jax.grad(_loss, 1)(w, w) if has_penalty else w
        return _loss(w, w) + jnp.sum(slopes**2)

    found = subject(Question(loss, (W,), on=parse_place("tpu:v5e"), mode="loss"))
    assert kind_of(found.program).gradients == ("many" if has_penalty else "one")
