"""How much work the rules do as a file grows, in calls of functions: seconds vary."""

import sys
from pathlib import Path

import pytest

from jaxresid.linter import lint_source
from jaxresid.settings.config import Config

_INNER_CHECKPOINT = """
import jax


def layer(x):
    return jax.numpy.sin(x)


def inner(x):
    return jax.checkpoint(layer, prevent_cse=False)(x)
"""
_CHECKPOINTED_CALLER = """

def caller{0}(x):
    return inner(x)


outer{0} = jax.checkpoint(caller{0})
"""

_HUB = """
import jax


@jax.checkpoint
def layer(x):
    return jax.numpy.sin(x)


def hub(x):
    return layer(x) + 1
"""
_DIFFERENTIATED_CALLER = """

def loss{0}(x):
    return hub(x)


gradient{0} = jax.grad(loss{0})
"""


def _ncalls(source, module, config):
    """Return how many calls the functions of a module of the linter make to lint some source."""
    count = 0

    def counted(frame, event, argument):
        nonlocal count
        caller = frame.f_back if event == "call" else frame
        count += event in {"call", "c_call"} and caller.f_code.co_filename.endswith(module)

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        lint_source(source, config=config)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.integration
@pytest.mark.parametrize(
    ("module", "head", "part"),
    [
        ("patterns/cse.py", _INNER_CHECKPOINT, _CHECKPOINTED_CALLER),
        ("resolve/context.py", _HUB, _DIFFERENTIATED_CALLER),
    ],
)
def test_work_is_linear(tmp_path, module, head, part):
    config = Config(tmp_path)
    some, more = (
        _ncalls(head + "".join(map(part.format, range(n))), str(Path(module)), config)
        for n in (8, 16)
    )
    assert 0 < some < more < 2.1 * some
