"""e3nn-jax: an equivariant message over the edges of a point cloud."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp


def loss(weights, positions, senders, receivers, forces):
    def energy(positions):
        vectors = positions[receivers] - positions[senders]
        sh = e3nn.spherical_harmonics("0e + 1o + 2e", e3nn.IrrepsArray("1o", vectors), True)
        nodes = e3nn.scatter_sum(sh, dst=receivers, output_size=positions.shape[0]) / 4.0
        product = e3nn.tensor_product(nodes, nodes).filter("0e + 1o")
        scalars = product.filter("0e").array
        return jnp.sum(jnp.tanh(scalars @ weights))

    return jnp.mean((-jax.grad(energy)(positions) - forces) ** 2)


def loss_inputs():
    n, edges = 32, 128
    width = (
        e3nn.tensor_product(e3nn.zeros("0e + 1o + 2e"), e3nn.zeros("0e + 1o + 2e"))
        .filter("0e")
        .array.shape[-1]
    )
    index = jnp.zeros((edges,), jnp.int32)
    return jnp.zeros((width, 16)), jnp.zeros((n, 3)), index, index, jnp.zeros((n, 3))
