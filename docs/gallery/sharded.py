"""A multilayer perceptron whose batch is split over `data` and whose hidden units over `model`."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

LAYERS, WIDTH, BATCH = 8, 4096, 16384
mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def loss(params, x):
    for p in params:
        hidden = jax.nn.gelu(x @ p["up"])
        x = x + hidden @ p["down"]
    return jnp.mean(x.astype(jnp.float32) ** 2)


def example_inputs():
    def bf16(shape, *axes):
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)

    one = {
        "up": bf16((WIDTH, 4 * WIDTH), None, "model"),
        "down": bf16((4 * WIDTH, WIDTH), "model", None),
    }
    return [one] * LAYERS, bf16((BATCH, WIDTH), "data", None)
