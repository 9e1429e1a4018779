"""The code to write for microbatches, run with modules of libraries: the gradients of the batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxresid.advice.plan.joint.accumulation_code import accumulation_code
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject

pytestmark = pytest.mark.integration

# Of NumPy: JAX would compile for them wherever tests are collected.
X, Y = np.random.default_rng(0).normal(size=(2, 32, 6)).astype(np.float32)


def code(fun, *args, mode, argnums=0):
    """The code for four microbatches."""
    argnums = None if mode == "program" else argnums
    part = tuple(a[:8] if a is X or a is Y else a for a in args)
    found = subject(Question(fun, part, argnums=argnums, mode=mode, on="gpu:h100"))
    return accumulation_code(found, 8, 4)


def run(text, **names):
    scope = {"jax": jax, "jnp": jnp, **names}
    exec(text, scope)
    return scope


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6), found, expected
    )


@pytest.fixture
def of_equinox():
    """A module that holds a function, and its loss."""
    eqx = pytest.importorskip("equinox")

    def loss(model, x, y):
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    return eqx, eqx.nn.MLP(6, 6, 16, 2, key=jax.random.key(2)), loss


@pytest.fixture
def of_nnx():
    nnx = pytest.importorskip("flax.nnx")

    def loss(model, x, y):
        return jnp.mean((jnp.tanh(model(x)) - y) ** 2)

    return nnx, nnx.Linear(6, 6, rngs=nnx.Rngs(0)), loss


def test_of_an_equinox_module(of_equinox):
    eqx, model, loss = of_equinox
    found = run(code(loss, model, X, Y, mode="loss"), eqx=eqx, loss=loss)
    expected = eqx.filter_value_and_grad(loss)(model, X, Y)
    assert_same(eqx.filter_jit(found["value_and_gradients"])(model, X, Y), expected)


def test_of_a_step_of_an_equinox_module(of_equinox):
    eqx, model, loss = of_equinox

    @eqx.filter_jit
    def step(model, x, y):
        value, gradients = eqx.filter_value_and_grad(loss)(model, x, y)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -g, gradients)), value

    found = run(code(step, model, X, Y, mode="program"), eqx=eqx)
    both = eqx.filter_value_and_grad(loss)
    assert_same(found["accumulated"](both, model, X, Y), both(model, X, Y))


def test_of_an_nnx_module(of_nnx):
    nnx, model, loss = of_nnx
    found = run(code(loss, model, X, Y, mode="loss"), nnx=nnx, loss=loss)
    expected = nnx.value_and_grad(loss)(model, X, Y)
    assert_same(nnx.jit(found["value_and_gradients"])(model, X, Y), expected)


def test_of_two_nnx_modules(of_nnx):
    nnx, model, loss = of_nnx
    other = nnx.Linear(6, 6, rngs=nnx.Rngs(1))

    def both_losses(model, x, teacher):
        return loss(model, x, teacher(x))

    found = run(code(both_losses, model, X, other, mode="loss"), nnx=nnx, both_losses=both_losses)
    expected = nnx.value_and_grad(both_losses)(model, X, other)
    assert_same(found["value_and_gradients"](model, X, other), expected)


def test_of_a_step_of_an_nnx_module(of_nnx):
    nnx, model, loss = of_nnx
    optax = pytest.importorskip("optax")
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        value, gradients = nnx.value_and_grad(loss)(model, x, y)
        optimizer.update(model, gradients)
        return value

    text = code(step, model, optimizer, X, Y, mode="program")

    @nnx.jit
    def accumulated_step(model, optimizer, x, y):
        scope = run(text, nnx=nnx)
        value, gradients = scope["accumulated"](nnx.value_and_grad(loss), model, x, y)
        optimizer.update(model, gradients)
        return value

    copy = nnx.clone(model)
    other = nnx.Optimizer(copy, optax.sgd(0.1), wrt=nnx.Param)
    assert_same(accumulated_step(copy, other, X, Y), step(model, optimizer, X, Y))
    assert_same(nnx.state(copy), nnx.state(model))


def test_what_has_no_module_is_written_in_jax():
    def loss(params, x, scale):
        return scale * jnp.mean((x @ params) ** 2)

    text = code(loss, X[:6], X, 2.0, mode="loss")
    assert "eqx" not in text and "nnx" not in text
    found = run(text, loss=loss)["value_and_gradients"](X[:6], X, 2.0)
    assert_same(found, jax.value_and_grad(loss)(X[:6], X, 2.0))
