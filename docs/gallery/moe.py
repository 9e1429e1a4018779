"""A mixture of 32 experts: each token goes to the best, which takes so many and no more."""

import jax
import jax.numpy as jnp

LAYERS, EXPERTS, CAPACITY, WIDTH, TOKENS = 4, 32, 320, 1024, 8192


def route(x, router):
    probabilities = jax.nn.softmax(x @ router)
    expert = jnp.argmax(probabilities, -1)
    chosen = jax.nn.one_hot(expert, EXPERTS)
    place = jnp.cumsum(chosen, 0) * chosen - 1
    dispatch = jax.nn.one_hot(place.astype(jnp.int32), CAPACITY, dtype=x.dtype)
    return dispatch, dispatch * (probabilities * chosen)[..., None]


def experts(x, p):
    hidden = jax.nn.gelu(jnp.einsum("ecd,edh->ech", x, p["up"]))
    return jnp.einsum("ech,ehd->ecd", hidden, p["down"])


def layer(x, p):
    dispatch, combine = route(x, p["router"])
    inputs = jnp.einsum("tec,td->ecd", dispatch, x)
    return x + jnp.einsum("tec,ecd->td", combine, experts(inputs, p))


def loss(params, x):
    for p in params:
        x = layer(x, p)
    return jnp.mean(x**2)


def example_inputs():
    def f32(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    one = {
        "router": f32(WIDTH, EXPERTS),
        "up": f32(EXPERTS, WIDTH, 2 * WIDTH),
        "down": f32(EXPERTS, 2 * WIDTH, WIDTH),
    }
    return [one] * LAYERS, f32(TOKENS, WIDTH)
