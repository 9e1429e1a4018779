"""Haiku: a character LSTM unrolled over time by `hk.dynamic_unroll`, with truncated gradients."""

import haiku as hk
import jax
import jax.numpy as jnp
import optax


def unroll(tokens, state):
    core = hk.DeepRNN([lambda x: jax.nn.one_hot(x, 64), hk.LSTM(64), jax.nn.relu, hk.Linear(64)])
    return hk.dynamic_unroll(core, tokens, state)


model = hk.without_apply_rng(hk.transform(unroll))


def loss(params, state, tokens):
    logits, state = model.apply(params, tokens[:-1], state)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[1:])
    return loss.mean()


def loss_inputs():
    tokens = jnp.zeros((33, 16), jnp.int32)
    zeros = jnp.zeros((16, 64))
    state = (hk.LSTMState(zeros, zeros),)
    params = model.init(jax.random.PRNGKey(0), tokens[:-1], state)
    return params, state, tokens
