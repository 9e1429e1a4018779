import jax.ad_checkpoint
import jax.numpy as jnp
from jax.nn import softmax

tag = jax.ad_checkpoint.checkpoint_name


def block(w, v, x):
    scores = (jnp.matmul(x, w) + 1.0).astype(x.dtype)
    p = tag(softmax(scores, axis=-1), "a")  # !
    return jnp.sin(p @ v)


policy = jax.checkpoint_policies.save_only_these_names("a")
block = jax.checkpoint(block, policy=policy)
