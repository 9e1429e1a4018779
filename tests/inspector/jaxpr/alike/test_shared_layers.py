"""Layers put into calls of one jaxpr: they compute the same, and take the same memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxresid import jax_compat
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.jaxpr.alike.shared_layers import with_shared_layers
from jaxresid.inspector.report import subject
from jaxresid.inspector.variants.rewrites import effects as rewrites

WIDTH, ROWS, DEPTH = 64, 32, 4


def dense(x, w, i):
    mean = x.mean(-1, keepdims=True)
    return x + jax.nn.gelu((x - mean) @ w) @ w.T


def dropping(x, w, i):
    """Draws with a key that an integer of the layer's own is folded into."""
    keep = jax.random.bernoulli(jax.random.fold_in(jax.random.key(0), 7 * i), 0.5, x.shape)
    return dense(x, w, i) + jnp.where(keep, jnp.sin(x @ w), 0)


def looping(x, w, i):
    """Traces a loop of its own in each layer."""
    return dense(x, w, i) + lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=3)[0]


def model(layer, *, collects=False):
    def loss(weights, x):
        each = []
        for i, w in enumerate(weights):
            x = layer(x, w, i)
            each.append(x)
        return (sum(each) if collects else x).sum()

    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(WIDTH, WIDTH)).astype("float32") / 8 for _ in range(DEPTH)]
    return loss, (weights, rng.normal(size=(ROWS, WIDTH)).astype("float32"))


def closed(fun, *args):
    made = jax.make_jaxpr(fun)(*args)
    return made, jax_compat.open_jaxpr(made)


def called(jaxpr):
    """The jaxprs of the calls of one that is called several times."""
    bodies = [e.params["jaxpr"] for e in jaxpr.eqns if e.primitive.name == "jit"]
    return [body for body in bodies if sum(body is other for other in bodies) > 1]


@pytest.mark.integration
@pytest.mark.parametrize(("layer", "collects"), [(dropping, True), (looping, False)])
def test_layers_are_calls_of_one_jaxpr_that_compute_the_same(layer, collects):
    fun, args = model(layer, collects=collects)
    made, jaxpr = closed(fun, *args)
    shared = with_shared_layers(jaxpr)
    assert len(called(shared)) >= DEPTH - 1
    run = jax.jit(jax_compat.as_function(jax_compat.with_jaxpr(made, shared)))
    np.testing.assert_allclose(run(*jax.tree.leaves(args))[0], jax.jit(fun)(*args), rtol=1e-5)


def test_layers_that_end_like_those_before_leave_these_whole():
    def encoded(x, w):
        return dense(jnp.sin(x) + jnp.exp(x) * jnp.cos(x @ w), w, 0)

    def decoded(x, w):
        return dense(sum(f(x) * w[0] for f in (jnp.tanh, jnp.expm1, jnp.log1p, jnp.arctan)), w, 0)

    def loss(weights, x):
        for layer in (encoded, decoded):
            for w in weights[:3]:
                x = layer(x, w)
        return x.sum()

    _, jaxpr = closed(loss, *model(dense)[1])
    bodies = called(with_shared_layers(jaxpr))
    assert [sum(body is other for other in bodies) for body in bodies] == [3] * 6


def test_what_is_read_of_one_layer_alone_is_a_result():
    def loss(weights, x):
        for w in weights:
            hidden = jnp.sin(x @ w)
            x = dense(x + hidden, w, 0)
        return (x + hidden).sum()

    _, args = model(dense)
    made, jaxpr = closed(loss, *args)
    shared = with_shared_layers(jaxpr)
    assert called(shared)
    again = jax.make_jaxpr(jax_compat.as_function(jax_compat.with_jaxpr(made, shared)))
    assert again(*jax.tree.leaves(args)).out_avals == made.out_avals


def test_what_has_effects_or_hardly_an_eqn_stays_as_it_is():
    def printing(x, w, i):
        jax.debug.print("{}", x.sum())
        return dense(x, w, i)

    for layer in (printing, lambda x, w, i: x @ w):
        fun, args = model(layer)
        _, jaxpr = closed(fun, *args)
        assert with_shared_layers(jaxpr) is jaxpr


def test_layers_that_read_otherwise_are_calls_of_another_jaxpr():
    def layer(x, w, i):
        first, then = jnp.sin(x @ w), jnp.cos(x @ w)
        return dense(then - first if i % 2 else first - then, w, i)

    fun, args = model(layer)
    _, jaxpr = closed(fun, *args)
    assert len({id(body) for body in called(with_shared_layers(jaxpr))}) == 2


def ruled(factor):
    """A function whose rule for tangents multiplies by a factor."""

    @jax.custom_jvp
    def fun(x):
        return jnp.sin(x)

    fun.defjvp(lambda x, t: (fun(*x), factor * t[0]))
    return fun


def test_layers_that_call_what_has_a_rule_for_tangents_are_shared_by_the_rule():
    for activations, bodies in (
        ([jax.nn.relu] * DEPTH, 1),
        ([ruled(2.0) for _ in range(DEPTH)], 1),
        ([ruled(float(1 + i // 2)) for i in range(2 * DEPTH)], 0),
    ):
        fun, (weights, x) = model(lambda x, w, i, rule=activations: rule[i](dense(x, w, i)))
        weights = weights * (len(activations) // DEPTH)
        _, jaxpr = closed(fun, weights, x)
        assert len({id(body) for body in called(with_shared_layers(jaxpr))}) == bodies


def test_layers_whose_numbers_differ_are_not_shared():
    fun, args = model(lambda x, w, i: jax.nn.gelu(x * (i + 0.5)) @ w)
    _, jaxpr = closed(fun, *args)
    assert with_shared_layers(jaxpr) is jaxpr


@pytest.mark.parametrize("place", ["tpu:v5e", "gpu:h100"])
@pytest.mark.parametrize("layer", [dropping, looping, jax.checkpoint(dense, static_argnums=2)])
def test_the_figures_are_those_without_sharing(monkeypatch, layer, place):
    fun, args = model(layer)
    found = subject(Question(fun, args, on=place))
    made = found.rewrites
    shared = made.figures(0, made.jaxprs[0])
    monkeypatch.setattr(rewrites, "with_shared_layers", lambda jaxpr: jaxpr)
    whole = made.figures(0, made.jaxprs[0])
    assert (shared.peak_nbytes, shared.kept_nbytes) == (whole.peak_nbytes, whole.kept_nbytes)
    assert shared.cost.flops == whole.cost.flops
