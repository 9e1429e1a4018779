import jax
from module import loss


def step(w, x):
    return jax.value_and_grad(loss)(w, x)
