import jax


@jax.custom_vjp
def f(x):
    return _f(x)


def _f(x):
    return x * x


def fwd(x):
    return jax.vjp(jax.checkpoint(_f), x)


def bwd(vjp, ct):
    return vjp(ct)


f.defvjp(fwd, bwd)
