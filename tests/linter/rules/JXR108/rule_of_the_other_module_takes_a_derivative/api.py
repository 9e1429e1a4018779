import jax
from module import forward


@jax.custom_vjp
def run(xs):
    return forward(xs)[0]


def fwd(xs):
    return jax.vjp(forward, xs)


def bwd(vjp, ct):
    return vjp((ct, None))


run.defvjp(fwd, bwd)
