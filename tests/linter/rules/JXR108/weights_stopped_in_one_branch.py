import jax


def net(w, x):
    return jax.nn.gelu(x @ w)


def loss(w, x, frozen):
    if frozen:
        w = jax.lax.stop_gradient(w)
    return jax.checkpoint(net)(w, jax.lax.stop_gradient(x)).sum()
