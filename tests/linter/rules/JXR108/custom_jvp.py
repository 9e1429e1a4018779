import jax


@jax.custom_jvp
def f(x):
    return jax.checkpoint(jax.numpy.sin)(x)


@f.defjvp
def rule(primals, tangents):
    return f(*primals), tangents[0]
