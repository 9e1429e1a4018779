"""The name of what a checkpoint wraps, where only JAX's debug info tells."""

import jax
import jax.numpy as jnp
import pytest

from jaxresid import jax_compat
from jaxresid.inspector.checkpoints.sites import body
from jaxresid.inspector.jaxpr.frames import Frames
from tests.small import f32


class Dense:
    def call(self, x):
        return jnp.sin(x)

    class Inner:
        def attend(self, x):
            return jnp.cos(x)


def plain(x):
    return jnp.tanh(x)


def local():
    def inner(x):
        return jnp.exp(x)

    return inner


@pytest.mark.parametrize(
    ("fun", "name", "function"),
    [
        (Dense().call, "Dense", "Dense.call"),
        (Dense.Inner().attend, "Inner.attend", "Dense.Inner.attend"),
        (plain, "plain", "plain"),
        (local(), "inner", "local.inner"),
    ],
)
def test_without_tracebacks_the_source_says_whose_method_it_is(fun, name, function):
    jaxpr = jax_compat.open_jaxpr(jax.make_jaxpr(fun)(f32(3)))
    found = body(jaxpr, Frames(), is_stamped=True)
    assert found.name == name
    assert found.defined is not None
    assert found.defined.function == function
    assert found.defined.code.startswith(f"def {fun.__name__}(")
