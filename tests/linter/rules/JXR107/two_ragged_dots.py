import jax


@jax.checkpoint
def routed(x, w, v, sizes):
    return jax.lax.ragged_dot(jax.lax.ragged_dot(x, w, sizes), v, sizes)
