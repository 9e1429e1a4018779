import jax


@jax.checkpoint
def both(w, x):
    h = jax.nn.gelu(x @ w)
    return jax.lax.stop_gradient(h), h
