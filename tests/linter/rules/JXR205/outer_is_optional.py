import jax

cp = jax.checkpoint_policies


def inner(layer, w, x):
    return jax.checkpoint(layer, policy=cp.dots_saveable)(w, x)


def outer(layer, w, x, remat):
    wrapped = jax.checkpoint(inner, static_argnums=0) if remat else inner
    return wrapped(layer, w, x)
