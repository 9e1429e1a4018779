import jax
import pytest


def test_one_argument():
    with pytest.raises(TypeError):
        jax.checkpoint(abs, 1.0)
