import jax
from functools import partial


@jax.custom_vjp
def run(xs):
    return _forward(xs)


def _forward(xs):
    @partial(jax.checkpoint, prevent_cse=False)  # !
    def step(c, x):
        return c + jax.numpy.sin(x), None

    return jax.lax.scan(step, 0.0, xs)[0]


def fwd(xs):
    return _forward(xs), xs


def bwd(xs, ct):
    return (ct * jax.numpy.cos(xs),)


run.defvjp(fwd, bwd)
