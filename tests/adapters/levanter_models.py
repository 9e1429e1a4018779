"""Losses of a model of Levanter as its train_lm writes them, without an adapter."""

import equinox as eqx
import haliax as hax
import jax
import jmp
from levanter.models.gpt2 import Gpt2Config
from levanter.models.lm_model import LmExample, compute_next_token_loss

CONFIG = Gpt2Config(num_layers=2, hidden_dim=32, num_heads=2, seq_len=64)
VOCAB = hax.Axis("vocab", 128)


def loss(model, key, tokens):
    model = jmp.get_policy("p=f32,c=bfloat16").cast_to_compute(model)
    tokens = hax.named(tokens, (hax.Axis("batch", 4), CONFIG.Pos.resize(32)))
    examples = hax.vmap(LmExample.causal, "batch")(tokens)
    return compute_next_token_loss(model, examples, key=key).scalar()


def loss_inputs():
    model = eqx.filter_eval_shape(CONFIG.build, VOCAB, key=jax.random.PRNGKey(0))
    return model, jax.random.key(0), jax.ShapeDtypeStruct((4, 32), "int32")


def own_loss(model, tokens):
    return model(tokens).array.mean()
