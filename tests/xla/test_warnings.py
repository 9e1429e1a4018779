"""What compilers say of memory: texts seen in runs, modules, and compiles that provoke them."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import fake_compilers
import jax
import pytest

from jaxresid.xla import stderr
from jaxresid.xla.hlo.warnings import messages
from jaxresid.xla.job import CompilerMessage, Job, LoweredModule
from jaxresid.xla.places import parse_place
from jaxresid.xla.processes.process import execute
from tests.where import ROOT

# XLA:CPU and XLA:GPU of jaxlib 0.10.2, and libtpu 0.0.52, but for the line's number.
RESHARDING = (
    "W1122 23:52:21.955149   21338 spmd_partitioner.cc:656] [SPMD] Involuntary full"
    " rematerialization. The compiler cannot go from sharding {devices=[2,1,4]<=[8]} to"
    " {devices=[1,8,1]<=[2,4]T(1,0)} efficiently for HLO operation %sharding_constraint.0 ="
    " f32[4,64,8]{2,1,0} copy(%sin.0), sharding={devices=[2,1,4]<=[8]},"
    ' metadata={op_name="jit(f)/jvp()/sharding_constraint" stack_frame_id=3}. As the last resort,'
    " SPMD will replicate the tensor and then partition it to obtain the target sharding, which is"
    " inefficient. This issue will be fixed by Shardy partitioner in the future, which is tracked"
    " in b/433785288. Contact Shardy or XLA team for help."
)
# jaxlib 0.12.0.1.
BY_MESH = (
    RESHARDING.replace("{devices=[2,1,4]<=[8]}", "{mesh['a'=2,'b'=4], [{'a'}, {}, {'b'}]}")
).replace("{devices=[1,8,1]<=[2,4]T(1,0)}", "{mesh['a'=2,'b'=4], [{}, {'b', 'a'}, {}]}")
# The words of XLA's source before 2025; jax 0.7.0 has them, but did not say them in any run here.
EARLIER = (
    "2024-03-06 18:29:46.8: E external/xla/xla/service/spmd/spmd_partitioner.cc:630] [spmd]"
    " Involuntary full rematerialization. The compiler was not able to go from sharding"
    " {devices=[2,1,4]<=[8]} to {devices=[1,8,1]<=[8]} without doing a full rematerialization of"
    " the tensor for HLO operation: %copy.1 = bf16[4,64,8]{2,1,0} copy(%p), sharding={replicated},"
    ' metadata={op_name="jit(f)/mul" source_file="model.py" source_line=12}. You probably want to'
    " enrich the sharding annotations to prevent this from happening."
)
# XLA:GPU of jaxlib 0.10.2 and 0.12.0.1 for an H100.
LIMIT = (
    "W1123 00:02:41.444720   29854 hlo_rematerialization.cc:3231] Can't reduce memory use below"
    " 58.38GiB (62691037697 bytes) by rematerialization; only reduced to 58.88GiB (63216550352"
    " bytes), down from 112.88GiB (121198608832 bytes) originally"
)
# XLA:CPU of jaxlib 0.12.0.1.
FFT = (
    "W1123 00:05:10.851076     316 fft_handler.cc:363] [SPMD] Falling back to replicated execution"
    " for tiled FFT operation fft.2: the operand rank is less than 3. This may introduce all-gather"
    " communication and duplicate FFT computation. Operation: %fft.2 = c64[8,64]{1,0}"
    " fft(%sharding_constraint.0), fft_type=FFT, fft_length={64}, sharding={mesh['a'=8], [{},"
    " {'a'}]}, metadata={op_name=\"jit(f)/jit(fft)/fft\" stack_frame_id=3}"
)
# libtpu 0.0.52.
ON_HOST = (
    'W1123 00:05:22.790537     670 host_offloader.cc:301] Found an instruction ("mul.3") which does'
    " device compute in host memory space. Converting into host compute. This is likely to have a"
    " very slow execution time. If you're using JAX, use device_put() to move the inputs to the"
    " device so that computation happens on the device."
)
OTHERS = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795391788.451761   24617 cudart_stub.cc:31] Could not find cuda drivers on your machine
W1123 00:00:00.719852   27851 tpu_spmd_partitioner.cc:461] Collective matmul V1 is enabled.
W1123 00:02:36.670274   28015 lowering_emitter.cc:7574] Compilation used more than one overlay.
\x1b[31m Can't reduce memory use below nothing
"""


def wire(**fields):
    """A message of protocol buffers, of the numbers of its fields: `_3=...`."""
    data = b""
    for name, values in fields.items():
        number = int(name[1:])
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, int):
                data += varint(number << 3) + varint(value)
            else:
                value = value.encode() if isinstance(value, str) else value
                data += varint(number << 3 | 2) + varint(len(value)) + value
    return data


