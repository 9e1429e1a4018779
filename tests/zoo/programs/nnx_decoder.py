"""Flax NNX: the standard step, which updates model, optimizer and metrics in place; and the same
step written functionally, with `nnx.split` and `nnx.merge`."""

import jax.numpy as jnp
import optax
from flax import nnx


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.norm1 = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            num_heads=4, in_features=width, decode=False, rngs=rngs
        )
        self.norm2 = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class Decoder(nnx.Module):
    def __init__(self, vocabulary, width, layers, rngs):
        self.embed = nnx.Embed(vocabulary, width, rngs=rngs)
        for i in range(layers):
            setattr(self, f"block{i}", Block(width, rngs))
        self.layers = layers
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.head = nnx.Linear(width, vocabulary, rngs=rngs)

    def __call__(self, tokens):
        x = self.drop(self.embed(tokens))
        for i in range(self.layers):
            x = nnx.remat(lambda block, x: block(x))(getattr(self, f"block{i}"), x)
        return self.head(x)


def loss_fn(model, batch):
    logits = model(batch["inputs"])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]).mean()
    return loss, logits


@nnx.jit
def train_step(model, optimizer, metrics, batch):
    grad_fn = nnx.value_and_grad(loss_fn, has_aux=True)
    (loss, logits), grads = grad_fn(model, batch)
    metrics.update(loss=loss, logits=logits, labels=batch["targets"])
    optimizer.update(model, grads)


def train_step_inputs():
    model = Decoder(256, 64, 2, nnx.Rngs(0, dropout=1))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    tokens = jnp.zeros((8, 64), jnp.int32)
    return model, optimizer, metrics, {"inputs": tokens, "targets": tokens}


def functional_step(graph, state, batch):
    model, optimizer = nnx.merge(graph, state)
    (loss, _), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model, batch)
    optimizer.update(model, grads)
    return nnx.state((model, optimizer)), loss


def functional_step_inputs():
    model, optimizer, _, batch = train_step_inputs()
    graph, state = nnx.split((model, optimizer))
    return graph, state, batch


def loss(model, batch):
    return loss_fn(model, batch)[0]


def loss_inputs():
    model, _, _, batch = train_step_inputs()
    return model, batch


def trees():
    model, optimizer, metrics, batch = train_step_inputs()
    _, params, rest = nnx.split(model, nnx.Param, ...)
    return {
        "parameters": nnx.pure(params) if hasattr(nnx, "pure") else params,
        "others": (rest, nnx.state(optimizer), nnx.state(metrics), batch),
    }


def functional_trees():
    model, optimizer, _, batch = train_step_inputs()
    _, params, rest = nnx.split(model, nnx.Param, ...)
    return {"parameters": params, "others": (rest, nnx.state(optimizer), batch)}


def objective():
    model, batch = loss_inputs()
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def of(params, rest, batch):
        return loss_fn(nnx.merge(graph, params, rest), batch)[0]

    return of, (params, rest, batch)
