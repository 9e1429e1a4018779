"""Rows of a table in place of one-hots that are multiplied by it: the same values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from peaks_by_xla import cases, peaks

import jaxresid
from jaxresid import jax_compat
from jaxresid.inspector.findings.one_hots import one_hot_matmuls, with_rows_taken

V, D = 10, 6
TABLE = jnp.sin(jnp.arange(V * D * 1.0)).reshape(V, D)
IDS = jnp.arange(6).reshape(2, 3) * 7 % V


def one_hot(ids, **options):
    return jax.nn.one_hot(ids, V, **options)


FOUND = {
    "a matmul": lambda t, i: one_hot(i) @ t,
    "the table first": lambda t, i: jnp.einsum("vd,btv->dbt", t, one_hot(i)),
    "a table of columns": lambda t, i: jnp.einsum("dv,btv->btd", t.T, one_hot(i)),
    "columns, first": lambda t, i: jnp.einsum("dv,btv->dbt", t.T, one_hot(i)),
    "another axis": lambda t, i: jnp.einsum("vbt,vd->btd", one_hot(i, axis=0), t),
    "compared in a loop": lambda t, i: jax.lax.map(
        lambda j: (j[:, None] == jnp.arange(V)).astype(jnp.bfloat16).astype(jnp.float32) @ t, i
    ),
    "in a vmap": lambda t, i: jax.vmap(lambda j: one_hot(j) @ t)(i),
    "in a jit": jax.jit(lambda t, i: jnp.sin(one_hot(i) @ t)),
}
OTHERS = {
    "with the indices of its own batch": lambda t, i: jnp.einsum("btv,btd->bvd", one_hot(i), t[i]),
    "compared with something else": lambda t, i: (i[..., None] == 2 * jnp.arange(V)) * 1.0 @ t,
    "a table for each of a batch": lambda t, i: jnp.einsum(
        "btv,bvd->btd", one_hot(i), jnp.stack([t, 2 * t])
    ),
    "counted along another axis": lambda t, i: (
        (i[..., None] == jax.lax.broadcasted_iota(jnp.int32, (2, 3, V), 1)).astype(jnp.float32) @ t
    ),
    "summed up": lambda t, i: one_hot(i).sum((0, 1)) @ t,
    "contracted along its indices": lambda t, i: jnp.einsum("btv,td->bvd", one_hot(i), t[:3]),
}


def found_in(fun):
    closed = jax.make_jaxpr(fun)(TABLE, IDS)
    return closed, list(one_hot_matmuls(jax_compat.open_jaxpr(closed)))


@pytest.mark.integration
@pytest.mark.parametrize("name", FOUND)
def test_rows_are_the_same(name):
    fun = FOUND[name]
    closed, found = found_in(fun)
    assert [each.rows for each in found] == [V]
    made = with_rows_taken(jax_compat.open_jaxpr(closed), found)
    assert list(one_hot_matmuls(made)) == []
    rewritten = jax_compat.as_function(jax_compat.with_jaxpr(closed, made))
    expected = jax.value_and_grad(lambda t: jnp.sum(jnp.cos(fun(t, IDS))))(TABLE)
    got = jax.value_and_grad(lambda t: jnp.sum(jnp.cos(rewritten(t, IDS)[0])))(TABLE)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(got[1], expected[1], atol=1e-5)
    np.testing.assert_allclose(rewritten(TABLE, IDS)[0], fun(TABLE, IDS), atol=1e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_other_matmuls_stay(name):
    assert found_in(OTHERS[name])[1] == []


def embedded(written_out):
    def loss(table, weights, ids):
        rows = table[ids] if written_out else jax.nn.one_hot(ids, table.shape[0]) @ table
        return jnp.mean(jnp.tanh(rows @ weights) ** 2)

    table = jax.ShapeDtypeStruct((32768, 512), jnp.float32)
    weights = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    return loss, (table, weights, jax.ShapeDtypeStruct((8192,), jnp.int32))


def evaluated(written_out):
    def embed(table, ids):
        rows = table[ids] if written_out else jax.nn.one_hot(ids, table.shape[0]) @ table
        return jnp.tanh(rows)

    (table, _, ids) = embedded(written_out)[1]
    return embed, (table, ids)


GATE = [(embedded, "gpu:h100"), (evaluated, "gpu:h100")]
ON_GPUS = [case for case in cases([embedded, evaluated], GATE) if "gpu" in case.values[1]]


@pytest.mark.parametrize(("program", "on"), ON_GPUS)
def test_rows_lower_xla_s_peak(program, on):
    made = peaks(program, "JXR847", on, by_hand=bool)
    assert made.fall > 0.6
    assert made.estimated_fall > 0.6


def test_a_tpu_makes_the_one_hot_in_the_matmul():
    fun, args = evaluated(False)
    assert "JXR847" not in {v.code for v in jaxresid.check(fun, on="tpu:v5e")(*args)}
