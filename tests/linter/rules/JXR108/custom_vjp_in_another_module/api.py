import jax
from module import forward


@jax.custom_vjp
def run(xs):
    return forward(xs)[0]


def bwd(xs, ct):
    return (ct * jax.numpy.cos(xs),)


run.defvjp(forward, bwd)
