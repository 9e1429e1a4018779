import functools

import jax
import jax.numpy as jnp
from jax import ad_checkpoint as adc


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def act(x, w, scale):
    y = adc.checkpoint_name(x @ w, name="a")  # !
    return jnp.sin(scale * y)


def _forward(x, w, scale):
    return act(x, w, scale), (x, w)


def _backward(scale, residuals, g):
    x, w = residuals
    d = g * scale * jnp.cos(scale * (x @ w))
    return d @ w.T, x.T @ d


act.defvjp(fwd=_forward, bwd=_backward)
