import os

import hypothesis
import jax
import jax.numpy as jnp
import pytest
from hypothesis import strategies as st
from small import f32

from jaxresid.xla.hlo import buffers as buffers_module
from jaxresid.xla.hlo import dump
from jaxresid.xla.hlo.buffers import LiveBuffers, buffers
from jaxresid.xla.hlo.module import HloModule, Instruction, Shape
from jaxresid.xla.hlo.wire import Message
from tests import where

DATA = where.DATA / "xla"
GIB = 2**30


def scanned(w, x):
    x, _ = jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, w)
    return jnp.sum(x**2)


def looped(w, x):
    for i in range(6):
        x = jnp.sin(x @ w[i])
    return jnp.sum(x**2)


def branched(w, x):
    x = jax.lax.cond(x[0, 0] > 0, lambda x: jnp.sin(x @ w[0]), lambda x: jnp.cos(x @ w[1]), x)
    return jnp.sum(x**2)


def searched(w, x):
    return jnp.sum(jax.lax.while_loop(lambda x: x[0, 0] > 0, lambda x: jnp.sin(x @ w[0]), x))


def handed_on(w, x):
    """The loop reads `late` at its start and needs the most memory at its end."""
    late = jnp.sin(w)

    def body(c, _):
        x = jnp.full((1024, 128), jnp.sum(late * c)) @ w[0]
        return jnp.sum(jnp.sort(x @ w[1], axis=0)), None

    return jax.lax.scan(body, x[0, 0], None, length=3)[0]


def on_cpu(fun, *args, **options):
    executable = jax.jit(fun, **options).lower(*args).compile().runtime_executable()
    (module,) = executable.hlo_modules()
    memory = executable.get_compiled_memory_stats()
    return module.as_serialized_hlo_module_proto(), memory


def recorded(name):
    message = Message.read((DATA / f"{name}.hlo.pb").read_bytes())
    return message.data(1), message.data(3)


WEIGHTS, INPUT = f32(6, 128, 128), f32(64, 128)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fun", "options"),
    [
        (jax.value_and_grad(scanned), {}),
        (jax.grad(scanned, argnums=(0, 1)), {}),
        (jax.value_and_grad(looped), {}),
        (jax.grad(branched), {}),
        (searched, {}),
        (handed_on, {}),
        (lambda w, x: (w - jax.grad(scanned)(w, x), x), {"donate_argnums": 0}),
    ],
    ids=["scan", "both", "loop", "cond", "while", "handed on", "donated"],
)
def test_what_is_live_is_what_is_allocated(fun, options):
    module, memory = on_cpu(fun, WEIGHTS, INPUT, **options)
    live = buffers(module, memory.serialized_buffer_assignment_proto, "cpu")
    allocated = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
    )
    assert live.notes == ()
    # Constants are in no figure of the memory statistics.
    assert live.allocated_nbytes == pytest.approx(allocated, abs=512)
    # XLA packs tightly: there is no room for a value that it has forgotten, or thinks is dead.
    assert live.allocated_nbytes * 0.97 < live.nbytes <= live.allocated_nbytes
    assert live.nbytes == sum(buffer.nbytes for buffer in live.buffers)


def test_every_buffer_has_its_line():
    module, memory = on_cpu(jax.value_and_grad(scanned), WEIGHTS, INPUT)
    live = buffers(module, memory.serialized_buffer_assignment_proto, "cpu")
    stacked = {
        buffer.op_name.rpartition("/")[2]: buffer
        for buffer in live.buffers
        if buffer.shape == "f32[6,64,128]"
    }
    first = scanned.__code__.co_firstlineno
    assert stacked.keys() <= {"sin", "cos"} and "cos" in stacked
    for buffer in stacked.values():
        assert (os.path.basename(buffer.file), buffer.line) == ("test_buffers.py", first + 1)
        assert (buffer.kind, buffer.memory) == ("temporary", "device")
        assert buffer.nbytes == 6 * 64 * 128 * 4
    arguments = {b.op_name: b.shape for b in live.buffers if b.kind == "argument"}
    assert arguments == {"w": "f32[6,128,128]", "x": "f32[64,128]"}
    outputs = sorted((b.shape for b in live.buffers if b.kind == "output"), key=len)
    assert "f32[6,128,128]" in outputs


def test_what_a_tpu_holds_is_read_from_its_dump():
    live = buffers(*recorded("scan_fits"), "tpu")
    # peak_memory_in_bytes of the executable, less the tables of pointers of its tuples.
    assert live.nbytes == pytest.approx(3552582144, abs=4096)
    found = [(b.shape, b.op_name.rpartition("/")[2], b.file, b.line) for b in live.buffers[:2]]
    assert found == [
        ("f32[6,65536,1024]", "cos", "model.py", 7),
        ("bf16[6,65536,1024]", "sin", "model.py", 7),
    ]
    assert [b.nbytes for b in live.buffers[:2]] == [6 * 2**28, 6 * 2**27]
    # What is on the chip is in no list of what is in its memory: 24 MiB of gradient are.
    assert sum(b.nbytes for b in live.buffers) == live.nbytes


