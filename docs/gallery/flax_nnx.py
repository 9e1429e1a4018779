"""A vision transformer of Flax NNX modules, with the library's own attention."""

import jax
import jax.numpy as jnp
from flax import nnx

LAYERS, WIDTH, HEADS, PATCH, BATCH = 6, 384, 6, 16, 256


class Mlp(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        return self.down(nnx.gelu(self.up(x)))


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm1 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.mlp = Mlp(rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nnx.Module):
    def __init__(self, rngs):
        patch = (PATCH, PATCH)
        self.patches = nnx.Conv(3, WIDTH, patch, strides=patch, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.head = nnx.Linear(WIDTH, 1000, rngs=rngs)

    def __call__(self, images):
        x = self.patches(images)
        x = x.reshape(x.shape[0], -1, WIDTH)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def loss(model, images, labels):
    log_probabilities = jax.nn.log_softmax(model(images))
    return -jnp.take_along_axis(log_probabilities, labels[:, None], -1).mean()


def loss_inputs():
    model = nnx.eval_shape(lambda: VisionTransformer(nnx.Rngs(0)))
    images = jax.ShapeDtypeStruct((BATCH, 224, 224, 3), jnp.float32)
    return model, images, jax.ShapeDtypeStruct((BATCH,), jnp.int32)
