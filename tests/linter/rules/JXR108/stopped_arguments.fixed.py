import jax
from jax import lax


def teacher(params, x):
    return jax.nn.gelu(x @ params["w"])


def loss(student, params, x):
    params = jax.tree.map(lax.stop_gradient, params)
    want = teacher(params, lax.stop_gradient(x))
    return ((x @ student - want) ** 2).sum()


step = jax.value_and_grad(loss)
