"""How values are split over a mesh where nothing says so, against XLA's own propagation."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxresid import jax_compat
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.program.build import value_and_gradients
from jaxresid.inspector.report import subject

MESH = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
B, T, D, F, V, L = 16, 64, 32, 256, 512, 4


def array(shape, *split, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, P(*split)))


def layer(x, w):
    up, down = w
    return x + jnp.tanh(jnp.sin(x @ up) @ down)


def scanned(x, weights):
    x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)
    return x


def unrolled(x, weights):
    ups, downs = weights
    for i in range(L):
        x = layer(x, (ups[i], downs[i]))
    return x


def model(run):
    def loss(params, tokens):
        x = params["table"][tokens]
        return jnp.sum(jnp.sin(run(x, params["layers"]) * params["gain"]))

    return loss


def params(up, down, table, gain=()):
    return {
        "table": array((V, D), *table),
        "layers": (array((L, D, F), None, *up), array((L, F, D), None, *down)),
        "gain": array((D,), *gain),
    }


TOKENS = array((B, T), "data", dtype=jnp.int32)
COLUMNS, ROWS = (None, "data"), ("data",)


def gains(gain, x):
    """What is repeated along the batch says last how that is split."""
    return jnp.sum(jnp.sin(jnp.tanh(x * gain) @ jnp.ones((D, D))))


def dims_of_one(tokens_like, x):
    """A view by a broadcast, which splits as early as a view."""
    return jnp.sum(jnp.sin(jnp.cos(x)[:, None, :] * tokens_like[None]) ** 2)


PROGRAMS = {
    # A loop's body says how it is split before it is told of what the loop is handed.
    "columns in a scan": (model(scanned), (params(COLUMNS, ROWS, ROWS), TOKENS)),
    "columns": (model(unrolled), (params(COLUMNS, ROWS, ROWS), TOKENS)),
    "rows in a scan": (model(scanned), (params(ROWS, COLUMNS, COLUMNS), TOKENS)),
    "rows": (model(unrolled), (params(ROWS, COLUMNS, COLUMNS), TOKENS)),
    "split gain": (model(scanned), (params(ROWS, ROWS, ROWS, ROWS), TOKENS)),
    "gains": (gains, (array((D,), "data"), array((B * T, D), "data"))),
    "dims of one": (dims_of_one, (array((T, D), None, "data"), array((B, D), "data"))),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", PROGRAMS)
def test_residuals_are_split_as_xla_splits_them(name):
    fun, args = PROGRAMS[name]
    question = Question(
        fun, args, on="gpu:h100:8", argnums=len(args) - 1 if name == "dims of one" else None
    )
    found = subject(question).split_by_compiler(None)
    trace = found.trace
    assert trace.pieces is not None
    mine = value_and_gradients(replace(trace, pieces=None)).values
    told = {
        tuple(v.aval.shape): (mine[v].shape, piece)
        for v, piece in zip(trace.kept, trace.pieces, strict=True)
        if not jax_compat.is_literal(v) and v.aval.dtype == jnp.float32
    }
    assert {shape: ours for shape, (ours, _) in told.items()} == {
        shape: theirs for shape, (_, theirs) in told.items()
    }


def shapes(block):
    """What each op makes on one device, with those of bodies."""
    return [
        (op.name, [v.shape for v in op.results], [shapes(body) for body in op.bodies])
        for op in block.ops
    ]


@pytest.mark.integration
@pytest.mark.parametrize("name", ["columns in a scan", "rows in a scan", "split gain"])
def test_what_xla_says_too_changes_nothing(name):
    """What is pinned spreads first: the backward pass would be split otherwise."""
    fun, args = PROGRAMS[name]
    trace = subject(Question(fun, args, on="gpu:h100:8")).split_by_compiler(None).trace
    bare = value_and_gradients(replace(trace, pieces=None))
    assert shapes(value_and_gradients(trace).block) == shapes(bare.block)
