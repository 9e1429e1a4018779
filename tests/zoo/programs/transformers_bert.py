"""transformers: FlaxBertForMaskedLM with gradient checkpointing, as in `run_mlm_flax.py`."""

import jax
import jax.numpy as jnp
import optax
from flax.training import train_state
from transformers import BertConfig, FlaxBertForMaskedLM

config = BertConfig(
    vocab_size=512,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=256,
    max_position_embeddings=64,
)
model = FlaxBertForMaskedLM(config, input_shape=(1, 8), _do_init=False)
model.enable_gradient_checkpointing()
tx = optax.adamw(3e-4)


def loss_fn(params, batch, dropout_rng):
    labels = batch["labels"]
    logits = model(
        batch["input_ids"],
        batch["attention_mask"],
        params=params,
        dropout_rng=dropout_rng,
        train=True,
    ).logits
    mask = jnp.where(labels > 0, 1.0, 0.0)
    one_hot = jax.nn.one_hot(labels, logits.shape[-1])
    return (optax.softmax_cross_entropy(logits, one_hot) * mask).sum() / mask.sum()


def train_step(state, batch, dropout_rng):
    dropout_rng, new_dropout_rng = jax.random.split(dropout_rng)
    loss, grads = jax.value_and_grad(loss_fn)(state.params, batch, dropout_rng)
    return state.apply_gradients(grads=grads), {"loss": loss}, new_dropout_rng


def train_step_inputs():
    params = model.init_weights(jax.random.PRNGKey(0), (1, 8))
    state = train_state.TrainState.create(apply_fn=model.__call__, params=params, tx=tx)
    ids = jnp.zeros((4, 32), jnp.int32)
    batch = {"input_ids": ids, "attention_mask": jnp.ones_like(ids), "labels": ids}
    return state, batch, jax.random.PRNGKey(1)


def trees():
    state, batch, key = train_step_inputs()
    return {"parameters": state.params, "others": (state.opt_state, state.step, batch, key)}


def objective():
    state, batch, key = train_step_inputs()
    return loss_fn, (state.params, batch, key)
