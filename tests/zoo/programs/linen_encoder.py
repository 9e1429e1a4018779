"""Flax linen: a transformer encoder whose layers are under `nn.remat`, trained as in Flax's own
examples, with `TrainState.apply_gradients`."""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training import train_state


class Layer(nn.Module):
    width: int
    train: bool

    @nn.compact
    def __call__(self, x):
        h = nn.LayerNorm()(x)
        h = nn.SelfAttention(num_heads=4, dropout_rate=0.1, deterministic=not self.train)(h)
        x = x + nn.Dropout(0.1, deterministic=not self.train)(h)
        h = nn.LayerNorm()(x)
        h = nn.Dense(4 * self.width)(h)
        h = nn.gelu(h)
        return x + nn.Dense(self.width)(h)


class Encoder(nn.Module):
    vocabulary: int = 256
    width: int = 64
    layers: int = 2

    @nn.compact
    def __call__(self, tokens, train=True):
        x = nn.Embed(self.vocabulary, self.width)(tokens)
        x = x + self.param("positions", nn.initializers.normal(), (tokens.shape[1], self.width))
        for _ in range(self.layers):
            x = nn.remat(Layer)(self.width, train)(x)
        return nn.Dense(self.vocabulary)(nn.LayerNorm()(x))


model = Encoder()
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def loss_fn(params, tokens, key):
    logits = model.apply({"params": params}, tokens, rngs={"dropout": key})
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()


@jax.jit
def train_step(state, tokens, key):
    key = jax.random.fold_in(key, state.step)
    loss, grads = jax.value_and_grad(loss_fn)(state.params, tokens, key)
    return state.apply_gradients(grads=grads), {"loss": loss}


def train_step_inputs():
    tokens = jnp.zeros((8, 64), jnp.int32)
    key = jax.random.key(0)
    params = model.init({"params": key, "dropout": key}, tokens)["params"]
    state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=tx)
    return state, tokens, key


def loss(params, tokens, key):
    return loss_fn(params, tokens, key)


def loss_inputs():
    state, tokens, key = train_step_inputs()
    return state.params, tokens, key


def trees():
    state, tokens, key = train_step_inputs()
    return {
        "parameters": state.params,
        "optimizer-state": state.opt_state,
        "batch": (tokens, key),
        "argument": state.step,  # the key of dropout is made with it
    }


def objective():
    return loss_fn, loss_inputs()
