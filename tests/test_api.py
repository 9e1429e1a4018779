"""`jaxresid.inspect` as a library and in a notebook."""

import gc
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxresid
from fixtures.inspect import gpt


def loss(params, x, *, scale=1.0):
    return (jnp.sin(x @ params["w"]) * scale).sum()


PARAMS, X = {"w": jnp.ones((4, 4))}, np.ones((2, 4), "float32")


def test_arrays_and_shapes_give_the_same():
    abstract = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (PARAMS, X))
    assert jaxresid.inspect(loss)(PARAMS, X) == jaxresid.inspect(loss)(*abstract)


def test_keywords_are_the_functions():
    report = jaxresid.inspect(loss)(PARAMS, X, scale=2.0)
    assert report.target.differentiated == ("params['w']", "x", "scale")


def test_one_argnum():
    assert jaxresid.inspect(loss, argnums=1)(PARAMS, X).target.differentiated == ("x",)


def test_print(capsys):
    jaxresid.inspect(loss)(PARAMS, X).print()
    out = capsys.readouterr().out
    assert "kept for the backward pass" in out
    assert "return (jnp.sin(x @ params" in out


@pytest.mark.parametrize("group_by", ["line", "primitive", None])
def test_print_groups(capsys, group_by):
    jaxresid.inspect(loss)(PARAMS, X).print(view="residuals", group_by=group_by, all=True)
    assert "residuals" in capsys.readouterr().out


def test_print_refuses_an_unknown_group():
    with pytest.raises(ValueError, match=r"group_by must be one of line, .* not 'colour'"):
        jaxresid.inspect(loss)(PARAMS, X).print(group_by="colour", verbose=True)


@pytest.mark.parametrize("rows", [{"group_by": "line"}, {"top": 3}, {"all": True}])
def test_print_chooses_rows_only_where_they_are_shown(capsys, rows):
    report = jaxresid.inspect(loss)(PARAMS, X)
    with pytest.raises(ValueError, match=r'add view="residuals" or verbose=True'):
        report.print(**rows)
    with pytest.raises(ValueError, match=r"view must be one of peak, residuals, .* not 'rows'"):
        report.print(view="rows")
    report.print(verbose=True, **rows)
    assert "live at the peak" in capsys.readouterr().out


def test_json_and_html():
    report = jaxresid.inspect(loss)(PARAMS, X)
    value = json.loads(report.to_json())
    assert value["totals"]["computed_nbytes"] == report.totals.computed_nbytes
    assert "<table>" in report._repr_html_()


def test_errors_are_exceptions_with_their_cause():
    with pytest.raises(jaxresid.JaxresidError, match="fails to trace: TypeError") as caught:
        jaxresid.inspect(lambda x: jnp.ones((3, 4)) @ x)(X)
    assert isinstance(caught.value.__cause__, TypeError)


def test_errors_name_no_line_of_the_caller():
    with pytest.raises(jaxresid.JaxresidError, match="fails to trace: TypeError") as caught:
        jaxresid.inspect(jnp.matmul)(jnp.ones((3, 4)), jnp.ones(5))
    assert "test_api.py" not in str(caught.value)


def test_a_jitted_function_a_method_and_a_partial():
    import functools

    class Model:
        w = jnp.ones((4, 4))

        def loss(self, x):
            return loss({"w": self.w}, x)

    for fun, args in [
        (jax.jit(loss), (PARAMS, X)),
        (Model().loss, (X,)),
        (functools.partial(loss, PARAMS), (X,)),
    ]:
        report = jaxresid.inspect(fun)(*args)
        assert [r.origin.primitive for r in report.residuals if r.origin.kind == "computed"] == [
            "cos"
        ]


@pytest.mark.integration
def test_terabytes_in_seconds():
    """80 layers that keep tens of TiB: nothing is computed, nothing is allocated."""
    gc.collect()
    before = sum(a.nbytes for a in jax.live_arrays())
    start = time.perf_counter()
    report = jaxresid.inspect(gpt.big)(*gpt.big_inputs())
    assert time.perf_counter() - start < 30
    assert report.totals.computed_nbytes > 10 * 1024**4
    assert sum(a.nbytes for a in jax.live_arrays()) <= before


def test_nothing_runs():
    """A callback in the traced function is never called."""
    called = []

    def fun(x):
        y = jax.pure_callback(lambda v: called.append(v) or v, X, jax.lax.stop_gradient(x))
        return (jnp.sin(x) * y).sum()

    assert jaxresid.inspect(fun)(X).totals.computed_nbytes > 0
    assert called == []


def test_arguments_in_host_memory(jax_version):
    if jax_version < (0, 7, 2):
        pytest.skip("avals know their memory since 0.7.2")
    device = jax.devices()[0]

    def on(memory):
        return jax.sharding.SingleDeviceSharding(device, memory_kind=memory)

    @jax.checkpoint
    def layer(w):
        return jnp.sin(jax.device_put(w, on("device")))

    report = jaxresid.inspect(lambda w: layer(w).sum())(jax.device_put(X, on("pinned_host")))
    (kept,) = report.residuals
    assert (kept.origin.kind, kept.aval.memory) == ("argument", "host")


def test_names():
    assert set(jaxresid.__all__) <= set(dir(jaxresid))
    for name in jaxresid.__all__:
        assert getattr(jaxresid, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        jaxresid.nosuch  # noqa: B018
