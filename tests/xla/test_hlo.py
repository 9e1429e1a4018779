import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxresid.xla.hlo import module as hlo
from jaxresid.xla.hlo.collectives import collectives, known_trips
from jaxresid.xla.hlo.memory import memory_stats
from jaxresid.xla.hlo.module import output_dims
from jaxresid.xla.hlo.text import module_of_text
from jaxresid.xla.hlo.wire import Message
from tests import where

DATA = where.DATA / "xla"

# What one program's collectives are in one step, by hand: opcode -> how often and how many bytes.
COUNTED = {
    "psum": {"all-reduce": (1, 4 * 16 * 32)},
    "psum_in_scan": {"all-reduce": (5, 5 * 4 * 16 * 32)},
    "gather_in_scans": {"all-gather": (6, 6 * 4 * 8 * 16 * 32)},
    "permute": {"collective-permute": (1, 4 * 16 * 32)},
    "scatter": {"reduce-scatter": (1, 4 * 2 * 32)},
    "all_to_all": {"all-to-all": (1, 4 * 16 * 32)},
    "while": {"all-reduce": (1, 4 * 16 * 32)},
    "none": {},
}

PROGRAMS = """
import os, sys, json
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxresid.xla.hlo.collectives import collectives

if sys.argv[1] == "cpu":
    jax.config.update("jax_num_cpu_devices", 8)
    devices = jax.devices()
else:
    from jax.experimental import topologies
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices
mesh = Mesh(np.array(devices), ("d",))
shard_map = getattr(jax, "shard_map", None)
if shard_map is None:
    from jax.experimental.shard_map import shard_map

def psum_in_scan(x):
    return lax.scan(lambda c, _: (jnp.sin(lax.psum(c, "d")), None), x, None, length=5)[0]

def gather(c):
    return jnp.sin(lax.all_gather(c, "d")).sum(0)

def gather_in_scans(x):
    def inner(c, _):
        return lax.scan(lambda c, _: (gather(c), None), c, None, length=3)[0], None
    return lax.scan(inner, x, None, length=2)[0]

def searched(x):
    return lax.while_loop(lambda c: c[0, 0] > 0, lambda c: jnp.sin(lax.psum(c, "d")), x)

def scatter(x):
    return lax.psum_scatter(x, "d", scatter_dimension=0, tiled=True)

programs = {
    "psum": lambda x: lax.psum(x, "d"),
    "psum_in_scan": psum_in_scan,
    "gather_in_scans": gather_in_scans,
    "permute": lambda x: lax.ppermute(x, "d", [(i, (i + 1) % 8) for i in range(8)]),
    "scatter": scatter,
    "all_to_all": lambda x: lax.all_to_all(x, "d", 0, 0, tiled=True),
    "while": searched,
    "none": jnp.sin,
}
x = jax.ShapeDtypeStruct((128, 32), jnp.float32, sharding=NamedSharding(mesh, P("d")))
found = {}
for name, fun in programs.items():
    try:
        fun = shard_map(fun, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    except TypeError:
        fun = shard_map(fun, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_rep=False)
    (module,) = jax.jit(fun).lower(x).compile().runtime_executable().hlo_modules()
    ops = collectives(module.as_serialized_hlo_module_proto())
    found[name] = {op.opcode: [op.count, op.nbytes, op.exact] for op in ops}
print("found:", json.dumps(found))
"""


def counted(platform):
    environment = {
        **{"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "PATH": ""},
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "PYTHONPATH": str(Path(hlo.__file__).parents[2]),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS, platform],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("found:")[2])


def expected():
    return {
        name: {opcode: [*figures, name != "while"] for opcode, figures in ops.items()}
        for name, ops in COUNTED.items()
    }


@pytest.mark.integration
def test_collectives_on_eight_devices():
    assert counted("cpu") == expected()


@pytest.mark.tpu
def test_collectives_on_eight_chips():
    found = counted("tpu")
    for name, ops in expected().items():
        # libtpu makes an all-reduce and a slice of a small reduce-scatter, and all-gathers in
        # other ways: what it says there is its own business.
        if name not in ("scatter", "gather_in_scans"):
            assert found[name] == ops, name


