import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def _act(x, w):
    return jnp.sin(checkpoint_name(x @ w, "a"))


act = jax.custom_vjp(_act)


def act_fwd(x, w):
    return jnp.sin(x @ w), (x, w)


def act_bwd(residuals, g):
    x, w = residuals
    d = g * jnp.cos(x @ w)
    return d @ w.T, x.T @ d


act.defvjp(act_fwd, act_bwd)


def pick(x, w, fused):
    return act(x, w) if fused else _act(x, w)
