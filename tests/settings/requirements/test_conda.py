"""The requirements on jax of conda environments."""

import pytest

from jaxresid.settings.requirements.conda import conda_requirement, environment_requirements


# Held against rattler's MatchSpec, 0.28, over the versions 0.0.0 to 2.13.35.
@pytest.mark.parametrize(
    ("spec", "lines"),
    [
        ("jax", ["jax"]),
        ("jax *", ["jax"]),
        ("jax=0.4", ["jax==0.4.*"]),
        ("jax=0.4.*", ["jax==0.4.*"]),
        ("jax 0.4.*", ["jax==0.4.*"]),
        ("jax==0.4.16", ["jax==0.4.16"]),
        ("jax=0.4.16=pyhd8ed1ab_0", ["jax==0.4.16.*"]),
        ("jax 0.4.16 pyhd8ed1ab_0", ["jax==0.4.16"]),
        ("conda-forge::jax=0.4.1", ["jax==0.4.1.*"]),
        ("jax>=0.4,<0.6", ["jax>=0.4,<0.6"]),
        ("jax < 0.5", ["jax<0.5"]),
        ("jax >=0.4,<0.5 py_*", ["jax>=0.4,<0.5"]),
        ("jax !=0.4.14", ["jax!=0.4.14"]),
        ("jax 0.3.*|0.4.*", ["jax==0.4.*"]),
        ("jaxlib=0.4", []),
        ("jax-jumpy=1", []),
        ("flax", []),
    ],
)
def test_a_spec(spec, lines):
    assert conda_requirement(spec) == lines


def test_an_environment_counts_what_pip_installs_too():
    text = """
name: jax=0.1
channels: [conda-forge]
dependencies:
  - python=3.11
  - "jax=0.4.26"  # the newest that works
  # - jax=0.9
  - jaxlib=0.4.26=cuda120py311_202
  - pip:
      - jax[cuda12]==0.4.30
      - jax-md
"""
    assert environment_requirements(text) == ["jax==0.4.26.*", "jax[cuda12]==0.4.30"]
    assert environment_requirements(text.replace("\n", "\r\n")) == environment_requirements(text)
