"""Programs that bring their mesh along (`pmap`, `shard_map`, `jit`): the bytes of one device."""

import functools
import importlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxresid
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from tests.where import ROOT

pytest.importorskip("optax")
pmapped_step = importlib.import_module("fixtures.inspect.pmapped_step")

MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
OPTIMIZED = pmapped_step.LAYERS * pmapped_step.WIDTH**2 * 4
ROWS = pmapped_step.ROWS * pmapped_step.WIDTH * 4
COUNT = 4  # of Adam


def traced(fun, *args):
    return subject(Question(fun, args, {}))


def shapes(values):
    return [v.shape for v in values]


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_pmap_is_of_one_device_on_both_sides_without_its_devices():
    assert len(jax.devices()) < pmapped_step.DEVICES
    inputs = jax.eval_shape(pmapped_step.train_step_inputs)
    report = jaxresid.inspect(pmapped_step.train_step, on="gpu:h100")(*inputs)
    assert report.mesh.axes == (("batch", pmapped_step.DEVICES),)
    assert report.peak.arguments_nbytes == 3 * OPTIMIZED + ROWS + COUNT
    # All but the loss take over what is donated.
    assert report.peak.aliased_nbytes == 3 * OPTIMIZED + COUNT
    assert dict(report.peak.breakdown)["output"] == 4
    assert [f.name for f in report.findings] == []
    assert report.warnings == ()


def test_what_pmap_could_donate_is_said_as_pmap_takes_it():
    inputs = jax.eval_shape(pmapped_step.train_step_inputs)
    report = jaxresid.inspect(pmapped_step.train_step_kept, on="gpu:h100")(*inputs)
    (finding,) = report.findings
    assert finding.name == "missing-donation"
    assert "jax.pmap(step, ..., donate_argnums=(0, 1))" in finding.help


def test_pmap_with_axes_that_are_not_mapped():
    @functools.partial(jax.pmap, axis_name="i", in_axes=(None, 1), static_broadcasted_argnums=2)
    def scaled(w, x, n):
        return [jax.lax.pmean(x, "i") @ w] * n

    program = traced(scaled, f32(6, 7), f32(5, 3, 6), 2).program
    assert shapes(program.block.inputs) == [(6, 7), (5, 1, 6)]
    assert shapes(program.block.outputs) == [(1, 5, 7)] * 2


@pytest.mark.parametrize("jitted", [False, True])
def test_the_arguments_of_a_shard_map_are_split_as_it_asks(jitted):
    def body(w, x):
        return x @ w, jax.lax.psum(x.sum(), "data")

    mapped = jax.shard_map(
        body, mesh=MESH, in_specs=(P(), P("data")), out_specs=(P("data"), P()), check_vma=False
    )
    fun = jax.jit(mapped, donate_argnums=1) if jitted else mapped
    made = traced(fun, f32(8, 8), f32(64, 8))
    assert shapes(made.program.block.inputs) == [(8, 8), (16, 8)]
    assert shapes(made.program.block.outputs) == [(16, 8), ()]
    assert made.trace.donated == (False, jitted)
    assert made.warnings == ()


def test_shardings_that_a_function_is_jitted_with_are_its_mesh():
    split = NamedSharding(MESH, P("data"))
    fun = jax.jit(lambda w, x: (x @ w, x), in_shardings=(None, split), out_shardings=split)
    program = traced(fun, f32(8, 8), f32(64, 8)).program
    assert shapes(program.block.inputs) == [(8, 8), (16, 8)]
    assert shapes(program.block.outputs) == [(16, 8), (16, 8)]


def test_a_loss_over_a_mesh_of_its_own():
    mapped = jax.shard_map(jnp.sin, mesh=MESH, in_specs=P("data"), out_specs=P("data"))
    program = traced(lambda x: jnp.sum(mapped(x)), f32(64, 8)).program
    assert shapes(program.block.inputs) == [(16, 8)]


def test_programs_of_two_meshes_and_of_one_device_are_left_as_they_are():
    other = AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))
    one = AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,))

    def two(x):
        for mesh in (MESH, other):
            split = P(mesh.axis_names[0])
            x = jax.jit(jax.shard_map(jnp.sin, mesh=mesh, in_specs=split, out_specs=split))(x)
        return x

    assert traced(two, f32(64, 8)).mesh is None
    split = P("x")
    single = jax.shard_map(jnp.sin, mesh=one, in_specs=split, out_specs=split)
    assert traced(single, f32(64, 8)).mesh is None


def test_an_axis_that_nothing_binds():
    inputs = jax.eval_shape(pmapped_step.step_inputs)
    with pytest.raises(jaxresid.JaxresidError) as caught:
        traced(pmapped_step.step, *inputs)
    *_, helps = str(caught.value).splitlines()
    assert "the axis batch is bound by jax.pmap, jax.shard_map or jax.vmap around it" in helps
    assert "that is train_step, with inputs that have the axis" in helps


def test_an_axis_that_nothing_here_binds():
    def step(x):
        return jax.lax.pmean(x, "i")

    with pytest.raises(jaxresid.JaxresidError, match=r"such as jax.pmap\(step, axis_name='i'\)"):
        traced(step, f32(3))


@pytest.mark.parametrize("code", ["jax.make_mesh((8, 2), ('a', 'b'))", "RESHAPED"])
def test_too_few_devices_while_a_program_is_traced(code, monkeypatch):
    def step(x):
        if code == "RESHAPED":
            return np.array(jax.devices()).reshape(8, 2)
        return jax.make_mesh((8, 2), ("a", "b"))

    import numpy as np

    with pytest.raises(jaxresid.JaxresidError, match="set JAX_PLATFORMS=cpu and JAX_NUM_CPU_DEVI"):
        traced(step, f32(3))


def test_an_array_that_cannot_be_reshaped_is_no_lack_of_devices():
    def step(x):
        import numpy as np

        return np.zeros(1).reshape(8, 2)

    with pytest.raises(jaxresid.JaxresidError) as caught:
        traced(step, f32(3))
    assert "NUM_CPU_DEVICES" not in str(caught.value)


XLA = """
import sys
sys.path[:0] = ["fixtures/inspect"]
import jax, pmapped_step
made = pmapped_step.train_step.lower(*jax.eval_shape(pmapped_step.train_step_inputs)).compile()
found = made.memory_analysis()
print(found.argument_size_in_bytes, found.output_size_in_bytes, found.alias_size_in_bytes)
"""


@pytest.mark.integration
def test_pmap_holds_on_a_device_what_xla_says():
    inputs = jax.eval_shape(pmapped_step.train_step_inputs)
    peak = jaxresid.inspect(pmapped_step.train_step, on="gpu:h100")(*inputs).peak
    command = [sys.executable, "-c", XLA]
    environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "PATH": ""}
    done = subprocess.run(command, capture_output=True, check=True, cwd=ROOT, env=environment)
    arguments, outputs, aliased = map(int, done.stdout.split())
    assert peak.arguments_nbytes == arguments
    assert peak.aliased_nbytes == aliased
    # XLA:CPU's outputs are in a tuple, of a pointer each.
    assert 0 <= outputs - aliased - 4 < 1024
