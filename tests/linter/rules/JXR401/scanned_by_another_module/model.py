import jax
from module import group


def run(x, ws):
    return jax.lax.scan(group, x, ws)
