import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def _multiply(x, w):
    return checkpoint_name(x @ w, "a")


@jax.custom_vjp
def act(x, w):
    return jnp.sin(checkpoint_name(x @ w, "a"))


def act_fwd(x, w):
    y = _multiply(x, w)
    return jnp.sin(y), (y, x, w)


def act_bwd(residuals, g):
    y, x, w = residuals
    d = g * jnp.cos(y)
    return d @ w.T, x.T @ d


act.defvjp(act_fwd, act_bwd)
