"""penzai: a small Llama-like model whose blocks are wrapped in `Checkpointed`."""

import functools

import jax
import jax.numpy as jnp
import optax
from penzai import pz
from penzai.models.transformer import model_parts
from penzai.models.transformer.variants import llamalike_common as common
from penzai.toolshed import gradient_checkpointing

config = common.LlamalikeTransformerConfig(
    num_kv_heads=4,
    query_head_multiplier=1,
    embedding_dim=64,
    projection_dim=16,
    mlp_hidden_dim=192,
    num_decoder_blocks=2,
    vocab_size=256,
    mlp_variant="swiglu",
    tie_embedder_and_logits=False,
    rope_wavelength=10000,
    rms_norm_eps=1e-6,
    attention_type=common.AttentionTypeGlobalCausal(),
    use_layer_stack=False,
    parameter_dtype=jnp.float32,
    activation_dtype=jnp.float32,
)


@functools.cache
def model():
    made = common.build_llamalike_transformer(config, init_base_rng=jax.random.key(0))
    blocks = made.select().at_instances_of(model_parts.TransformerBlock)
    return pz.unbind_params(blocks.apply(gradient_checkpointing.Checkpointed), freeze=True)


def loss(params, tokens):
    bound = pz.bind_variables(model()[0], params)
    ids = pz.nx.wrap(tokens).tag("batch", "seq")
    positions = pz.nx.wrap(jnp.arange(tokens.shape[1])).tag("seq")
    logits = bound(ids, token_positions=positions).unwrap("batch", "seq", "vocabulary")
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()


def loss_inputs():
    return model()[1], jnp.zeros((4, 32), jnp.int32)
