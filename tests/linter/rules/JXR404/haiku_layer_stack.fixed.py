import haiku as hk
import jax


def layer(x):
    return x + hk.Linear(8)(jax.nn.gelu(hk.Linear(32)(x)))


def net(x):
    stack = hk.experimental.layer_stack(3)
    return stack(hk.remat(layer, prevent_cse=False))(x)
