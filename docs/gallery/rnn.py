"""A GRU over 2,048 steps of time, plain and with a checkpoint around each step."""

import jax
import jax.numpy as jnp

STEPS, BATCH, WIDTH = 2048, 64, 512


def cell(h, x, p):
    gates = jax.nn.sigmoid(jnp.concatenate([x, h], -1) @ p["gates"])
    reset, update = jnp.split(gates, 2, -1)
    candidate = jnp.tanh(jnp.concatenate([x, reset * h], -1) @ p["candidate"])
    return update * h + (1 - update) * candidate


def loss(params, xs, cell=cell):
    def step(h, x):
        return cell(h, x, params), None

    h, _ = jax.lax.scan(step, jnp.zeros(xs.shape[1:]), xs)
    return jnp.mean(h**2)


def checkpointed(params, xs):
    return loss(params, xs, jax.checkpoint(cell, prevent_cse=False))


def example_inputs():
    def f32(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    params = {"gates": f32(2 * WIDTH, 2 * WIDTH), "candidate": f32(2 * WIDTH, WIDTH)}
    return params, f32(STEPS, BATCH, WIDTH)
