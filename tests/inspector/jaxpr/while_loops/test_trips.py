"""The trips of while loops, against loops that count themselves and bodies that JAX runs."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental.ode import odeint

import jaxresid
from jaxresid.advice.timing.chips import chip_of
from jaxresid.advice.timing.roofline import seconds
from jaxresid.base.errors import InputsError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.jaxpr.while_loops.online_checkpoints import iterations
from jaxresid.inspector.jaxpr.while_loops.trips import TRIPS_UNKNOWN, WhileTrips
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.profile import TPU
from jaxresid.inspector.program.op_cost import block_cost
from jaxresid.inspector.report import subject
from jaxresid.xla.places import parse_place

N = 8
X, W = jnp.ones((4, N)), jnp.ones((N, N))
MATMUL = 2 * 4 * N * N


def trips_of(fun, *args, assumed=None):
    """The trips of the while loops in a function, the outermost first."""
    jaxpr = jax.make_jaxpr(fun)(*args).jaxpr
    found = WhileTrips(assumed)
    found.add(jaxpr)
    loops = [eqn for eqn in eqns_in(jaxpr) if eqn.primitive.name == "while"]
    assert loops
    return [found.of(eqn) for eqn in loops]


def counting(condition, start=0, step=1):
    """A loop whose results are its counter and how often it ran."""
    return lambda: lax.while_loop(condition, lambda c: (c[0] + step, c[1] + 1), (start, 0))


@pytest.mark.parametrize(("start", "step"), [(0, 1), (3, 1), (-2, 3), (9, 2), (20, 5)])
@pytest.mark.parametrize(
    "condition",
    [
        lambda c: c[0] < 9,
        lambda c: c[0] <= 9,
        lambda c: lax.gt(9, c[0]),
        lambda c: lax.ge(9, c[0] + 1),
        lambda c: (c[0] < 9) & (c[0] < 7),
    ],
)
def test_counters_are_counted_as_they_run(condition, start, step):
    (found,) = trips_of(counting(condition, start, step))
    ran = itertools.takewhile(lambda n: condition((start + n * step, n)), itertools.count())
    assert (found.count, found.note) == (len(list(ran)), "")


def test_a_bound_beside_another_condition_is_the_most():
    (found,) = trips_of(counting(lambda c: (c[0] < 9) & (jnp.sin(c[1]) < 2)))
    assert (found.count, found.note) == (9, "while: at most 9 trips, all counted")


def test_a_condition_that_the_trip_before_computes():
    def loop():
        def body(c):
            i, go, n = c
            return i + 1, go & (i + 1 < 6) & (jnp.sin(n) < 2), n + 1

        return lax.while_loop(lambda c: c[1], body, (0, True, 0))

    (found,) = trips_of(loop)
    assert found.count == int(loop()[2]) == 6


def test_a_loop_that_may_not_begin():
    def fun(go):
        return lax.while_loop(lambda c: c[1], lambda c: (c[0] + 1, c[0] + 1 < 6), (0, go))

    assert [trips_of(lambda: fun(True))[0].note, trips_of(fun, False)[0].note] == [
        "",
        "while: at most 6 trips, all counted",
    ]


def test_a_batch_of_loops_takes_the_longest():
    def one(stop):
        return lax.while_loop(
            lambda c: (c[0] < 12) & (c[0] < stop), lambda c: (c[0] + 1, c[1] * 2), (0, 1.0)
        )

    (found,) = trips_of(jax.vmap(one), jnp.arange(5))
    assert (found.count, found.note) == (12, "while: at most 12 trips, all counted")


def test_a_bound_that_is_counted_elsewhere_or_handed_on():
    def fun():
        first = lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1]), (0, 2))[0]
        return jax.jit(lambda n: lax.fori_loop(0, n + 2, lambda i, x: x * 2, 1.0))(first)

    assert sorted(found.count for found in trips_of(fun)) == [5, 7]


@pytest.mark.parametrize(
    "loop",
    [
        lambda: lax.while_loop(lambda c: c < 9, lambda c: c * 2, 1),  # no sum
        lambda: lax.while_loop(lambda c: c > 0, lambda c: c - 1, 9),  # downwards
        lambda: lax.while_loop(lambda c: (c < 9) | (c % 7 > 0), lambda c: c + 1, 0),  # or
        lambda: lax.while_loop(lambda c: c < 9, lambda c: c + (c % 2), 1),  # by something
    ],
)
def test_what_bounds_nothing(loop):
    assert trips_of(loop) == [None]
    (found,) = trips_of(loop, assumed=6)
    assert (found.count, found.note) == (6, "while: counted with 6 trips, as --trips says")


def test_a_number_of_trips_is_at_most_the_bound():
    counted = lambda: lax.while_loop(lambda c: c[0] < 9, lambda c: (c[0] + 1, c[1]), (0, 1))
    bounded = counting(lambda c: (c[0] < 9) & (jnp.sin(c[1]) < 2))
    assert [trips_of(counted, assumed=n)[0].count for n in (4, 20)] == [9, 9]
    (fewer,), (more,) = trips_of(bounded, assumed=4), trips_of(bounded, assumed=20)
    assert (fewer.count, more.count) == (4, 9)
    assert fewer.note == "while: counted with 4 trips, as --trips says, of at most 9"


def test_a_number_of_trips_that_is_none():
    with pytest.raises(InputsError, match="trips must be a whole number of at least 1, not 0"):
        jaxresid.inspect(lambda x: x.sum(), trips=0)


@pytest.mark.integration
def test_odeint_counts_its_steps_in_each_interval():
    def loss(p, y, most):
        return odeint(lambda y, t, p: jnp.tanh(y @ p), y, jnp.arange(3.0), p, mxstep=most).sum()

    def matmuls(most, **options):
        report = jaxresid.inspect(lambda p, y: loss(p, y, most), **options)(W, X)
        return report.cost.forward.matmul_flops, report.cost.forward.notes

    (one, _), (five, notes), (four, _) = matmuls(1), matmuls(5), matmuls(5, trips=4)
    assert five - one == 4 * (five - four)
    # In either interval a step evaluates six times, and sums these up with weights.
    assert 2 * 6 * MATMUL < five - four < 2 * 14 * MATMUL
    assert notes == ("while: at most 5 trips, all counted",)
    assert TRIPS_UNKNOWN in matmuls(jnp.inf)[1]


class TestCheckpointedLoops:
    @pytest.fixture(scope="class")
    def eqxi(self):
        return pytest.importorskip("equinox.internal")

    def loss(self, eqxi, most, checkpoints, stop=None, ran=lambda _: None):
        def loss(w, x, stop=stop):
            def body(c):
                i, x = c
                jax.debug.callback(ran, i)
                return i + 1, jnp.tanh(x @ w)

            def go(c):
                return c[0] < (most if stop is None else stop)

            kind = {"max_steps": most, "kind": "checkpointed", "checkpoints": checkpoints}
            return eqxi.while_loop(go, body, (0, x), **kind)[1].sum()

        return loss

    @pytest.mark.parametrize(
        ("checkpoints", "is_batch"), [(1, False), (3, True), (20, True), (None, False)]
    )
    def test_both_passes(self, eqxi, checkpoints, is_batch):
        loss = self.loss(eqxi, 20, checkpoints)
        fun = (lambda w, x: jax.vmap(loss, (None, 0))(w, x).sum()) if is_batch else loss
        x = X[:, None] if is_batch else X
        cost = jaxresid.inspect(fun)(W, x).cost
        kept = checkpoints or 5  # what equinox takes for 20 steps
        assert cost.forward.matmul_flops == 20 * MATMUL
        assert cost.backward.matmul_flops == (iterations(20, kept) + 2 * 20) * MATMUL
        assert not cost.total.uncosted
        said = f"while: 20 steps with checkpoints={kept} run {iterations(20, kept)} times in the"
        assert any(note.startswith(said) for note in cost.total.notes) == (kept < 20)

    @pytest.mark.integration
    def test_a_step_has_the_same(self, eqxi):
        loss = self.loss(eqxi, 20, 3)
        step = jaxresid.inspect(lambda w, x: w - jax.grad(loss)(w, x), mode="program")(W, X).cost
        plain = jaxresid.inspect(loss, argnums=0)(W, X).cost
        assert step.total.matmul_flops == plain.total.matmul_flops
        assert step.backward.matmul_flops == plain.backward.matmul_flops

    def test_ops_and_their_times_have_the_same(self, eqxi):
        loss = self.loss(eqxi, 20, 3)
        size = 1024
        shape = jax.ShapeDtypeStruct((size, size), jnp.bfloat16)
        program = subject(Question(loss, (shape, shape), argnums=0)).program
        matmuls = block_cost(program.block, program.trips).matmul_flops
        assert matmuls == (20 + iterations(20, 3) + 2 * 20) * 2 * size**3
        chip = replace(chip_of(parse_place("tpu:v5p")), vector=None)
        took = seconds(lower(program, TPU), chip)
        assert took.compute == pytest.approx(matmuls / chip.matmul_rate("bfloat16", 0))

    @pytest.mark.integration
    def test_trips_that_are_said_or_unknown(self, eqxi):
        def backward(most, **options):
            loss = self.loss(eqxi, most, 3, 12)
            found = jaxresid.inspect(loss, **options)(W, X, jnp.int32(9))
            return found.cost.backward

        assert backward(20, trips=7).matmul_flops == (iterations(7, 3) + 2 * 7) * MATMUL
        assert backward(None, trips=7) == backward(20, trips=7)
        assert TRIPS_UNKNOWN in backward(None).notes

    @pytest.mark.integration
    @pytest.mark.parametrize("checkpoints", [1, 2, 3, 5, 8])
    def test_the_body_runs_as_often(self, eqxi, checkpoints):
        """Counted by the body itself: in the forward pass each step runs once."""
        ran = []
        loss = self.loss(eqxi, None, checkpoints, ran=ran.append)
        grad = jax.jit(jax.grad(loss))
        for steps in (1, 2, 3, 6, 9, 14, 22, 33, 60):
            ran.clear()
            jax.block_until_ready(grad(W, X, steps))
            jax.effects_barrier()
            assert len(ran) - steps == iterations(steps, checkpoints), steps


def test_more_checkpoints_never_run_more():
    for steps in range(1, 40):
        each = [iterations(steps, c) for c in range(1, steps + 1)]
        assert all(a >= b for a, b in itertools.pairwise(each)) or steps > 12
        assert each[-1] == steps
        assert each[0] == steps * (steps + 1) // 2
