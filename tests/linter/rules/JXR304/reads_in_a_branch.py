import jax.numpy as jnp
from jax import ad_checkpoint as adc


def attention(params, x, mask):
    q, k = jnp.split(x @ params, 2, axis=-1)
    saved_k = adc.checkpoint_name(k, name="k")  # !
    logits = q @ saved_k.T
    if mask is not None:
        logits = jnp.where(mask, logits, jnp.sin(k).sum())
    return logits
