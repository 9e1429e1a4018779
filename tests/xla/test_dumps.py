"""Dumps as text hold what dumps as protos hold, and what executables tell."""

import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from jaxresid.xla.hlo.buffers import buffers
from jaxresid.xla.hlo.text import module_of_text
from jaxresid.xla.hlo.wire import Message
from jaxresid.xla.logs.dumps import read_dump
from tests import where

DUMPS, PROTOS = where.DATA / "dumps", where.DATA / "xla"
GIB = 2**30


def alike(found):
    return [(b.kind, b.nbytes, b.shape, b.opcode, b.op_name, b.memory) for b in found]


def test_the_text_of_libtpu_says_what_its_proto_says():
    """The same program was dumped both ways."""
    message = Message.read((PROTOS / "scan_exhausted.hlo.pb").read_bytes())
    live = buffers(message.data(1), message.data(3), "tpu")
    found, count = read_dump(DUMPS / "tpu")
    assert count == 1
    assert found.required_nbytes == live.allocated_nbytes
    assert alike(found.buffers)[:2] == alike(live.buffers)[:2]
    assert sum(b.nbytes for b in found.buffers) == sum(b.nbytes for b in live.buffers)


def test_a_tpu_that_ran_out():
    found, _ = read_dump(DUMPS / "tpu")
    assert (found.platform, found.phase, found.program) == ("tpu", "compile", "jit_loss")
    assert found.device == "tpu:v5e"
    assert found.capacity_nbytes == round(15.75 * GIB)
    first = found.buffers[0]
    assert (first.nbytes, first.opcode, first.line) == (12 * GIB, "cosine", 9)
    assert first.file == "/home/me/model.py"


def test_a_gpu():
    found, _ = read_dump(DUMPS / "gpu")
    assert (found.platform, found.phase, found.device) == ("gpu", "", "gpu:h100")
    assert round(found.required_nbytes / GIB, 2) == 29.63
    assert [b.nbytes for b in found.buffers[:2]] == [12 * GIB, 12 * GIB]
    assert {b.op_name.rpartition("/")[2] for b in found.buffers[:2]} == {"sin", "cos"}
    parts = found.parts
    assert parts.argument_nbytes == round(1.75 * GIB)
    assert parts.argument_nbytes + parts.output_nbytes + parts.temp_nbytes == pytest.approx(
        found.required_nbytes, abs=1000
    )


DUMP = """
import os, sys
os.environ["XLA_FLAGS"] = f"--xla_dump_to={sys.argv[1]} " + " ".join(sys.argv[2:])
import jax, jax.numpy as jnp

def loss(w, x):
    def layer(x, w):
        return jnp.sin(x @ w), None
    return jnp.sum(jax.lax.scan(layer, x, w)[0] ** 2)

made = jax.jit(jax.value_and_grad(loss)).lower(jnp.ones((3, 64, 64)), jnp.ones((256, 64))).compile()
stats = made.memory_analysis()
print(stats.argument_size_in_bytes, stats.temp_size_in_bytes)
"""


@pytest.mark.integration
def test_this_jax_dumps_the_same_both_ways(tmp_path, jax_version):
    run = [sys.executable, "-c", DUMP]
    told = subprocess.run([*run, str(tmp_path / "text")], check=True, capture_output=True)
    proto = [*run, str(tmp_path / "proto"), "--xla_dump_hlo_as_proto"]
    subprocess.run(proto, check=True, capture_output=True)
    for file in (tmp_path / "proto").glob("*-buffer-assignment.txt"):
        file.unlink()
    text, _ = read_dump(tmp_path / "text")
    as_proto, _ = read_dump(tmp_path / "proto")
    if jax_version < (0, 8):  # text dumps of jaxlib 0.7.0 have no stack frames
        assert not any(buffer.callers for buffer in text.buffers)
        buffers = tuple(replace(buffer, callers=()) for buffer in as_proto.buffers)
    else:
        buffers = as_proto.buffers
    assert text.buffers == buffers
    assert (text.parts, text.required_nbytes) == (as_proto.parts, as_proto.required_nbytes)
    arguments, temporaries = map(int, told.stdout.split())
    assert (text.program, text.platform) == ("jit_loss", "cpu")
    assert text.parts.argument_nbytes == arguments
    assert text.parts.temp_nbytes == temporaries


@pytest.mark.parametrize("cut", [0, 50, 3000, 9000, 20000])
def test_a_dump_that_is_not_whole(tmp_path, cut):
    shutil.copytree(DUMPS / "gpu", tmp_path, dirs_exist_ok=True)
    (file,) = tmp_path.glob("*gpu_after_optimizations.txt")
    file.write_text(file.read_text()[:cut])
    assert read_dump(tmp_path)[0] is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "HloModule m\n",
        "HloModule m\n\nENTRY %main () -> f32[] {\n  ROOT %x = " + "(" * 500 + "\n}\n",
        "HloModule m\n\nENTRY %main () -> f32[] {\n  ROOT %x = f32[" + "9" * 6000 + "] a()\n}\n",
    ],
)
def test_what_is_no_module(text):
    with pytest.raises(ValueError, match=r"."):
        module_of_text(text)


def test_operands_with_their_shapes_and_elements_without_an_instruction():
    text = """HloModule m, is_scheduled=true

ENTRY %main (a: (f32[4], s32[])) -> f32[4] {
  %a = (f32[4]{0:T(8)S(5)}, /*index=1*/s32[]) parameter(0)
  ROOT %b = f32[4]{0} negate(f32[4]{0} %a#0), metadata={op_name="jit(f)/neg" SOURCE}
}
"""
    read = module_of_text(text.replace("SOURCE", 'source_file="m.py" source_line=7'))
    a, element, b = read.computations[read.entry]
    assert (a.shape.elements[0].memory, a.index) == (5, 0)
    assert (element.opcode, element.index, element.operands) == ("get-tuple-element", 0, (a.id,))
    assert (b.operands, b.op_name, b.file, b.line) == ((element.id,), "jit(f)/neg", "m.py", 7)


def test_of_several_programs_it_is_the_one_that_needs_most(tmp_path):
    for name in ("tpu", "gpu"):
        shutil.copytree(DUMPS / name, tmp_path, dirs_exist_ok=True)
    found, count = read_dump(tmp_path)
    assert count == 2
    assert found.platform == "gpu"
    (largest,) = tmp_path.glob("*gpu*-buffer-assignment.txt")
    larger = tmp_path.joinpath(largest.name.replace("module_0001", "module_0002"))
    larger.write_text(largest.read_text().replace("size 1073741824, page", "size 1024, page"))
    (module,) = tmp_path.glob("*gpu_after_optimizations.txt")
    beside = tmp_path.joinpath(module.name.replace("module_0001", "module_0002"))
    beside.write_text(module.read_text())
    again, count = read_dump(tmp_path)
    assert count == 3
    assert again.required_nbytes == found.required_nbytes
