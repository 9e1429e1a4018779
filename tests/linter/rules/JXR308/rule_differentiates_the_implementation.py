import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def _act(x, w):
    return jnp.sin(checkpoint_name(x @ w, "a"))


act = jax.custom_vjp(_act)
act.defvjp(lambda x, w: jax.vjp(_act, x, w), lambda pullback, g: pullback(g))
