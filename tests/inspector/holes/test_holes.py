"""A program put together of its holes is the program, and a changed hole what its code gives."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxresid
from jaxresid import jax_compat
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.holes.splicing import gradients_in
from jaxresid.inspector.jaxpr.inline import without
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.report import subject
from tests.small import f32

WS, X = [f32(16, 16)] * 3, f32(8, 16)


def layer(x, w):
    return jnp.tanh(jnp.sin(x @ w) @ w.T)


def loss(ws, x, wrap=jax.checkpoint):
    for w in ws:
        x = wrap(layer)(x, w)
    return jnp.sum(x**2)


def plain(ws, x, wrap=jax.checkpoint):
    return jax.grad(loss)(ws, x, wrap)


def accumulated(ws, x, wrap=jax.checkpoint):
    def add(total, part):
        return jax.tree.map(jnp.add, total, plain(ws, part, wrap)), None

    zeros = jax.tree.map(jnp.zeros_like, ws)
    return lax.scan(add, zeros, x.reshape(4, 2, -1))[0]


def per_example(ws, x, wrap=jax.checkpoint):
    return jax.vmap(lambda x: plain(ws, x[None], wrap))(x)


def two(ws, x, wrap=jax.checkpoint):
    return jax.tree.map(jnp.add, plain(ws, x, wrap), plain(ws, x + 1, wrap))


def linearized(ws, x, wrap=jax.checkpoint):
    value, push = jax.linearize(lambda ws: loss(ws, x, wrap), ws)
    return jax.linear_transpose(push, ws)(jnp.ones_like(value))[0]


PROGRAMS = [plain, accumulated, per_example, two, linearized]


def of(program, wrap=jax.checkpoint):
    return subject(Question(lambda ws, x: program(ws, x, wrap), (WS, X), mode="program"))


def names(trace):
    return sorted(jax_compat.primitive_name(eqn) for eqn in eqns_in(trace.jaxpr))


@pytest.mark.parametrize("program", PROGRAMS)
def test_put_together_it_is_the_program(program):
    holes = of(program).holes
    assert holes.is_deferred == (program in (plain, accumulated, two))
    assert names(holes.trace({})) == names(holes.traced)


@pytest.mark.parametrize("program", PROGRAMS)
def test_holes_and_how_often_they_run(program):
    found = of(program).holes.holes
    trips = {accumulated: [4], two: [1, 1]}.get(program, [1])
    assert [hole.trips for hole in found] == trips
    assert [len(hole.loops) for hole in found] == [int(n > 1) for n in trips]
    assert all(
        sum(jax_compat.primitive_name(eqn) == "remat" for eqn in hole.jaxpr.eqns) == 3
        for hole in found
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_with_holes_without_checkpoints_it_is_the_code_without(program):
    found = of(program)
    made = found.holes.trace(
        {h.number: without(h.jaxpr, _checkpoints(h.jaxpr)) for h in found.holes.holes}
    )
    expected = of(program, lambda f: f)
    assert found.holes.kept_nbytes(made) == expected.holes.kept_nbytes(expected.trace)
    assert found.holes.cost(made).flops == expected.holes.cost(expected.trace).flops


def _checkpoints(jaxpr):
    return [id(e) for e in jaxpr.eqns if jax_compat.primitive_name(e) == "remat"]


def test_a_jitted_gradient_that_runs_twice_is_one_hole():
    gradient = jax.jit(jax.grad(loss))

    def step(ws, x):
        return jax.tree.map(jnp.add, gradient(ws, x), gradient(ws, x * 2))

    found = subject(Question(step, (WS, X), mode="program")).holes
    (hole,) = found.holes
    assert hole.trips == 2
    left = found._open._left
    assert [n for n, *_ in gradients_in(left.levels, left.tops[0])] == [hole.number] * 2


def test_a_loss_is_one_hole():
    found = subject(Question(loss, (WS, X), mode="loss")).holes
    (hole,) = found.holes
    assert hole.jaxpr is found.traced.written
    assert found.trace({}) is found.traced


@pytest.mark.parametrize("program", [plain, two])
def test_a_loop_that_only_looks_like_one_of_layers_is_not_cut(program):
    """What runs around the gradients is not differentiated: no checkpoint belongs there."""

    def steps(ws, x):
        return lax.fori_loop(0, 5, lambda _, ws: jax.tree.map(jnp.subtract, ws, program(ws, x)), ws)

    found = subject(Question(steps, (WS, X), mode="program")).variants()
    assert not found.nests() or all(nest.place.kind == "groups" for nest in found.nests())
    assert not [p for p in found.places() if p.kind == "scan"]


def test_a_checkpoint_that_no_gradient_goes_through_is_listed_as_in_a_loss():
    def frozen(ws, x):
        for i, w in enumerate(ws):
            x = jax.checkpoint(layer)(x, w if i else lax.stop_gradient(w))
        return jnp.sum(x**2)

    (of_loss,) = jaxresid.inspect(frozen, argnums=0, mode="loss")(WS, X).checkpoints
    (of_step,) = jaxresid.inspect(jax.grad(frozen), mode="program")(WS, X).checkpoints
    assert of_step.calls == of_loss.calls == 3
