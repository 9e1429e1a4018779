#: A stack of one layer is no loop, nor is one that is unrolled.
import haiku as hk
import jax


def layer(x):
    return jax.nn.gelu(hk.Linear(8)(jax.nn.gelu(hk.Linear(8)(x))))


def net(x, unroll):
    x = hk.layer_stack(1)(hk.remat(layer))(x)
    x = hk.layer_stack(3, unroll=3)(hk.remat(layer))(x)
    return hk.layer_stack(3, unroll=unroll)(hk.remat(layer))(x)
