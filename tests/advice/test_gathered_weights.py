"""JXR843: weights that each device gathers and keeps, and what the program takes if it does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from peaks_by_xla import passes_with_devices, peak_by_xla

import jaxresid
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.findings.gathered_weights import (
    gathered_again,
    gathered_weights_in,
    with_bodies_inlined,
)
from jaxresid.inspector.report import inspection

N, L, D, F, T = 8, 8, 128, 512, 1024
MESH = AbstractMesh((N,), ("data",), axis_types=(AxisType.Explicit,))


def array(shape, *split, mesh=MESH):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*split)))


def gathered(w):
    return jax.lax.all_gather(w, "data", axis=1, tiled=True)


def product(x, w, layer=None):
    return x @ gathered(w if layer is None else w[layer])


def again(x, w, layer=None):
    in_loop = layer is None
    return jax.checkpoint(lambda x, w: product(x, w, layer), prevent_cse=not in_loop)(x, w)


def total(x):
    return jax.lax.psum(jnp.sum(x.astype(jnp.float32) ** 2), "data")


def mapped(local, mesh=MESH):
    split = P(None, None, "data")
    specs = ((split, split), P("data"))
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)


def inputs(mesh=MESH, size=1):
    w = array((L, size * D, size * F), None, None, "data", mesh=mesh)
    v = array((L, size * F, size * D), None, None, "data", mesh=mesh)
    return (w, v), array((size * T, size * D), "data", mesh=mesh)


def found(fun, args, on="gpu:h100:8", **options):
    return [v for v in jaxresid.check(fun, on=on, **options)(*args) if v.code == "JXR843"]


# -- programs, each with what multiplies by the weights --------------------------------------------


def scanned(product):
    def local(ws, x):
        def layer(x, w):
            return x + product(jnp.tanh(product(x, w[0])), w[1]), None

        return total(jax.lax.scan(layer, x, ws)[0])

    return local


def unrolled(product):
    def local(ws, x):
        for i in range(L):
            x = x + product(jnp.tanh(product(x, ws[0], i)), ws[1], i)
        return total(x)

    return local


def nested(product):
    def local(ws, x):
        def layer(x, w):
            return x + product(jnp.tanh(product(x, w[0])), w[1]), None

        ws = jax.tree.map(lambda w: w.reshape(2, L // 2, *w.shape[1:]), ws)
        x, _ = jax.lax.scan(lambda x, w: (jax.lax.scan(layer, x, w)[0], None), x, ws)
        return total(x)

    return local


def as_step(fun):
    def step(ws, x):
        value, gradients = jax.value_and_grad(fun)(ws, x)
        return jax.tree.map(lambda w, g: w - g, ws, gradients), value

    return jax.jit(step, donate_argnums=0)


@pytest.mark.parametrize(
    "program", [scanned, pytest.param(unrolled, marks=pytest.mark.integration), nested]
)
@pytest.mark.parametrize("wrap", [lambda fun: fun, as_step], ids=["function", "step"])
def test_it_is_worth_what_gathering_again_is(program, wrap):
    (violation,) = found(wrap(mapped(program(product))), inputs())
    by_hand = wrap(mapped(program(again)))
    assert found(by_hand, inputs()) == []
    report = jaxresid.inspect(by_hand, on="gpu:h100:8")(*inputs())
    measured = violation.measured
    assert measured["peak_nbytes"] == pytest.approx(report.peak.nbytes, rel=0.02)
    assert measured["kept_nbytes"] == report.totals.computed_nbytes
    # A step reads the last of unrolled layers at once.
    assert measured["nbytes"] == pytest.approx(2 * 2 * L * D * F, rel=0.1)
    assert violation.span.row == gathered.__code__.co_firstlineno + 1


@pytest.mark.integration
def test_on_a_mesh_whose_axes_are_not_explicit():
    mesh = AbstractMesh((N,), ("data",), axis_types=(AxisType.Auto,))
    assert len(found(mapped(scanned(product), mesh), inputs(mesh))) == 1


@pytest.mark.integration
def test_the_changed_program_computes_the_same():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    fun, args = mapped(scanned(product), mesh), inputs(mesh)
    rewrites = inspection(Question(fun, args, on="gpu:h100")).subject.rewrites
    flat = with_bodies_inlined(rewrites.jaxprs[0])
    weights = list(gathered_weights_in(flat))
    assert len(weights) == 2
    trace, _ = rewrites.program(0, gathered_again(flat, weights))
    keys = iter(jax.random.split(jax.random.key(0), 3))
    given = jax.tree.map(
        lambda x: (0.1 * jax.random.normal(next(keys), x.shape)).astype(x.dtype), args
    )
    made = jax.jit(trace.lowerable().run)(jax.tree.leaves(given))
    expected = jax.jit(jax.value_and_grad(fun, (0, 1)))(*given)
    for a, b in zip(made, jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        assert np.linalg.norm(a - b) <= 0.02 * np.linalg.norm(b)


# -- where it is silent, although it looks like that ---------------------------------------------


def layers_checkpointed(ws, x):
    @jax.checkpoint
    def layer(x, w):
        return x + product(jnp.tanh(product(x, w[0])), w[1]), None

    return total(jax.lax.scan(layer, x, ws)[0])


def matmuls_saved(ws, x):
    policy = jax.checkpoint_policies.dots_saveable

    def layer(x, w):
        return x + product(jnp.tanh(product(x, w[0])), w[1]), None

    return total(jax.lax.scan(jax.checkpoint(layer, policy=policy), x, ws)[0])


def activations_gathered(ws, x):
    """As in sequence parallelism: what is gathered is computed in the loop."""

    def layer(x, w):
        whole = jax.lax.all_gather(jnp.tanh(x), "data", axis=0, tiled=True)
        return x + jnp.tanh(whole[: x.shape[0]] @ w[0])[:, :1], None

    return total(jax.lax.scan(layer, x, ws)[0])


def partial_sums(ws, x):
    def layer(x, w):
        return x + jax.lax.psum(jnp.tanh(x @ w[0]) @ w[0].T, "data"), None

    return total(jax.lax.scan(layer, x, ws)[0])


def exchanged(ws, x):
    def layer(x, w):
        w = jax.lax.all_to_all(w[0], "data", 0, 1, tiled=True)
        return x + jnp.tanh(x[:, : w.shape[0]] @ w)[:, :1], None

    return total(jax.lax.scan(layer, x, ws)[0])


def gathered_once(ws, x):
    """One layer's weights, for all trips, are little beside what the trips keep."""
    w, v = gathered(ws[0][0])[:, :D], gathered(ws[1][0])[:D]

    def layer(x, _):
        return jnp.sin(jnp.tanh(jnp.cos(jnp.tanh(x @ w)) @ v)), None

    x = jnp.tile(x, (8, 1))
    return total(jax.lax.scan(layer, x, None, length=64)[0])


