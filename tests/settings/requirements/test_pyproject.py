"""The requirements on jax in the tables of many tools."""

import tomllib

import pytest
from packaging.specifiers import SpecifierSet

from jaxresid.settings.requirements.pyproject import jax_requirements
from jaxresid.settings.requirements.versions import newest_admitted

PEP_621 = """
[project]
dependencies = ["jax>=0.4,<0.7"]
[dependency-groups]
old = ["jax<0.4"]
"""
GROUP = """
[project]
dependencies = ["numpy"]
[dependency-groups]
dev = ["jax==0.6.2", { include-group = "test" }]
"""
POETRY = """
[tool.poetry.dependencies]
python = "^3.11"
Jax = { version = "^0.4.13", extras = ["cuda12"] }
"""
POETRY_BY_MACHINE = """
[tool.poetry.dependencies]
jax = [{ version = "0.4.20", platform = "darwin" }, { version = "~0.6.1", platform = "linux" }]
"""
POETRY_GROUP = """
[tool.poetry.group.dev.dependencies]
jax = "0.5.*"
"""
PIXI = """
[tool.pixi.dependencies]
jax = ">=0.4.30,<0.6"
"""
PIXI_FEATURES = """
[tool.pixi.feature.cpu.dependencies]
jax = "0.4.*"
[tool.pixi.feature.gpu.pypi-dependencies]
jax = { version = "==0.6.2", extras = ["cuda12"] }
"""


@pytest.mark.parametrize(
    ("text", "newest"),
    [
        (PEP_621, (0, 6)),
        (GROUP, (0, 6)),
        (POETRY, (0, 4)),
        (POETRY_BY_MACHINE, (0, 6)),
        (POETRY_GROUP, (0, 5)),
        ('[tool.poetry.dependencies]\njax = "*"', None),
        ('[tool.poetry.dependencies]\njax = { git = "https://example.org/jax" }', None),
        (PIXI, (0, 5)),
        (PIXI_FEATURES, (0, 6)),
        ('[tool]\npoetry = 3\npixi = ["jax"]', None),
        ("[tool.poetry]\ngroup = { dev = 3 }", None),
    ],
)
def test_what_a_pyproject_admits(text, newest):
    assert newest_admitted(jax_requirements(tomllib.loads(text))) == newest


# What Poetry 2.5's parse_constraint says of 0.3.25, 0.4.12, 0.4.13, 0.4.30, 0.5.0, 1.0.0, 1.2.5 and
# 2.0.0.
VERSIONS = ("0.3.25", "0.4.12", "0.4.13", "0.4.30", "0.5.0", "1.0.0", "1.2.5", "2.0.0")


@pytest.mark.parametrize(
    ("constraint", "allowed"),
    [
        ("^0.4.13", "00110000"),
        ("^0.4", "01110000"),
        ("^0", "11111000"),
        ("^1.0", "00000110"),
        ("~0.4.13", "00110000"),
        ("~0.4", "01110000"),
        ("~1", "00000110"),
        ("~=0.4.13", "00110000"),
        ("0.4.13", "00100000"),
        ("0.4.*", "01110000"),
        ("*", "11111111"),
        (">=0.4.13, !=0.4.30, <1", "00101000"),
        ("^0.3 || ^0.4.13", "00110000"),
    ],
)
def test_constraints_of_poetry(constraint, allowed):
    document = {"tool": {"poetry": {"dependencies": {"jax": constraint}}}}
    ((line,),) = jax_requirements(document)
    bounds = SpecifierSet(line.removeprefix("jax"))
    assert "".join("01"[version in bounds] for version in VERSIONS) == allowed
