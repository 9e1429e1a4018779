"""What a split program has to exchange: by hand, and against what XLA compiles for devices."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxresid import jax_compat
from jaxresid.advice.timing.chips import chip_of
from jaxresid.advice.timing.roofline import seconds
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.checkpoints import placement
from jaxresid.inspector.cost.jaxpr_cost import Costs
from jaxresid.inspector.jaxpr.while_loops.trips import WhileTrips
from jaxresid.inspector.memory.rules import fusion
from jaxresid.inspector.program.build import all_ops
from jaxresid.inspector.program.op_cost import op_cost
from jaxresid.inspector.program.ops import CUT, GATHER, SCATTER, UNWRITTEN, Value
from jaxresid.inspector.report import subject
from jaxresid.results import Cost
from jaxresid.xla.places import parse_place

ROOT = Path(__file__).resolve().parents[3]
LAYERS, ROWS, IN, OUT = 3, 4096, 256, 512
ON = "tpu:v5e:2x4"


def traced(axes, weights, batch):
    """A scan of two products and their gradients, as a subject: one matrix up, one down."""
    mesh = jax_compat.new_abstract_mesh(axes)

    def struct(shape, *split):
        sharding = NamedSharding(mesh, PartitionSpec(*split))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    def layer(x, pair):
        return jnp.tanh(jnp.sin(x @ pair[0]) @ pair[1]), None

    def loss(pairs, x):
        return jnp.sum(jax.lax.scan(layer, x, pairs)[0])

    pairs = (
        struct((LAYERS, IN, OUT), None, *weights[0]),
        struct((LAYERS, OUT, IN), None, *weights[1]),
    )
    args = pairs, struct((ROWS, IN), *batch)
    return subject(Question(loss, args, argnums=0, mode="loss", on=ON))


def exchanged(block, trips=1):
    """Yield each collective of a block and its bodies, as often as it runs."""
    for op in block.ops:
        for each in op.collectives:
            yield from [each] * trips
        for body in op.bodies:
            yield from exchanged(body, trips * (op.nest.length if op.nest else 1))


def nbytes(found, kind, least=8):
    return sum(each.nbytes for each in found if each.kind == kind and each.nbytes > least)


MATRIX = 4 * IN * OUT  # one of a layer's two


def test_data_parallel_reduces_the_gradients():
    found = [*exchanged(traced({"data": 8}, ((), ()), ("data",)).program.block)]
    assert nbytes(found, "all-reduce") == LAYERS * 2 * MATRIX
    assert nbytes(found, "all-gather") == nbytes(found, "reduce-scatter") == 0
    assert {each.devices for each in found} == {8}


def test_fsdp_gathers_the_weights_in_both_passes_and_scatters_the_gradients():
    found = [*exchanged(traced({"data": 8}, (("data",), ("data",)), ("data",)).program.block)]
    assert nbytes(found, "all-gather") == 2 * LAYERS * 2 * MATRIX
    assert nbytes(found, "reduce-scatter") == LAYERS * 2 * MATRIX
    assert nbytes(found, "all-reduce") == 0


def test_tensor_parallel_reduces_the_activations():
    split = ((None, "model"), ("model",))
    found = [*exchanged(traced({"data": 2, "model": 4}, split, ("data",)).program.block)]
    rows = 4 * ROWS * IN // 2  # of one device of the data axis
    reduced = [each for each in found if each.kind == "all-reduce" and each.nbytes == rows]
    # Once a layer forward, once backward.
    assert len(reduced) == 2 * LAYERS
    assert {each.devices for each in reduced} == {4}
    assert {each.axes for each in reduced} == {((4, 1),)}  # neighbours
    # The gradients of a device's part of the matrices, over the data axis.
    gradients = [e for e in found if e.kind == "all-reduce" and e.nbytes == MATRIX // 4]
    assert len(gradients) == 2 * LAYERS and {each.devices for each in gradients} == {2}
    assert {each.axes for each in gradients} == {((2, 4),)}  # one of each four
    assert nbytes(found, "all-gather") == 0


def added(first, second, axes):
    """A sum over the sum of two matrices that are split otherwise, as a subject."""
    mesh = jax_compat.new_abstract_mesh(axes)

    def struct(*split):
        sharding = NamedSharding(mesh, PartitionSpec(*split))
        return jax.ShapeDtypeStruct((ROWS, IN), jnp.float32, sharding=sharding)

    def loss(x, y):
        return jnp.sum(jnp.tanh(x + y))

    args = struct(*first), struct(*second)
    return subject(Question(loss, args, argnums=0, mode="loss", on=ON))


@pytest.mark.parametrize(
    ("first", "second", "axes", "kinds"),
    [
        # What is split by columns is split by rows instead, and no device has all of it.
        (("a",), (None, "a"), {"a": 8}, {"all-to-all": 4 * ROWS * IN // 8}),
        # What is split by rows along another axis is gathered along that first.
        (
            ("a",),
            ("b", "a"),
            {"a": 4, "b": 2},
            {"all-gather": 4 * ROWS * IN // 4, "all-to-all": 4 * ROWS * IN // 4},
        ),
    ],
)
def test_what_is_split_along_another_dim_is_exchanged(first, second, axes, kinds):
    block = added(first, second, axes).program.block
    found = [each for each in exchanged(block) if each.kind != "all-reduce"]
    assert {each.kind: each.nbytes for each in found} == kinds
    made = [v for op in all_ops(block.ops) for v in op.results if v.shape]
    assert max(v.nbytes for v in made) == 4 * ROWS * IN // axes["a"]


def mapped(weight):
    """A product in a `shard_map` that wants whole weights, and its gradients, as a subject."""
    mesh = jax_compat.new_abstract_mesh({"data": 8})

    def struct(shape, *split):
        sharding = NamedSharding(mesh, PartitionSpec(*split))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    def loss(w, x):
        rows = PartitionSpec("data")
        specs = rows, PartitionSpec()
        return jnp.sum(jax.shard_map(jnp.matmul, mesh=mesh, in_specs=specs, out_specs=rows)(x, w))

    args = struct((IN, OUT), *weight), struct((ROWS, IN), "data")
    return subject(Question(loss, args, argnums=0, mode="loss", on=ON))


def test_what_devices_exchange_computes_nothing():
    """Its op has the eqn that it is for: a product, or a whole `shard_map`."""
    found = mapped(("data",))
    layers = traced({"data": 8}, (("data",), ("data",)), ("data",))
    between = [
        op
        for each in (found, layers)
        for op in all_ops(each.program.block.ops)
        if op.name in UNWRITTEN
    ]
    assert {GATHER, SCATTER} <= {op.name for op in between}
    for op in between:
        assert op_cost(op, WhileTrips()) == Cost()
        assert placement._of(op, Costs()) == 0
        assert not op.params
    took, whole = (
        seconds(each.variants().variant({}).lowered, chip_of(each.place))
        for each in (found, mapped(()))
    )
    assert took.compute == pytest.approx(whole.compute, rel=0.01)
    assert took.collectives > 0


def test_what_is_cut_out_is_computed_where_it_is_read():
    op = mapped(()).program.block.ops[0]

    def named(name):
        return fusion.is_fusible(dataclasses.replace(op, name=name))

    assert named(CUT)
    assert not any(map(named, UNWRITTEN - {CUT}))


@pytest.mark.parametrize(
    ("read", "is_transfer"),
    [(["host"], True), (["device"], False), (["host", "device"], True), (["device"] * 2, False)],
)
def test_a_kernel_that_ends_in_a_transfer_may_read_several(read, is_transfer):
    op = mapped(()).program.block.ops[0]
    operands = tuple(Value((8,), "float32", 4, memory) for memory in read)
    results = (Value((8,), "float32", 4),)
    put = dataclasses.replace(op, name="device_put", operands=operands, results=results)
    assert fusion.is_transfer(put) is is_transfer


def test_one_device_exchanges_nothing():
    found = traced({"data": 1}, ((), ()), ("data",))
    assert seconds(found.variants().variant({}).lowered, chip_of(found.place)).collectives == 0


def test_the_time_of_collectives_is_that_of_rings_beside_the_kernels():
    found = traced({"data": 8}, ((), ()), ("data",))
    chip = chip_of(parse_place(ON))
    took = seconds(found.variants().variant({}).lowered, chip)
    moved = sum(
        2 * each.nbytes * 7 / 8 for each in exchanged(found.variants().variant({}).program.block)
    )
    assert took.collectives == pytest.approx(moved / chip.link_rate)
    assert took.collectives > took.compute  # so the loop takes as long as the links do
    assert took.total >= took.collectives


# --- against what XLA compiles ------------------------------------------------------------------


def against_xla(on, *names):
    """The rows of the oracle, of a process with eight devices."""
    tests = ROOT / "tests"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tests), str(ROOT)]),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "8",
    }
    done = subprocess.run(
        [sys.executable, str(tests / "collectives_oracle.py"), on, *names],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(rows) == 2 * len(names), done.stderr[-2000:]
    return rows


@pytest.mark.integration
@pytest.mark.parametrize(
    ("on", "names"),
    [
        pytest.param("tpu:v5e:2x4", ("scan data", "mlp tensor"), marks=pytest.mark.tpu),
        pytest.param("gpu:h100:8", ("mlp fsdp", "scan tensor", "by hand"), marks=pytest.mark.gpu),
    ],
)
def test_what_is_exchanged_is_what_xla_exchanges(on, names):
    for row in against_xla(on, *names):
        assert row["implied"] == pytest.approx(row["compiled"], rel=0.01), row