def biases(ws, x):
    """What is added is not read by the backward pass."""

    def layer(x, w):
        bias = jax.lax.all_gather(w[1][0, :], "data", tiled=True)
        return jnp.sin(x + bias), None

    return total(jax.lax.scan(layer, x, ws)[0])


def without_gradients(ws, x):
    x = jax.lax.stop_gradient(x)

    def layer(x, w):
        return jnp.tanh(product(x, w[0]))[:, :D], None

    y, _ = jax.lax.scan(layer, x, jax.lax.stop_gradient(ws))
    return total(y) + total(ws[0])


def already_so(ws, x):
    return scanned(again)(ws, x)


def peak_elsewhere(ws, x):
    """What is sorted before the loop takes more than all that the loop keeps."""
    most = jax.lax.stop_gradient(jnp.max(jnp.sort(jnp.tile(x, (64, 1)), axis=0)))
    return scanned(product)(ws, x * most)


def weights_whole_from_the_start(ws, x):
    def layer(x, w):
        return jnp.tanh(x @ w[0])[:, :1] + x, None

    return total(jax.lax.scan(layer, x, ws)[0])


TEMPTING = [
    layers_checkpointed,
    matmuls_saved,
    activations_gathered,
    partial_sums,
    exchanged,
    gathered_once,
    biases,
    without_gradients,
    already_so,
    peak_elsewhere,
    weights_whole_from_the_start,
]


@pytest.mark.parametrize("local", TEMPTING)
def test_it_is_silent(local):
    assert found(mapped(local), inputs()) == []


@pytest.mark.integration
def test_the_mesh_of_shard_map_is_that_of_the_program():
    mesh = AbstractMesh((N,), ("data",), axis_types=(AxisType.Auto,))
    args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs())
    (finding,) = found(mapped(scanned(product), mesh), args, on="gpu:h100")
    assert finding.name == "gathered-weights-kept"


def test_it_is_silent_where_xla_gathers():
    def loss(ws, x):
        def layer(x, w):
            w = jax.tree.map(
                lambda each: jax.sharding.reshard(each, NamedSharding(MESH, P(None, None))), w
            )
            return x + jnp.tanh(x @ w[0]) @ w[1], None

        return jnp.sum(jax.lax.scan(layer, x, ws)[0].astype(jnp.float32))

    assert found(loss, inputs()) == []


def test_what_fits_the_vector_memory_of_a_tpu_is_left_alone():
    """XLA for a v5e has a peak of 9 MiB with and without, where the estimate has 82 and 52."""
    on = "tpu:v5e:2x4"
    assert found(mapped(scanned(product)), inputs(size=4), on) == []
    assert len(found(mapped(scanned(product)), inputs(size=6), on)) == 1


@pytest.mark.tpu
@pytest.mark.integration
def test_xla_agrees():
    """On eight v5e that need not be here; also that the figure is that of the code by hand."""
    if jax.device_count() < N:
        passes_with_devices(N, f"{__file__}::test_xla_agrees")
        return
    mesh = jax.make_mesh((N,), ("data",), axis_types=(AxisType.Auto,))
    args = inputs(mesh, 6)
    (violation,) = found(
        mapped(scanned(product), mesh), args, "tpu:v5e:2x4", compile=True, compile_time=300
    )
    by_hand = peak_by_xla(mapped(scanned(again), mesh), args, "tpu:v5e:2x4")
    assert violation.measured["compiler_verdict"] == "confirmed"
    assert violation.measured["compiler_peak_nbytes"] == pytest.approx(by_hand, rel=0.02)
