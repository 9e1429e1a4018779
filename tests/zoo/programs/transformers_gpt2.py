"""transformers: FlaxGPT2LMHeadModel, causal language modelling as in `run_clm_flax.py`."""

import functools

import jax
import jax.numpy as jnp
import optax
from transformers import FlaxGPT2LMHeadModel, GPT2Config

config = GPT2Config(vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=4)
model = FlaxGPT2LMHeadModel(config, input_shape=(1, 8), _do_init=False)


def loss(params, input_ids, attention_mask, dropout_rng):
    bound = functools.partial(model, params=params, dropout_rng=dropout_rng)
    return loss_of_model(bound, input_ids, attention_mask)


def loss_of_model(model, input_ids, attention_mask):
    """What `jaxresid report transformers:FlaxGPT2LMHeadModel(...) --loss` is given."""
    logits = model(input_ids, attention_mask, train=True)[0]
    labels = jax.nn.one_hot(input_ids[..., 1:], config.vocab_size)
    return optax.softmax_cross_entropy(logits[..., :-1, :], labels).mean()


def loss_inputs():
    params = model.init_weights(jax.random.PRNGKey(0), (1, 8))
    ids = jnp.zeros((4, 32), jnp.int32)
    return params, ids, jnp.ones_like(ids), jax.random.PRNGKey(0)
