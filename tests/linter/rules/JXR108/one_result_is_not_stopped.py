import jax


def both(net, w, x):
    q, h = jax.checkpoint(net)(w, x)
    return jax.lax.stop_gradient(q) + h
