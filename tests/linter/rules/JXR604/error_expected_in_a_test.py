import flax.linen as nn
import jax.numpy as jnp
import pytest


def test_remat_takes_modules(x):
    with pytest.raises(AttributeError):
        nn.remat(jnp.sin)(x)
