"""What arguments become: differentiated, traced, static; their paths; constants."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from small import f32, i32, kept, only, paths

import jaxresid
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject


def avals(variables):
    """Return the dtype, the shape and whether it is weakly typed of each variable."""
    return [(str(v.aval.dtype), v.aval.shape, bool(v.aval.weak_type)) for v in variables]


def traced(fun, *args, **kwargs):
    return subject(Question(fun, args, kwargs))


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

    def test_a_python_number_of_a_state_is_traced_as_by_jit(self):
        class State(NamedTuple):
            step: int
            w: object

        def update(state, rate, x):
            w = state.w - rate["base"] * state.step**-0.5 * x
            return State(state.step + 1, w), rate["on"]

        args = State(0, f32(3)), {"base": 0.1, "on": True}, f32(3)
        jaxpr = traced(update, *args).trace.jaxpr
        jitted = jax.jit(update).trace(*args).jaxpr.jaxpr
        assert sorted(avals(jaxpr.invars)) == sorted(avals(jitted.invars))
        assert avals(jaxpr.outvars) == avals(jitted.outvars)

    def test_a_python_number_that_is_an_argument_of_a_program_is_traced(self):
        def update(w, step):
            return w * step**-0.5, step + 1

        made = traced(update, f32(3), 0)
        assert avals(made.trace.jaxpr.invars) == [("float32", (3,), False), ("int32", (), True)]
        assert made.warnings == ()

    def test_a_loss_may_look_at_the_number_that_it_is_called_with(self):
        def loss(x, n, *, train):
            return jnp.sum(x**n) if train and n else jnp.sum(x)

        made = traced(loss, f32(3), 3, train=True)
        assert made.warnings == ()
        assert [made.trace.arguments.paths[i] for i in made.trace.arguments.dynamic] == ["x"]

    def test_a_number_in_a_tree_is_traced_in_a_loss_too(self):
        def loss(x, state):
            return jnp.sum(x) * state["step"] ** -0.5

        made = traced(loss, f32(3), {"step": 0})
        assert made.trace.inputs == ("x", "state['step']")
        assert made.warnings == ()

    def test_only_the_numbers_whose_value_is_needed_are_held(self):
        def update(state, x):
            for _ in range(state["layers"]):
                x = jnp.sin(x) * (2 if state["train"] else 1)
            return x * state["step"] ** -0.5, state["step"] + 1

        state = {"layers": 3, "step": 0, "train": True}
        made = traced(update, state, f32(3))
        held = "kept static, as the function needs the value: state['layers'], state['train']"
        assert made.warnings == (held,)
        assert [made.trace.arguments.roles[i] for i in range(3)] == ["static", "traced", "static"]

    def test_a_number_that_makes_a_shape_is_held(self):
        def update(x, n):
            return jnp.zeros(n) + x, {1: x}[n // 4]

        made = traced(update, f32(1), 4)
        assert made.warnings == ("kept static, as the function needs the value: n",)

    def test_an_error_that_no_number_explains_is_shown_as_it_is(self):
        def update(x, n):
            raise TypeError("no such thing")

        with pytest.raises(jaxresid.JaxresidError, match="TypeError: no such thing"):
            traced(update, f32(1), 4)

    @pytest.mark.parametrize("static", [{"static_argnums": 1}, {"static_argnames": "n"}])
    def test_static_arguments_of_a_jitted_function_stay_static(self, static):
        def update(x, n, scale=1):
            return x[:n] * scale, {4: x}[n]

        made = traced(jax.jit(update, **static), f32(8), 4, 2)
        assert avals(made.trace.jaxpr.invars) == [("float32", (8,), False), ("int32", (), True)]
        assert made.warnings == ()
        bound = functools.partial(jax.jit(update, **static), jnp.ones(8))
        made = traced(bound, 4, f32())
        assert made.warnings == ()

    def test_settings_of_an_equinox_module_stay_static(self):
        eqx = pytest.importorskip("equinox")

        class Layer(eqx.Module):
            w: object
            count: int

        def update(layer, state):
            return [layer.w] * layer.count, state["step"] ** -0.5

        made = traced(update, Layer(f32(3), 2), {"step": 0})
        assert made.warnings == ()
        jitted = traced(eqx.filter_jit(update), Layer(f32(3), 2), {"step": 1})
        assert avals(jitted.trace.jaxpr.invars) == [("float32", (3,), False)]

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
