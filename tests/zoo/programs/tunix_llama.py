"""tunix: its Llama 3 with every decoder layer rematerialized, and the step of its trainer, which
updates model and optimizer in place."""

import jax.numpy as jnp
import optax
from flax import nnx
from tunix.models.llama3 import model as llama

config = llama.ModelConfig(
    num_layers=2,
    vocab_size=256,
    embed_dim=64,
    hidden_dim=192,
    num_heads=4,
    head_dim=16,
    num_kv_heads=2,
    rope_theta=10_000,
    norm_eps=1e-5,
    remat_config=llama.RematConfig.DECODER,
)


def loss_fn(model, tokens):
    batch, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (batch, length, length))
    logits, _ = model(tokens, positions, None, mask)
    logits = logits[:, :-1].astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


@nnx.jit
def train_step(model, optimizer, tokens):
    loss, grads = nnx.value_and_grad(loss_fn)(model, tokens)
    optimizer.update(model, grads)
    return loss, optax.global_norm(grads)


def train_step_inputs():
    model = llama.Llama3(config, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-4), wrt=nnx.Param)
    return model, optimizer, jnp.zeros((4, 32), jnp.int32)


def trees():
    model, optimizer, tokens = train_step_inputs()
    return {"parameters": nnx.state(model), "others": (nnx.state(optimizer), tokens)}


def objective():
    model, _, tokens = train_step_inputs()
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    return lambda *args: loss_fn(nnx.merge(graph, *args[:2]), args[2]), (params, rest, tokens)
