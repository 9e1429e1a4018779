import jax
import pytest


def test_policy():
    assert not jax.checkpoint_policies.nothing_saveable()
    assert jax.checkpoint_policies.everything_saveable() is True
    with pytest.raises(TypeError):
        jax.checkpoint_policies.dots_saveable()
