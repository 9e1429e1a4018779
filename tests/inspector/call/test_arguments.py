"""What arguments become: differentiated, traced, static; their paths; constants."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from small import f32, i32, kept, only, paths

import jaxresid


class TestArguments:
    def test_keyword(self):
        def loss(x, *, scale):
            return jnp.sum(x * scale)

        report = jaxresid.inspect(loss)(f32(3), scale=f32())
        assert paths(report) == ["scale", "x"]
        assert report.target.differentiated == ("x", "scale")

    @pytest.mark.parametrize(
        ("argnums", "keeps", "differentiated"),
        [(0, ["b"], ("a",)), (-1, ["a"], ("b",)), ((0, 1), ["a", "b"], ("a", "b"))],
    )
    def test_argnums(self, argnums, keeps, differentiated):
        def loss(a, b):
            return jnp.sum(a * b)

        report = jaxresid.inspect(loss, argnums=argnums)(f32(3), f32(3))
        assert paths(report) == keeps
        assert report.target.differentiated == differentiated

    def test_integers_are_traced_and_not_differentiated(self):
        def embed(table, ids):
            return jnp.sum(table[ids] ** 2)

        report = jaxresid.inspect(embed)(f32(5, 2), i32(3))
        assert report.target.differentiated == ("table",)
        (indices,) = (r for r in report.residuals if r.aval.dtype == "int32")
        assert (indices.aval.shape, indices.origin.kind) == ((3, 1), "computed")
        assert indices.origin.location.code == "return jnp.sum(table[ids] ** 2)"

    def test_python_float_is_differentiated(self):
        def loss(x, scale):
            return jnp.sum(jnp.sin(x) * scale)

        report = jaxresid.inspect(loss)(f32(3), 2.0)
        assert report.target.differentiated == ("x", "scale")
        # A weakly typed scalar: cast to the strong type that the product needs.
        (scale,) = (r for r in report.residuals if getattr(r.origin, "path", None) == "scale")
        assert (scale.aval.shape, scale.nbytes) == ((), 4)
        assert report.warnings == ()

    def test_python_float_used_as_a_number(self):
        def loss(x, power):
            return jnp.sum(x) if power > 1 else jnp.sum(x**2)

        report = jaxresid.inspect(loss)(f32(3), 0.5)
        assert report.target.differentiated == ("x",)
        assert report.warnings == ("kept static, as the function needs the value: power",)

    def test_pytrees_with_static_leaves(self):
        def apply(p):
            assert p["mode"] == "train"
            assert p["nothing"] is None
            return jnp.sum(p["act"](p["w"]) * p["layers"][1]["b"])

        p = {
            "w": f32(3),
            "act": jnp.sin,
            "mode": "train",
            "nothing": None,
            "layers": [None, {"b": f32(3)}],
        }
        report = jaxresid.inspect(apply)(p)
        assert report.target.differentiated == ("p['layers'][1]['b']", "p['w']")
        assert paths(report) == ["p['layers'][1]['b']"]

    def test_static_leaves_stay_with_concrete_arrays(self):
        def apply(x, n, flag):
            return jnp.sum(x**n) if flag else jnp.sum(x)

        r = only(apply, np.ones(3, np.float32), 3, True)
        assert r.origin.location.code.startswith("return jnp.sum(x**n)")

    @pytest.mark.parametrize("array", [np.arange(3, dtype=np.float32), jnp.arange(3.0)])
    def test_constant(self, array):
        def loss(x):
            return jnp.sum(x * array)

        report = jaxresid.inspect(loss)(f32(3))
        (r,) = report.residuals
        assert (r.origin.kind, r.nbytes) == ("constant", 12)
        assert report.totals.constants_nbytes == 12

    def test_literal(self):
        def loss(x):
            return jnp.sum(jnp.sin(x) * 2.5)

        report = jaxresid.inspect(loss)(f32(3))
        assert [r.origin.value for r in report.residuals if r.origin.kind == "literal"] == ["2.5"]
        t = report.totals
        assert (t.arguments_nbytes, t.computed_nbytes, t.host_nbytes, t.constants_nbytes) == (
            *(0, 12, 0, 0),
        )

    def test_typed_key(self):
        def dropped(x, key):
            return jnp.sum(jnp.sin(x * jax.random.bernoulli(key, 0.5, (3,))))

        key = jax.eval_shape(lambda: jax.random.key(0))
        report = jaxresid.inspect(jax.checkpoint(dropped))(f32(3), key)
        assert paths(report) == ["key", "x"]
        (r,) = (r for r in report.residuals if r.origin.path == "key")
        assert (r.aval.dtype, r.aval.shape, r.nbytes) == ("key<fry>", (), 8)
        assert report.target.differentiated == ("x",)

    def test_raw_key(self):
        def noisy(x, key):
            return jnp.sum(x * jax.random.normal(key, (3,)))

        r = only(noisy, f32(3), jax.ShapeDtypeStruct((2,), jnp.uint32))
        assert r.origin.location.code == "return jnp.sum(x * jax.random.normal(key, (3,)))"

    def test_partial(self):
        def loss(scale, x):
            return jnp.sum(jnp.sin(x) * scale)

        report = jaxresid.inspect(functools.partial(loss, 2.0))(f32(3))
        assert report.target.differentiated == ("x",)
        assert [r.origin.kind for r in report.residuals if r.nbytes > 4] == ["computed"]

    def test_complex(self):
        def loss(x):
            return jnp.abs(jnp.sum(x * x))

        report = jaxresid.inspect(loss)(jax.ShapeDtypeStruct((3,), jnp.complex64))
        assert paths(report) == ["x"]
        assert report.totals.arguments_nbytes == 24

    def test_integer_output(self):
        def loss(x):
            return jnp.sum(jnp.sin(x)), jnp.argmax(x)

        assert only(loss, f32(3)).origin.primitive == "cos"

    def test_while_on_a_counter(self):
        def loss(x, n):
            k = lax.while_loop(lambda i: i < n, lambda i: i + 1, 0)
            return jnp.sum(jnp.sin(x) * k)

        found = {r.origin.primitive: r for r in kept(loss, f32(3), i32())}
        assert set(found) == {"cos", "add"}
        assert found["add"].origin.within == ("while",)
        assert found["add"].nbytes == 4


def closes_over_a_tracer(W, x):
    @jax.checkpoint
    def body(x, W):
        @jax.custom_jvp
        def custom(c):
            return c + W @ c

        @custom.defjvp
        def jvp(primals, tangents):
            y = custom(*primals)
            return y, tangents[0] * jnp.cos(y)

        return custom(x)

    return body(x, W).sum()


def test_a_tracer_that_a_rule_closes_over():
    """With jax_remat3 the forward jaxpr has an invar in front of those of the arguments."""
    report = jaxresid.inspect(closes_over_a_tracer)(f32(3, 3), f32(3))
    assert set(paths(report)) <= {"W", "x"}
