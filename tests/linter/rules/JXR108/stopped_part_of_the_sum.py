import jax


@jax.checkpoint
def shifted(w, x):
    top = jax.lax.stop_gradient(x)
    return jax.nn.gelu((x - top.max()) @ w)
