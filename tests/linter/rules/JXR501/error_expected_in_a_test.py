import jax
import pytest


def test_needs_a_function():
    with pytest.raises(TypeError):
        jax.checkpoint(prevent_cse=False)