def test_what_ran_out_of_memory_is_read_from_its_dump():
    live = buffers(*recorded("scan_exhausted"), "tpu")
    assert live.allocated_nbytes == pytest.approx(23.88 * GIB, rel=0.001)
    assert live.allocated_nbytes * 0.999 < live.nbytes <= live.allocated_nbytes
    assert live.buffers[0].nbytes == 12 * GIB


def test_no_more_than_the_biggest_are_listed(monkeypatch):
    whole = buffers(*recorded("scan_fits"), "tpu")
    monkeypatch.setattr("jaxresid.xla.hlo.buffers.MAX_BUFFERS", 3)
    live = buffers(*recorded("scan_fits"), "tpu")
    assert live.buffers == whole.buffers[:3]
    assert live.nbytes == whole.nbytes > sum(buffer.nbytes for buffer in live.buffers)


@pytest.mark.parametrize(
    ("module", "assignment"), [(b"", b""), (b"", b"\x01"), (b"\xff" * 9, b"\x12\x00")]
)
def test_without_an_assignment_a_note_says_so(module, assignment):
    live = buffers(module, assignment, "tpu")
    assert live == LiveBuffers(notes=live.notes)
    assert len(live.notes) == 1


PROTOS = recorded("scan_fits")


@pytest.mark.integration
@hypothesis.given(st.data())
@hypothesis.settings(max_examples=60)
def test_damaged_bytes_give_nothing_or_something_but_no_error(data):
    which = data.draw(st.sampled_from([0, 1]))
    proto = bytearray(PROTOS[which])
    if data.draw(st.booleans()):
        del proto[data.draw(st.integers(0, len(proto))) :]
    for _ in range(data.draw(st.integers(0, 5))):
        if proto:
            proto[data.draw(st.integers(0, len(proto) - 1))] = data.draw(st.integers(0, 255))
    given = [*PROTOS]
    given[which] = bytes(proto)
    live = buffers(*given, "tpu")
    assert live.nbytes is None or live.nbytes >= 0


def test_the_biggest_module_of_a_dump_is_read(tmp_path):
    module, assignment = recorded("scan_fits")
    name = "module_0001.jit_loss.cl_7.after_optimizations.hlo.pb"
    (tmp_path / name).write_bytes((DATA / "scan_fits.hlo.pb").read_bytes())
    (tmp_path / "module_0002.small.gpu_after_optimizations.hlo.pb").write_bytes(b"\x0a\x00")
    (tmp_path / "module_0003.cut.after_optimizations.hlo.pb").write_bytes(b"\x0a\x7f\x00")
    assert dump.read(str(tmp_path)) == (module, assignment)


@pytest.mark.parametrize("name", [None, "there is none"])
def test_no_dump_is_no_error(tmp_path, name):
    assert dump.read(str(tmp_path / name if name else tmp_path)) == (b"", b"")


def tpu_executable(fun, args, folder):
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    chips = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
    on = NamedSharding(Mesh(np.array(chips[:1]), ("chip",)), PartitionSpec())
    args = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=on) for a in args]
    compiled = jax.jit(fun).lower(*args).compile(compiler_options=dump.flags(folder))
    return compiled.runtime_executable()


@pytest.mark.tpu
def test_what_is_live_is_libtpus_own_peak(tmp_path, monkeypatch):
    for name, value in {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}.items():
        monkeypatch.setenv(name, value)
    args = f32(2, 1024, 1024), f32(65536, 1024)
    executable = tpu_executable(jax.value_and_grad(scanned), args, str(tmp_path))
    memory = executable.get_compiled_memory_stats()
    live = buffers(*dump.read(str(tmp_path)), "tpu")
    assert live.nbytes == pytest.approx(memory.peak_memory_in_bytes, abs=8192)
    assert "f32[2,65536,1024]" in {buffer.shape for buffer in live.buffers}


def test_values_are_followed_through_asynchronous_computations():
    """XLA:GPU of jaxlib 0.12 stacks up a loop's residuals in them."""
    whole, part = Shape("f32", (8, 4), 32), Shape("f32", (4,), 32)
    started = Shape(elements=(Shape(elements=(whole, part)), whole))
    entry = (
        Instruction(1, "parameter", whole),
        Instruction(2, "sine", part, op_name="jit(f)/sin", file="f.py", line=3),
        Instruction(3, "async-start", started, (1, 2), (20,)),
        Instruction(4, "async-done", whole, (3,), (20,)),
    )
    inside = (
        Instruction(11, "parameter", whole),
        Instruction(12, "parameter", part, index=1),
        Instruction(13, "dynamic-update-slice", whole, (11, 12)),
    )
    read = HloModule({10: entry, 20: inside}, {10: 4, 20: 13}, 10)
    assert buffers_module._Producers(read).of(4, ()).opcode == "sine"
    found = buffers_module._Lifetimes(read, frozenset({(1, ()), (2, ()), (13, ())}))
    assert found.last[13, ()] == found.end  # it is what the program returns
    assert found.last[2, ()] < found.end
