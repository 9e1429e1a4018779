"""Rewrites of a step's losses: the figures are those of the step traced with the other loss."""

import jax
import jax.numpy as jnp
import pytest

from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject

WIDTH, ROWS, DEPTH = 128, 256, 4


def step_of(activation, *, is_donated):
    """A training step with momentum, and its arguments."""

    def loss(weights, x):
        for w in weights:
            x = activation(x @ w)
        return (x**2).sum()

    def step(weights, momentum, x):
        gradients = jax.grad(loss)(weights, x)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        return jax.tree.map(jnp.subtract, weights, momentum), momentum

    square = jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32")
    weights = [square] * DEPTH
    donated = (0, 1) if is_donated else ()
    args = (weights, weights, jax.ShapeDtypeStruct((ROWS, WIDTH), "float32"))
    return jax.jit(step, donate_argnums=donated), args


def subject_of(activation, *, is_donated):
    step, args = step_of(activation, is_donated=is_donated)
    return subject(Question(step, args, on="tpu:v5e", mode="program"))


@pytest.mark.parametrize("is_donated", [False, True])
def test_the_figures_of_another_loss_are_those_of_the_step_with_it(is_donated):
    written = subject_of(jnp.tanh, is_donated=is_donated)
    other = subject_of(lambda x: jnp.sin(x) * jnp.cos(x), is_donated=is_donated)
    (loss,) = other.rewrites.jaxprs
    for _ in range(2):
        figures = written.rewrites.figures(0, loss)
        assert figures.peak_nbytes == other.peak.nbytes != written.peak.nbytes
        assert figures.cost.flops == other.rewrites.cost().flops
