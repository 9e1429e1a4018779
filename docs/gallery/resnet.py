"""A ResNet of four stages on 224 × 224 images, with batch normalisation."""

import jax
import jax.numpy as jnp

STAGES = (64, 128, 256, 512)
BLOCKS, BATCH = 2, 128


def conv(x, kernel, stride=1):
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def batch_norm(x, p):
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]


def block(x, p, stride):
    y = jax.nn.relu(batch_norm(conv(x, p["conv1"], stride), p["norm1"]))
    y = batch_norm(conv(y, p["conv2"]), p["norm2"])
    return jax.nn.relu(y + (conv(x, p["skip"], stride) if "skip" in p else x))


def loss(params, images, labels):
    x = jax.nn.relu(batch_norm(conv(images, params["stem"], 2), params["norm"]))
    for stage, blocks in enumerate(params["stages"]):
        for i, p in enumerate(blocks):
            x = block(x, p, stride=2 if stage and not i else 1)
    logits = x.mean((1, 2)) @ params["head"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], -1).mean()


def example_inputs():
    def f32(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    def norm(width):
        return {"scale": f32(width), "bias": f32(width)}

    def one(before, width):
        made = {"conv1": f32(3, 3, before, width), "conv2": f32(3, 3, width, width)}
        skip = {"skip": f32(1, 1, before, width)} if before != width else {}
        return {**made, **skip, "norm1": norm(width), "norm2": norm(width)}

    befores = (STAGES[0], *STAGES)
    params = {
        "stem": f32(7, 7, 3, STAGES[0]),
        "norm": norm(STAGES[0]),
        "stages": [
            [one(before if not i else width, width) for i in range(BLOCKS)]
            for before, width in zip(befores, STAGES, strict=False)
        ],
        "head": f32(STAGES[-1], 1000),
    }
    return params, f32(BATCH, 224, 224, 3), jax.ShapeDtypeStruct((BATCH,), jnp.int32)
