"""The version of jax in lock files."""

import pytest

from jaxresid.settings.requirements.locks import locked_version

UV = """version = 1
requires-python = ">=3.11"

[[package]]
name = "app"
version = "0.1"
source = { virtual = "." }
dependencies = [
    { name = "jax" },
]

[package.metadata]
requires-dist = [{ name = "jax", specifier = ">=0.6,<0.7" }]

[[package]]
name = "jax"
version = "0.6.2"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "jaxlib"
version = "0.7.0"
"""
POETRY = """[[package]]
name = "jax"
version = "0.4.30"
description = ""

[package.dependencies]
jaxlib = ">=0.4.27"
name = "x"
version = "9.9"

[metadata]
lock-version = "2.0"
"""
PYLOCK = """lock-version = '1.0'
[[packages]]
version = '0.5.3'
name = 'jax'
"""
PIPENV = """{"_meta": {}, "default": {"jax": {"hashes": [], "version": "==0.4.13"}},
"develop": {"jax": {"git": "x"}}}"""
PIXI = """
environments:
  default:
    packages:
      linux-64:
      - conda: https://conda.anaconda.org/conda-forge/noarch/jax-0.4.27-pyhd8ed1ab_0.conda
      - conda: https://conda.anaconda.org/conda-forge/linux-64/jaxlib-0.6.1-cpu_py311_0.conda
"""
PIXI_PYPI = """
packages:
- pypi: https://files.pythonhosted.org/packages/aa/bb/jax-0.6.2-py3-none-any.whl
  name: jax
  version: 0.6.2
"""


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("uv.lock", UV, (0, 6)),
        ("uv.lock", UV + '[[package]]\nname = "jax"\nversion = "0.10.2"\n', (0, 10)),
        ("uv.lock", UV.replace('name = "jax"\n', 'name = "flax"\n'), None),
        ("poetry.lock", POETRY, (0, 4)),
        ("poetry.lock", POETRY.replace('name = "jax"', 'name = "jumpy"'), None),
        ("pdm.lock", POETRY, (0, 4)),
        ("pylock.toml", PYLOCK, (0, 5)),
        ("Pipfile.lock", PIPENV, (0, 4)),
        ("Pipfile.lock", "[]", None),
        ("Pipfile.lock", "{", None),
        ("pixi.lock", PIXI, (0, 4)),
        ("pixi.lock", PIXI.replace("pyhd8ed1ab_0.conda", "pyhd8ed1ab_0.tar.bz2"), (0, 4)),
        ("pixi.lock", PIXI_PYPI, (0, 6)),
        ("pixi.lock", PIXI.replace("/jax-", "/ajax-"), None),
    ],
)
def test_the_version_of_a_lock(name, text, version):
    assert locked_version(name, text) == version
