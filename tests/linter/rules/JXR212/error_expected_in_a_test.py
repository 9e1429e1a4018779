import jax
import pytest


def test_missing():
    with pytest.raises(AttributeError):
        jax.checkpoint_policies.dots_and_names
