"""JXR604 with flax as the judge: `run` raises an AttributeError where the rule speaks."""

import textwrap

import numpy as np
import pytest

from jaxresid.linter import lint_source
from jaxresid.settings.config import Options, load

pytestmark = pytest.mark.integration

HEAD = """
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp


def sine(x):
    return jnp.sin(x)


def scaled(scale, x):
    return scale * x


def weighted(params, x):
    return params["w"] * x


def of_module(mdl, x):
    return mdl(x)


def inside(fun):
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return fun(self, x)

    return Model()


def apply(model, x):
    return model.init_with_output(jax.random.key(0), x)[0]


AXES = dict(variable_axes={"params": 0}, split_rngs={"params": True})
"""
CASES = {
    "outside": "nn.remat(sine)(x)",
    "inside": "apply(inside(lambda self, x: nn.remat(sine)(x)), x)",
    "of jax": "nn.checkpoint(jnp.tanh)(x)",
    "of linen": "nn.remat(nn.softmax)(x)",
    "partial": "nn.remat(partial(scaled, 2.0))(x)",
    "partial by keyword": "nn.remat(partial(weighted, x=x))({'w': 1.0})",
    "jit inside": "nn.remat(jax.jit(sine))(x)",
    "parameters": "nn.remat(weighted)({'w': 1.0}, x)",
    "jit": "nn.jit(sine)(x)",
    "vmap": "nn.vmap(sine, **AXES)(x)",
    "scan": "nn.scan(lambda c, _: (jnp.sin(c), None), length=2, **AXES)(x, None)",
    "annotated": "nn.remat(annotated)(x, 2)",
    "of a module": "apply(inside(lambda self, x: nn.remat(of_module)(nn.Dense(3), x)), x)",
    "of the module": "apply(inside(lambda self, x: nn.remat(lambda m, x: 2 * x)(self, x)), x)",
    "of a lambda of the module": (
        "apply(inside(lambda self, x: nn.jit(lambda mdl, x: nn.Dense(3)(x))(self, x)), x)"
    ),
    "of a class": "apply(inside(lambda self, x: nn.remat(nn.Dense)(3)(x)), x)",
    "jax's own": "jax.checkpoint(sine)(x) + jax.jit(sine)(x)",
    "by its name": "nn.remat(lambda x: helper(x, 2))(x)",
    "partial of jax": "nn.remat(partial(jnp.multiply, 2.0))(x)",
    "made elsewhere": "apply(inside(lambda self, x: nn.remat(called)(make(), x)), x)",
    "bound before the module": (
        "apply(inside(lambda self, x: nn.remat(partial(after, 2.0))(make(), x)), x)"
    ),
    "one of two": "apply(inside(lambda self, x: nn.remat(either)(self, x)), x)",
}
DEFINED = """

def annotated(x: jax.Array, n):
    return helper(x, n)


def helper(x, n):
    return x


def make():
    return nn.Dense(3)


def called(h, x):
    return h(x)


def after(scale, h, x):
    return scale * h(x)


def either(h, x):
    return helper(h, x) and x


def run(x):
    return {}


checkpointed = jax.checkpoint(sine)  # the linter reads only files that have one
"""


@pytest.mark.parametrize("case", CASES)
def test_it_speaks_where_flax_raises(case, tmp_path):
    pytest.importorskip("flax")
    source = HEAD + textwrap.dedent(DEFINED).format(CASES[case])
    namespace = {"__name__": "example"}
    exec(compile(source, "<example>", "exec"), namespace)
    config = load(tmp_path, Options(select=("JXR604",)), isolated=True)
    found = lint_source(source, "model.py", config=config)
    x = np.ones((2, 3), np.float32)
    try:
        namespace["run"](x)
    except AttributeError as error:
        raised = str(error)
    else:
        raised = ""
    assert ("_state" in raised) == bool(raised) == bool(found), (raised, found)
