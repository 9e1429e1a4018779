"""What the rules take for one layer that keeps its input anyway (`patterns/layers.py`)."""

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
