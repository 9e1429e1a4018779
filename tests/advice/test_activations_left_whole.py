"""JXR844: activations that devices keep whole, and what the program takes with one constraint."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from peaks_by_xla import passes_with_devices, peak_by_xla

import jaxresid
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.call.splits import split_of_text, text
from jaxresid.inspector.findings import whole_activations
from jaxresid.inspector.program.build import value_and_gradients
from jaxresid.inspector.program.collectives import sent_nbytes
from jaxresid.inspector.report import inspection, subject

N, L, D, F, B, T = 8, 16, 128, 256, 16, 128


def mesh_of(mode="Auto", **axes):
    axes = axes or {"data": 4, "model": 2}
    types = (getattr(AxisType, mode),) * len(axes)
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=types)


MESH = mesh_of()


def array(shape, *split, mesh=MESH, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*split)))


def constrained(*split, mesh=MESH):
    return lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*split)))


def as_it_is(x):
    return x


def layer(x, w, mark):
    up, down = w
    return mark(x + jnp.tanh(x @ up) @ down)


def scanned(mark=as_it_is, wrap=jax.checkpoint):
    def loss(weights, x):
        x, _ = jax.lax.scan(wrap(lambda x, w: (layer(x, w, mark), None)), x, weights)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    return loss


def unrolled(mark=as_it_is, wrap=jax.checkpoint):
    def loss(weights, x):
        for w in zip(*weights, strict=True):
            x = wrap(lambda x, w: layer(x, w, mark))(x, w)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    return loss


def all_kept(mark=as_it_is):
    return unrolled(mark, as_it_is)


def inputs(up=(None, "model"), down=("model",), x=("data",), mesh=MESH, size=1, layers=L):
    shapes = (layers, size * D, size * F), (layers, size * F, size * D)
    weights = [
        array(s, None, *split, mesh=mesh) for s, split in zip(shapes, (up, down), strict=True)
    ]
    return tuple(weights), array((size * B, size * T, size * D), *x, mesh=mesh)


def found(fun, args, on="gpu:h100:8", **options):
    return [v for v in jaxresid.check(fun, on=on, **options)(*args) if v.code == "JXR844"]


def line_of(fun, within):
    code = fun.__code__
    with open(code.co_filename, encoding="utf-8") as file:
        rows = file.read().split("\n")[code.co_firstlineno - 1 :]
    return code.co_firstlineno + next(i for i, row in enumerate(rows) if within in row)


@pytest.mark.integration
@pytest.mark.parametrize(("program", "args"), [(scanned, inputs()), (all_kept, inputs((), ()))])
def test_it_is_worth_what_the_constraint_is(program, args):
    (violation,) = found(program(), args)
    measured = violation.measured
    assert measured["axis"] == "model"
    by_hand = program(constrained(*measured["spec"].split(",")))
    assert found(by_hand, args) == []
    report = jaxresid.inspect(by_hand, on="gpu:h100:8")(*args)
    assert measured["peak_nbytes"] == report.peak.nbytes
    assert measured["kept_nbytes"] == report.totals.computed_nbytes
    assert measured["peak_nbytes"] <= 0.9 * measured["peak_before_nbytes"]
    assert violation.span.row == line_of(layer, "jnp.tanh")


@pytest.mark.integration
def test_a_batch_that_was_not_split():
    mesh = mesh_of(data=8)
    args = inputs((None, "data"), ("data",), (), mesh=mesh)
    (violation,) = found(scanned(), args)
    measured = violation.measured
    assert (measured["axis"], measured["dimension"], measured["spec"]) == ("data", 0, "data")
    assert violation.help.startswith(f"constrain the bfloat16[{B},{T},{D}]")
    # Rows of one device's own batch are not exchanged, only weights are.
    assert measured["sent_nbytes"] < measured["sent_before_nbytes"]
    assert "jax.sharding.PartitionSpec('data')" in violation.message + violation.help


@pytest.mark.integration
def test_what_a_call_returns_is_constrained():
    """The operations of `jax.nn.gelu` are on the line that calls it."""

    def loss(weights, x):
        def body(x, w):
            hidden = jax.nn.gelu(x @ w[0])
            return jnp.tanh(hidden @ w[1]), None

        x, _ = jax.lax.scan(body, x, weights)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    args = inputs((), (), ("data",))
    (violation,) = found(loss, args)
    assert violation.measured["axis"] == "model"
    inspected = inspection(Question(loss, args, on="gpu:h100:8"))
    (proposal,) = inspected.proposals
    jaxpr = str(proposal.changed().trace.written)
    assert jaxpr.count("= sharding_constraint") == 1


@pytest.mark.integration
def test_the_changed_program_computes_the_same():
    mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    from jaxresid.inspector.variants.rewrites.split_values import constrained, made_on

    fun, args = scanned(), inputs(mesh=mesh)
    subject = inspection(Question(fun, args, on="gpu:h100")).subject
    (jaxpr,) = subject.rewrites.jaxprs
    residual = max(subject.residuals, key=lambda r: r.nbytes)
    shape = residual.aval.shape[1:]
    made = made_on(subject.trace.levels, jaxpr, residual.origin.location)[shape]
    assert len(made) == 1
    trace, _ = subject.rewrites.program(0, constrained(jaxpr, made, mesh, (("data",), (), ())))
    assert "sharding_constraint" in str(trace.written)
    keys = iter(jax.random.split(jax.random.key(0), 3))
    given = jax.tree.map(
        lambda x: (0.1 * jax.random.normal(next(keys), x.shape)).astype(x.dtype), args
    )
    run = jax.jit(trace.lowerable().run)(jax.tree.leaves(given))
    expected = jax.jit(jax.value_and_grad(fun, (0, 1)))(*given)
    for a, b in zip(run, jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))


@pytest.mark.parametrize(
    "split", [(("data",), (), ("model",)), ((), ()), ((), ("data", "model")), (("a",),)]
)
def test_a_split_is_read_as_it_is_written(split):
    assert split_of_text(text(split), len(split)) == split


@pytest.mark.parametrize(
    ("value", "axis", "expected"),
    [
        ((((), ()), (8, 4)), "data", [(0, (("data",), ())), (1, ((), ("data",)))]),
        # Other dims may be split by an axis already, which goes to another then.
        ((((), ("data",)), (8, 4)), "data", [(0, (("data",), ()))]),
        (((("model",), ()), (8, 6)), "data", [(0, (("model", "data"), ()))]),
        ((((),), (6,)), "data", []),
    ],
)
def test_how_an_axis_may_split_a_value(value, axis, expected):
    split, shape = value
    kept = whole_activations._Value("float32", shape, split)
    assert list(whole_activations._splits(kept, axis, {"data": 4, "model": 2})) == expected


def test_what_takes_many_more_exchanges_is_not_proposed(monkeypatch):
    monkeypatch.setattr(whole_activations, "_MOST_SENT", 0.1)
    assert found(scanned(), inputs()) == []


def test_each_trip_sends():
    def sent(trips):
        def local(x):
            body = lambda x, _: (jax.lax.psum(x, "data") / 4, None)
            return jax.lax.scan(body, x, None, length=trips)[0]

        one = P(None, "model")
        fun = jax.shard_map(local, mesh=MESH, in_specs=one, out_specs=one, check_vma=False)
        trace = subject(Question(lambda x: jnp.sum(fun(x)), (array((8, 8)),))).trace
        program = value_and_gradients(trace)
        return sent_nbytes(program.block, program.trips)

    assert sent(5) - sent(4) == sent(4) - sent(3) > 0
    assert sent(0) == sent(1) - (sent(5) - sent(4))


# -- where it is silent, although it looks like that ---------------------------------------------


def already_so(weights, x):
    return scanned(constrained("data", "model"))(weights, x)


def everything_on_one_axis(weights, x):
    return scanned()(weights, x)


def weights_dominate(weights, x):
    return scanned()(weights, x[:, :8])


def one_device(weights, x):
    def body(x, w):
        return jnp.tanh(x) + jax.lax.psum(jnp.tanh(x @ w[0]) @ w[1], "model"), None

    x, _ = jax.lax.scan(jax.checkpoint(body), x, weights)
    return jax.lax.pmean(jnp.mean(x.astype(jnp.float32) ** 2), ("data", "model"))


def in_shard_map(weights, x):
    specs = ((P(None, None, "model"), P(None, "model")), P("data"))
    mapped = jax.shard_map(one_device, mesh=MESH, in_specs=specs, out_specs=P(), check_vma=False)
    return mapped(weights, x)


def no_dim_divides(weights, x):
    return scanned()(weights, x)


def step(weights, x):
    value, gradients = jax.value_and_grad(scanned())(weights, x)
    return jax.tree.map(lambda w, g: w - g, weights, gradients), value


EXPLICIT = mesh_of("Explicit")
TEMPTING = {
    "already so": (already_so, inputs()),
    "one axis splits all": (
        everything_on_one_axis,
        inputs((None, "data"), ("data",), ("data",), mesh=mesh_of(data=8)),
    ),
    "weights dominate": (weights_dominate, inputs(layers=64)),
    "in shard_map": (in_shard_map, inputs()),
    "no dim divides": (
        no_dim_divides,
        (
            (
                array((L, 27, 42), None, None, "model"),
                array((L, 42, 27), None, "model"),
            ),
            array((4, 999, 27), "data"),
        ),
    ),
    "explicit axes": (scanned(), inputs((), (), ("data",), mesh=EXPLICIT)),
    "a step": (step, inputs()),
    "checkpointed in a Python loop": (unrolled(), inputs()),
    "one layer": (scanned(), inputs(layers=1)),
    "checkpointed whole": (jax.checkpoint(scanned(wrap=as_it_is)), inputs((), (), ("data",))),
    "split already by both": (scanned(), inputs(x=("data", "model"), up=(), down=())),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", TEMPTING)
def test_it_is_silent(name):
    fun, args = TEMPTING[name]
    assert found(fun, args) == []


def test_what_fits_the_vector_memory_of_a_tpu_is_left_alone():
    assert found(scanned(), inputs(), on="tpu:v5e:2x4") == []


def test_it_is_silent_where_the_mesh_is_not_known():
    args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs())
    assert found(scanned(), args, on="gpu:h100") == []


@pytest.mark.tpu
@pytest.mark.integration
def test_xla_agrees():
    """On eight v5e that need not be here; also that the figure is that of the code by hand."""
    if jax.device_count() < N:
        passes_with_devices(N, f"{__file__}::test_xla_agrees")
        return
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    args = inputs(mesh=mesh, size=4)
    (violation,) = found(scanned(), args, "tpu:v5e:2x4", compile=True, compile_time=300)
    measured = violation.measured
    split = measured["spec"].split(",")
    by_hand = peak_by_xla(scanned(constrained(*split, mesh=mesh)), args, "tpu:v5e:2x4")
    assert measured["compiler_verdict"] == "confirmed"
    assert measured["compiler_peak_nbytes"] == pytest.approx(by_hand, rel=0.02)
