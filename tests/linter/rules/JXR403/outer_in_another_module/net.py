import jax
from module import pair


@jax.checkpoint
def stage(ws, x):
    return pair(ws[2:], pair(ws[:2], x))


def loss(ws, xs):
    x, _ = jax.lax.scan(lambda x, _: (stage(ws, x), None), xs[0], xs)
    return jax.checkpoint(lambda x: pair(ws, x))(x).sum()
