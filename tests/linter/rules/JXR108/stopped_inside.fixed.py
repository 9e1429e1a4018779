import jax


def value(w, x):
    w, x = jax.lax.stop_gradient((w, x))
    return jax.nn.softplus(jax.nn.softplus(x @ w))
