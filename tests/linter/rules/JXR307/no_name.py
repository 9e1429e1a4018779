import jax.numpy as jnp
from jax import ad_checkpoint as adc


def block(w, x):
    y = adc.checkpoint_name(x @ w)  # !
    return jnp.sin(y)