def varint(n):
    data = b""
    while n > 0x7F:
        data, n = data + bytes([n & 0x7F | 0x80]), n >> 7
    return data + bytes([n])


F32 = 11
FRAMES = wire(
    _1=["model.py"],
    _3=[wire(_1=1, _3=line) for line in (5, 6, 7)],
    _4=[wire(_1=n) for n in (1, 2, 3)],
)


def instruction(number, name, opcode, *, frame=0, op_name="", called=()):
    metadata = wire(_2=op_name, _15=frame)
    shape = wire(_2=F32, _3=[4, 8])
    return wire(_1=name, _2=opcode, _3=shape, _7=metadata, _35=number, _38=list(called))


def module(*entry, fused=()):
    bodies = [wire(_2=list(body), _5=n) for n, body in ((1, entry), (2, fused)) if body]
    return wire(_3=bodies, _6=1, _17=FRAMES)


@pytest.mark.parametrize("text", [RESHARDING, BY_MESH])
def test_an_array_that_cannot_be_split_another_way(text):
    (found,) = messages(text, module(instruction(1, "a", "copy")))
    held, _, wanted = (
        text.partition("from sharding ")[2].partition(" efficiently")[0].partition(" to ")
    )
    assert found == CompilerMessage(
        kind="resharding",
        said=f"cannot go from sharding {held} to {wanted}",
        nbytes=4 * 8 * 64 * 32,
        shape="f32[8,64,32]",
        op_name="jit(f)/jvp()/sharding_constraint",
        file="model.py",
        line=7,
    )


def test_the_earlier_words_and_a_file():
    (found,) = messages(EARLIER)
    assert (found.kind, found.shape, found.nbytes) == (
        "resharding",
        "bf16[8,64,32]",
        2 * 8 * 64 * 32,
    )
    assert (found.op_name, found.file, found.line) == ("jit(f)/mul", "model.py", 12)


@pytest.mark.parametrize("without", [module(instruction(1, "a", "copy")), b"", b"\xff"])
def test_a_line_that_is_not_known(without):
    (found,) = messages(RESHARDING, without, numbers_frames=False)
    assert (found.op_name, found.file) == ("jit(f)/jvp()/sharding_constraint", "")


def test_the_line_of_an_op_name():
    text = RESHARDING.replace(" stack_frame_id=3", "")
    name = "jit(f)/jvp()/sharding_constraint"
    one = instruction(1, "a", "copy", frame=2, op_name=name)
    assert [m.line for m in messages(text, module(one))] == [6]
    another = instruction(2, "b", "copy", frame=1, op_name=name)
    assert [m.line for m in messages(text, module(one, another))] == [0]


@pytest.mark.parametrize(
    ("sharding", "shape"),
    [
        ("{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}", "f32[8,64,8]"),
        ("{devices=[2,1,4]0,1,2,3,4,5,6,7}", "f32[8,64,32]"),
        ("{mesh['a'=2,'b'=4], [{'a':(1)2, ?}, {}, {'b':(2)2}], replicated={'c'}}", "f32[8,64,16]"),
        ("{replicated}", ""),
        ("{something else}", ""),
    ],
)
def test_the_whole_array(sharding, shape):
    (found,) = messages(RESHARDING.replace("{devices=[2,1,4]<=[8]} to", f"{sharding} to"))
    assert found.shape == shape
    assert (found.nbytes is None) == (shape == "")


def test_a_limit():
    (found,) = messages(LIMIT)
    assert found.said == LIMIT.partition("] ")[2]
    assert (found.kind, found.nbytes, found.limit_nbytes) == (
        *("memory-limit", 63216550352, 62691037697),
    )
    assert messages(LIMIT.replace("(6269", "(-6269"))[0].limit_nbytes == 0


def test_an_operation_done_whole():
    (found,) = messages(FFT)
    assert found.said == (
        "Falling back to replicated execution for tiled FFT operation fft.2: the operand rank is"
        " less than 3"
    )
    assert (found.kind, found.nbytes, found.op_name) == (
        *("replicated", 8 * 8 * 64, "jit(f)/jit(fft)/fft"),
    )


def test_an_operation_on_the_host():
    (found,) = messages(ON_HOST, module(instruction(1, "mul.3", "multiply", frame=2, op_name="f")))
    assert (found.kind, found.op_name, found.file, found.line) == (
        *("host-compute", "f", "model.py", 6),
    )


def test_equal_ones_are_counted():
    found = messages("\n".join([RESHARDING, LIMIT, RESHARDING]))
    assert [(m.kind, m.count) for m in found] == [("resharding", 2), ("memory-limit", 1)]


