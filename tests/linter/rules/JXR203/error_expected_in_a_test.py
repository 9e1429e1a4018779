import jax
import pytest


def test_list():
    with pytest.raises(TypeError):
        jax.checkpoint_policies.save_only_these_names(["attn"])
