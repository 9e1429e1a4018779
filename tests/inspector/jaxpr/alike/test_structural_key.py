"""Which bodies of calls are one object, and that figures do not change by it."""

import jax
import jax.numpy as jnp
import pytest

from jaxresid import jax_compat
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.jaxpr.alike import structural_key as alike
from jaxresid.inspector.report import subject
from jaxresid.inspector.variants.choices import Choice, everywhere


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def layer(x, w):
    return x + jnp.tanh(x @ w)


def scaled(x, w, scale):
    return x + scale * jnp.tanh(x @ w)


def powered(x, w, power):
    return x + jnp.tanh(x @ w) ** power


def keyed(fun, *args):
    return alike.key(jax_compat.open_jaxpr(jax.make_jaxpr(fun)(*args)))


def twice(fun, one, other):
    """Keys of a function called on one line with these as its last argument."""
    x, w = f32(8, 4), f32(4, 4)
    return [keyed(lambda x, w, last=last: fun(x, w, last), x, w) for last in (one, other)]


@pytest.mark.parametrize("fun", [scaled, powered])
def test_a_literal_or_a_param_tells_jaxprs_apart(fun):
    one, same = twice(fun, 2, 2)
    assert one == same
    one, other = twice(fun, 2, 3)
    assert one != other


def test_shapes_and_lines_tell_jaxprs_apart():
    one, other = (keyed(layer, f32(n, 4), f32(4, 4)) for n in (8, 16))
    assert one != other
    one = keyed(lambda x: x * x, f32(8))
    other = keyed(lambda x: x * x, f32(8))
    assert one != other


def test_what_is_read_tells_jaxprs_apart():
    args = f32(4, 4), f32(4, 4)
    one, other = (keyed(lambda a, b, f=f: a @ b if f else b @ a, *args) for f in (True, False))
    assert one != other


def test_layers_in_a_loop_have_one_body():
    def loss(ws, x):
        for w in ws:
            x = layer(x, w)
        return jnp.sum(layer(x, ws[0]) ** 2)

    found = subject(Question(loss, ([f32(64, 64)] * 4, f32(32, 64)), mode="loss"))
    variants = found.variants()
    place = next(p for p in variants.places() if p.kind == "call" and p.calls == 4)
    made = variants.trace({place: everywhere(place, Choice(None))})
    bodies = [
        jax_compat.open_jaxpr(jax_compat.params(eqn)["jaxpr"])
        for eqn in jax_compat.open_jaxpr(made.primal().jaxpr).eqns
        if jax_compat.primitive_name(eqn) == "remat"
    ]
    assert len(bodies) == 4
    assert len({id(body) for body in bodies}) == 1
