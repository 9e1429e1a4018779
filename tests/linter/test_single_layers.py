"""What the rules take for one layer that keeps its input anyway (`patterns/layers.py`)."""

import os
import subprocess
import sys
import textwrap

import pytest

from jaxresid.linter import lint_source
from jaxresid.settings.config import Options, load

NET = """
from flax import nnx


class Mine(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.linear = nnx.Linear(8, 8, rngs=rngs)

    def __call__(self, x):
        return self.linear(nnx.gelu(self.norm(x)))


class Net(nnx.Module):
    def __init__(self, rngs, small):
        self.layer = {layer}

    def __call__(self, x):
        return nnx.remat(self.layer)(x)
"""


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        ("nnx.Linear(8, 8, rngs=rngs)", ["JXR107"]),
        ("nnx.Linear(8, 8, rngs=rngs) if small else nnx.Conv(8, 8, (3,), rngs=rngs)", ["JXR107"]),
        # One of the two is more than one operation.
        ("nnx.Linear(8, 8, rngs=rngs) if small else nnx.LayerNorm(8, rngs=rngs)", []),
        ("nnx.Linear(8, 8, rngs=rngs) if small else Mine(rngs)", []),
        ("Mine(rngs) if small else nnx.Linear(8, 8, rngs=rngs)", []),
    ],
)
def test_a_choice_is_one_layer_where_both_are(layer, expected, tmp_path):
    config = load(tmp_path, Options(select=("JXR107",)), isolated=True)
    source = textwrap.dedent(NET.format(layer=layer))
    assert [v.code for v in lint_source(source, "net.py", config=config)] == expected


HANDED = """
import jax
from flax import nnx


class Net(nnx.Module):
    def __init__(self, rngs):
        self.mix = nnx.Linear(8, 8, rngs=rngs)
        self.filter = nnx.Conv(8, 8, (3,), rngs=rngs)

    def __call__(self, x):
        call = jax.checkpoint(lambda layer, x: layer(x))
        return call(self.filter, call(self.mix, x))
"""
CHOSEN = NET.format(
    layer="nnx.Linear(8, 8, rngs=rngs) if small else nnx.Conv(8, 8, (3,), rngs=rngs)"
)


@pytest.mark.parametrize(
    ("source", "named"), [(CHOSEN, "`Linear` or `Conv`"), (HANDED, "`Conv` or `Linear`")]
)
def test_all_layers_are_named_in_the_order_of_the_source(source, named):
    (found,) = lint_source(textwrap.dedent(source), "net.py")
    assert f"one {named} keeps its input" in found.message


@pytest.mark.integration
def test_the_message_is_the_same_whatever_strings_hash_to(tmp_path):
    (tmp_path / "net.py").write_text(textwrap.dedent(CHOSEN))
    command = [sys.executable, "-m", "jaxresid", "lint", "--isolated", "net.py"]
    printed = {
        subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        for seed in range(6)
    }
    assert len(printed) == 1
    assert "JXR107" in printed.pop()
