import jax


@jax.checkpoint
def maybe(w, x, frozen):
    h = jax.nn.gelu(x @ w)
    if frozen:
        return jax.lax.stop_gradient(h)
    return h
