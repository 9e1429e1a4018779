"""Keywords in partials of checkpoints, and what may be called in their place (JXR501, JXR505)."""

import textwrap

import pytest

from jaxresid.linter import lint_source
from jaxresid.settings.config import Options, load

STACK = """
import functools
from functools import partial

import equinox as eqx
import jax
import pytest


def plain(f):
    return f


def stack(f, x, train, remat, other, version):
    {choice}
    return wrap(f)(x, train)
"""
IGNORED = 'partial(jax.checkpoint, static_argnames="train")'


@pytest.fixture
def codes(tmp_path):
    config = load(tmp_path, Options(select=("JXR501",)), isolated=True)

    def said(choice):
        indented = textwrap.indent(textwrap.dedent(choice), "    ").strip()
        source = STACK.format(choice=indented)
        return [v.code for v in lint_source(source, "stack.py", config=config)]

    return said


@pytest.mark.parametrize(
    "choice",
    [
        f"wrap = {IGNORED} if remat else plain",
        f"wrap = plain\nif remat:\n    wrap = {IGNORED}",
        f"wrap = {IGNORED}\nif not remat:\n    wrap = lambda f: f",
        'wrap = partial(partial(jax.remat, static_argnames="train")) if remat else plain',
        'wrap = functools.partial(eqx.filter_checkpoint, static_argnames="a") if remat else plain',
    ],
)
def test_a_partial_that_a_flag_replaces(choice, codes):
    assert codes(choice) == ["JXR501"]


@pytest.mark.parametrize(
    "choice",
    [
        # Positions instead of names.
        "wrap = partial(jax.checkpoint, static_argnums=(1,)) if remat else plain",
        # No checkpoint at all, or one of two functions.
        'wrap = partial(jax.jit, static_argnames="train") if remat else plain',
        'wrap = partial(other, static_argnames="train") if remat else plain',
        'wrap = partial(jax.checkpoint if remat else jax.jit, static_argnames="train")',
        'wrap = partial(other or jax.checkpoint, static_argnames="train") if remat else plain',
        # The other arm's own keyword, where the checkpoint has none.
        'wrap = jax.checkpoint if remat else partial(jax.jit, static_argnames="train")',
        # A call of one of two functions is no partial of a checkpoint: the other may take it.
        'inner = jax.checkpoint if remat else jax.jit\nwrap = inner(f, static_argnames="train")',
        'wrap = (jax.checkpoint if remat else other)(f, static_argnames="train")',
        "inner = jax.checkpoint if remat else other\n"
        'wrap = inner(jax.checkpoint, static_argnames="train")',
        # No names.
        "wrap = partial(jax.checkpoint, static_argnames=()) if remat else plain",
        # An error is expected, or ruled out.
        f"with pytest.raises(TypeError):\n    wrap = {IGNORED} if remat else plain",
        f"try:\n    wrap = {IGNORED}\nexcept TypeError:\n    wrap = plain",
        f"if version >= (0, 13):\n    wrap = {IGNORED}\nelse:\n    wrap = plain",
    ],
)
def test_what_is_no_certain_checkpoint(choice, codes):
    assert codes(choice) == []


def test_a_keyword_is_reported_once(codes):
    assert codes(f"wrap = {IGNORED} if remat else plain\ng = wrap(f)\nh = wrap(g)") == ["JXR501"]
