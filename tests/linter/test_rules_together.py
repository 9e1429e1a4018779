"""What one rule finds does not hide what another has to say about the same checkpoint."""

import pytest

from jaxresid.linter import fix_source, lint_source
from jaxresid.settings.config import Options, load

LOSS = """
import jax


def loss(w, x):
    return jax.numpy.sin(x @ w).sum()


def step(w, x):
    return jax.value_and_grad(jax.checkpoint(loss, policy={policy}))(w, x)
"""


def codes(source, config):
    return [v.code for v in lint_source(source, "model.py", config=config)]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        # False, which JAX takes for no policy: both are wrong.
        ("jax.checkpoint_policies.nothing_saveable()", ["JXR101", "JXR202"]),
        # These raise, so that there is nothing to say about memory.
        ("jax.checkpoint_policies.everything_saveable()", ["JXR202"]),
        ("jax.checkpoint_policies.dots_saveable()", ["JXR202"]),
        ("jax.checkpoint_policies.save_only_these_names()", ["JXR101"]),
        ("jax.checkpoint_policies.save_only_these_names('hidden')", []),
    ],
)
def test_a_called_policy_around_a_whole_loss(policy, expected, tmp_path):
    config = load(tmp_path, Options(), isolated=True)
    source = LOSS.format(policy=policy)
    assert codes(source, config) == expected
    if expected == ["JXR101", "JXR202"]:
        fixed = fix_source(source, "model.py", unsafe=True, config=config)
        assert "jax.value_and_grad(loss)(w, x)" in fixed
        assert codes(fixed, config) == []
