import jax


def f(x):
    return jax.numpy.sin(jax.numpy.sin(x))


def directional(x, t):
    return jax.jvp(f, (x,), (t,))
