import haiku as hk
import jax


def trunk(x):
    x = hk.remat(hk.Sequential([hk.Conv2D(8, 3), jax.nn.relu]))(x)
    x = hk.remat(hk.SeparableDepthwiseConv2D(1, 3))(x)
    return hk.remat(hk.nets.MLP([8, 8]))(x)