def recorded():
    return Message.read((DATA / "scan_fits.hlo.pb").read_bytes()).data(1)


def test_trips_that_libtpu_does_not_note():
    module = hlo.module(recorded())
    loops = [i for i in module.instructions.values() if i.opcode == "while"]
    assert [known_trips(module, loop) for loop in loops] == [6, 6]
    assert not any(b"known_trip_count" in loop.config for loop in loops)


def test_a_module_is_what_its_text_says():
    def fun(x, y):
        return {"a": jnp.sin(x) @ y.astype(jnp.float32), "b": y.sum()}

    args = jax.ShapeDtypeStruct((4, 8), "float32"), jax.ShapeDtypeStruct((8, 2), "bfloat16")
    executable = jax.jit(fun).lower(*args).compile().runtime_executable()
    (compiled,) = executable.hlo_modules()
    text = compiled.to_string()
    module = hlo.module(compiled.as_serialized_hlo_module_proto())
    entry = module.computations[module.entry]
    listed = text[text.index("ENTRY") :].splitlines()[1 : len(entry) + 1]
    for i, line in zip(entry, listed, strict=True):
        assert f" {i.opcode}(" in line
        if i.shape.dtype:
            assert f"= {i.shape}" in line
    root = module.instructions[module.roots[module.entry]]
    assert str(root.shape) == "(f32[4,2], bf16[])"
    assert root.shape.nbytes == 4 * 4 * 2 + 2


def inner(x):
    return jnp.sin(x)


def outer(x):
    return inner(x) + 1


def test_a_stack_is_the_same_in_text():
    executable = jax.jit(outer).lower(jnp.ones(4)).compile().runtime_executable()
    (compiled,) = executable.hlo_modules()
    read = hlo.module(compiled.as_serialized_hlo_module_proto())
    text = module_of_text(compiled.to_string())
    for module in (read, text):
        (sine,) = (i for i in module.instructions.values() if i.opcode == "sine")
        lines = [(sine.file, sine.line), *sine.callers]
        functions = [inner.__code__.co_firstlineno + 1, outer.__code__.co_firstlineno + 1]
        if lines[1:]:  # not of JAX 0.7
            assert [line for _, line in lines[:2]] == functions
        else:
            assert tuple(map(int, jax.__version__.split(".")[:2])) < (0, 8)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x0a\x01", recorded()[:2000]])
def test_what_is_no_module_has_no_collectives(data):
    assert collectives(data) == ()
    with pytest.raises(ValueError, match=r"\w"):
        hlo.module(data)


def carried(w, x):
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)
    return jnp.sum(x)


@pytest.mark.parametrize(
    ("fun", "donated"), [(jax.value_and_grad(carried), ()), (lambda w, x: (w * 2, x), (0,))]
)
def test_the_figures_in_a_buffer_assignment_are_xlas(fun, donated):
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((3, 64, 64), (32, 64))]
    compiled = jax.jit(fun, donate_argnums=donated).lower(*shapes).compile()
    memory = compiled.runtime_executable().get_compiled_memory_stats()
    found = memory_stats(memory.serialized_buffer_assignment_proto)
    for name, nbytes in found.items():
        assert nbytes == getattr(memory, name.replace("nbytes", "size_in_bytes")), name
    assert (found["alias_nbytes"] > 0) == bool(donated)


def test_the_dimensions_of_outputs():
    shapes = jax.ShapeDtypeStruct((4, 3), jnp.float32), jax.ShapeDtypeStruct((), jnp.int8)
    (module,) = (
        jax.jit(lambda x, y: (x, (y, x.T)))
        .lower(*shapes)
        .compile()
        .runtime_executable()
        .hlo_modules()
    )
    proto = module.as_serialized_hlo_module_proto()
    assert output_dims(proto) == ((4, 3), (), (3, 4))
    assert output_dims(b"") is None
    assert output_dims(proto[:-7]) is None
