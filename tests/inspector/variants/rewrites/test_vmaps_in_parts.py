"""Vmaps in parts and Jacobians by the other mode: the same values as written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxresid import jax_compat

X = jnp.sin(jnp.arange(84.0).reshape(3, 7, 4))
W = jnp.cos(jnp.arange(16.0).reshape(4, 4))


def network(w, x):
    return jnp.sum(jax.nn.relu(jnp.tanh(x @ w) @ w)), x.T


@jax.vmap
def decorated(x):
    return jnp.outer(x[0], x[1])


def two(x):
    return jnp.tanh(x @ x.T), {"first": x[0] ** 2, "sum": x.sum()}


def with_aux(tree):
    return (tree["a"] * tree["b"].sum(0), tree["b"].T @ tree["b"]), tree["a"].sum()


def scaled(pair, tree, by):
    return tree["a"] * pair[0].sum() * by


TREE = {"a": X[0, 0], "b": X[1]}
MAPPED = {
    "axes": lambda: jax.vmap(network, (None, 1), (0, -1))(W, X),
    "decorated": lambda: decorated(X[..., :2, :]),
    "not mapped": lambda: jax.vmap(lambda x, y: (x * y, y), (0, None), (-1, None))(X[0], X[1, 0]),
    "keys": lambda: jax.vmap(jax.random.normal)(jax.random.split(jax.random.key(0), 6)),
    "in a gradient": lambda: jax.grad(lambda w: jax.vmap(lambda x: network(w, x)[0])(X).sum())(W),
    "hessian": lambda: jax.hessian(lambda x: jnp.sum(jnp.tanh(x @ W) ** 3))(X[0]),
    "jacfwd": lambda: jax.jacfwd(two)(X[0]),
    "jacrev": lambda: jax.jacrev(with_aux, has_aux=True)(TREE),
}
JACOBIANS = {
    "jacrev": lambda: jax.jacrev(two)(X[0]),
    "jacfwd": lambda: jax.jacfwd(two)(X[0]),
    "jacrev with aux": lambda: jax.jacrev(with_aux, has_aux=True)(TREE),
    "jacfwd with aux": lambda: jax.jacfwd(with_aux, has_aux=True)(TREE),
    "jacrev of two": lambda: jax.jacrev(scaled, argnums=(0, 1))((X[0],), TREE, 2.0),
    "jacfwd of two": lambda: jax.jacfwd(scaled, argnums=(0, 1))((X[0],), TREE, 2.0),
    "hessian": lambda: jax.hessian(lambda x: jnp.sum(jnp.tanh(x) ** 3))(X[0]),
}


def traced_anew(fun):
    def run():  # of which JAX keeps no trace
        return fun()

    return jax.jit(run)()


def assert_alike(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.integration
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", MAPPED)
def test_parts_compute_the_same(name, count):
    expected, sizes = MAPPED[name](), []

    def in_parts(call, operands):
        if call.size <= count:
            return call.as_it_is(operands)
        sizes.append(call.size)
        return call.in_parts(count, operands)

    with jax_compat.replacing_vmap_calls(in_parts):
        got = traced_anew(MAPPED[name])
    assert sizes
    assert_alike(got, expected)


def calls_in(fun):
    calls = []

    def note(call, operands):
        calls.append(call)
        return call.as_it_is(operands)

    with jax_compat.replacing_vmap_calls(note):
        jax.make_jaxpr(fun)(X[0])
    return [(call.size, call.caller, call.function, call.is_divisible) for call in calls]


def test_what_is_known_of_a_call():
    def row(x):
        return x / jax.lax.psum(x, "rows")

    assert calls_in(jax.vmap(row, axis_name="rows")) == [(7, "vmap", "row", False)]
    assert calls_in(jax.vmap(jnp.sum))[0] == (7, "vmap", "sum", True)
    assert calls_in(lambda x: jax.jacrev(jnp.sin)(x[0]))[0][:2] == (4, "jacrev")
    assert calls_in(jax.jacfwd(jnp.sin))[0][:2] == (28, "jacfwd")
    parts = calls_in(lambda x: jax.lax.map(jnp.sum, x, batch_size=3))
    assert [call[:2] for call in parts] == [(3, "map"), (1, "map")]


@pytest.mark.integration
@pytest.mark.parametrize("name", JACOBIANS)
def test_the_other_mode_computes_the_same(name):
    expected, transforms = JACOBIANS[name](), []

    def other(call):
        transforms.append((call.transform, call.is_real))
        return call.by_other_mode

    with jax_compat.replacing_jacobian_calls(other):
        got = traced_anew(JACOBIANS[name])
    assert {"jacfwd" if name == "hessian" else name[:6]} <= {each for each, _ in transforms}
    assert all(is_real for _, is_real in transforms)
    assert_alike(got, expected)