def test_the_rest_is_ignored():
    assert messages(OTHERS) == ()
    assert messages("") == ()
    assert len(messages("\n".join([OTHERS, LIMIT, OTHERS]))) == 1


def test_what_is_computed_twice():
    made = module(
        instruction(1, "fusion.18.remat", "fusion", frame=2, op_name="f/dot", called=[2]),
        instruction(2, "fusion.19.remat2.1", "fusion", frame=2, op_name="f/dot"),
        instruction(3, "gte.remat", "get-tuple-element", frame=2),
        instruction(4, "remat.1", "add", frame=2),
        fused=[instruction(5, "add.remat", "add", frame=1)],
    )
    (found,) = messages("", made)
    assert found == CompilerMessage(
        kind="recomputed",
        count=2,
        said="fusion.18.remat",
        nbytes=2 * 4 * 8 * 4,
        shape="f32[4,8]",
        op_name="f/dot",
        file="model.py",
        line=6,
    )


def test_standard_error_that_is_no_file():
    for target in (subprocess.PIPE, subprocess.DEVNULL):
        code = "from jaxresid.xla import stderr; import os; os.write(2, b'a'); n = stderr.length()"
        code += "; print(n, repr(stderr.since(0)))"
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=target,
            check=True,
            cwd=ROOT,
        )
        assert done.stdout.decode() == "0 ''\n"


def test_standard_error_that_is_a_file(tmp_path):
    code = "from jaxresid.xla import stderr; import os; os.write(2, b'before'); n = stderr.length()"
    code += "; os.write(2, b'after\\xff'); print(stderr.since(n))"
    with open(tmp_path / "log", "w+b") as log:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=log, check=True, cwd=ROOT
        )
    assert done.stdout.decode() == "after\ufffd\n"
    assert stderr.since(1 << 60) == ""


# Compiled by a child, which a user's own logging level does not silence.
TWO_SPLITS = """
import pickle, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxresid import jax_compat

jax.config.update("jax_num_cpu_devices", 8)
mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))

def split(x, *axes):
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))

def loss(x):
    y = split(jnp.sin(x), "a", None, "b")
    z = split(jnp.cos(y), *TO)
    return (z * z).sum()

x = jax.ShapeDtypeStruct((8, 64, 32), jnp.float32, sharding=NamedSharding(mesh, P("a")))
lowered = jax.jit(jax.grad(loss)).lower(x)
sys.stdout.buffer.write(pickle.dumps(jax_compat.bytecode(lowered)))
"""


def two_splits(tmp_path, to):
    """The job of a program that splits an array over eight devices in two ways."""
    file = tmp_path / "two_splits.py"
    file.write_text(TWO_SPLITS.replace("TO)", f"{to})"))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, file], stdout=subprocess.PIPE, env=environment, check=True
    )
    code, devices = pickle.loads(done.stdout)
    return Job(LoweredModule(code, "cpu", devices), parse_place("cpu"))


@pytest.mark.integration
def test_two_splits_of_one_array(tmp_path, monkeypatch, capfd):
    if jax.version.__version_info__ < (0, 8):
        pytest.skip("XLA:CPU of jaxlib 0.7.0 converts this split without a word")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    found = execute(two_splits(tmp_path, '(None, ("b", "a"), None)'))
    assert found.error is None
    assert [(m.kind, m.count, m.shape, m.nbytes) for m in found.messages] == [
        ("resharding", 1, "f32[8,64,32]", 65536)
    ] * 2
    if jax.version.__version_info__ >= (0, 9):
        where = [(Path(m.file).name, m.line) for m in found.messages]
        assert where == [("two_splits.py", 11), ("two_splits.py", 15)]
    else:
        assert {m.file for m in found.messages} == {""}
    assert capfd.readouterr() == ("", "")


@pytest.mark.tpu
def test_two_splits_of_one_array_on_a_tpu(tmp_path):
    job = two_splits(tmp_path, '(None, ("b", "a"), None)')
    module = LoweredModule(job.module.code, "tpu", 8)
    found = execute(Job(module, parse_place("tpu:v5e:2x4")))
    assert [(m.kind, m.shape) for m in found.messages] == [("resharding", "f32[8,64,32]")] * 2
    assert [m.line for m in found.messages] == [11, 15]


def test_a_process_that_dies(capfd):
    found = execute(fake_compilers.job(LIMIT.encode()), compiler="fake_compilers:warns_and_dies")
    assert found.error.startswith("SIGABRT")
    assert [m.kind for m in found.messages] == ["memory-limit"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.integration
def test_one_split_of_one_array(tmp_path):
    found = execute(two_splits(tmp_path, '("a", None, "b")'))
    assert (found.error, found.messages) == (None, ())
