import jax
import jax.numpy as jnp


def layer(w, x):
    return jnp.cos(jnp.sin(x @ w)).sum()


block = jax.checkpoint(
    layer,
    policy=lambda prim, *_, **__: prim.name == "dot_general",
)
