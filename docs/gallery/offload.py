"""Sixteen layers in a scan: the inputs of layers wait in host memory, all else is recomputed."""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

LAYERS, WIDTH, BATCH = 16, 2048, 16384
to_host = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["layer_input"],
    offload_src="device",
    offload_dst="pinned_host",
)


def layer(x, p):
    x = checkpoint_name(x, "layer_input")
    return x + jax.nn.gelu(x @ p["up"]) @ p["down"], None


def loss(params, x, layer=layer):
    x, _ = jax.lax.scan(layer, x, params)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def offloaded(params, x):
    return loss(params, x, jax.checkpoint(layer, policy=to_host, prevent_cse=False))


def example_inputs():
    def bf16(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    up, down = bf16(LAYERS, WIDTH, 4 * WIDTH), bf16(LAYERS, 4 * WIDTH, WIDTH)
    return {"up": up, "down": down}, bf16(BATCH, WIDTH)
