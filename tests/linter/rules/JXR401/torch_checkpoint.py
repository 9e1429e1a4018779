from torch.utils.checkpoint import checkpoint
import jax


def loss(layer, w, x):
    return checkpoint(layer, prevent_cse=False)(w, x)


def step(ws, x):
    return jax.value_and_grad(loss)(ws, x)
