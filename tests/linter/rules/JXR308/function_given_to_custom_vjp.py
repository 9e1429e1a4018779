import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def _act(x, w):
    return jnp.sin(checkpoint_name(x @ w, "a"))  # !


def _residuals(x, w):
    return x @ w, x, w


act = jax.custom_vjp(_act)
act.defvjp(
    lambda x, w: (jnp.sin(x @ w), _residuals(x, w)),
    lambda r, g: ((g * jnp.cos(r[0])) @ r[2].T, r[1].T @ (g * jnp.cos(r[0]))),
)
