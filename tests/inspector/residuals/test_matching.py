import os
from dataclasses import replace

import jax.numpy as jnp
import pytest
from small import f32

from jaxresid.inspector import report
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.residuals.matching import matched
from jaxresid.inspector.trace.lowering import lowered
from jaxresid.model import Argument, Aval, Computed, Location, Residual, Source
from jaxresid.xla import compiler
from jaxresid.xla.job import Job, PeakBuffer
from jaxresid.xla.places import parse_place
from tests.xla.test_buffers import looped, scanned

FILE = os.path.abspath("model.py")
SIN = "jit(f)/jvp()/while/body/sin"


def residual(primitive="sin", shape=(8, 4), *, dtype="float32", line=7, trips=1, **origin):
    aval = Aval(dtype, shape, jnp.dtype(dtype).itemsize)
    place = Location(FILE, line, None, "layer", "x = jnp.sin(x)")
    return Residual(aval, Computed(primitive, Source(place), **origin), trips)


def buffer(shape="f32[8,4]", op_name=SIN, *, line=7, kind="temporary", nbytes=128):
    return PeakBuffer(kind, nbytes, shape, "sine", op_name, FILE, line)


def test_a_residual_is_found_with_its_line_and_code():
    kept = residual()
    (row,), nbytes = matched([buffer()], [kept])
    assert (row.residual, row.location, row.count) == ("sin", kept.origin.location, 1)
    assert nbytes == row.nbytes == 128


def test_no_line_of_ours_is_taken_for_the_users():
    ours = replace(buffer(), file=report.__file__)
    (row,), _ = matched([ours], [])
    assert row.location is None


@pytest.mark.parametrize(
    ("held", "kept"),
    [
        (buffer("f32[4,8]"), residual()),  # another layout
        (buffer("f32[32]"), residual()),  # merged axes
        (buffer("bf16[8,4]"), residual()),  # a TPU before a dot
        (buffer("f32[8,4]"), residual(dtype="bfloat16")),  # XLA:CPU
        (buffer("f32[3,8,4]", line=0), residual(shape=(3, 8, 4), trips=3)),  # stacked by a loop
        (buffer("pred[8,4]"), residual(dtype="bool")),
        (buffer("f8e4m3fn[8,4]"), residual(dtype="float8_e4m3fn")),
        (buffer(op_name="jit(f)/jvp()/transpose"), residual(through=("transpose",))),
        (buffer(op_name="jit(f)/jvp()/transpose", line=9), residual(through=("transpose",))),
        (buffer(op_name="jit(f)/jvp()/mul"), residual("one_minus_square")),
        (buffer(op_name="jit(f)/jvp()/name;jit(f)/jvp()/sin"), residual()),
        (buffer(), residual(line=3, stack=(Location(FILE, 7, None, "f"),))),
        (buffer("f32[8,4]", "jit(f)/jvp()/sin"), residual(shape=(3, 8, 4), trips=3)),  # unrolled
        (buffer("f32[2,4]"), replace(residual(), aval=Aval("float32", (8, 4), 4, shard=(2, 4)))),
    ],
)
def test_what_a_compiler_may_change(held, kept):
    (row,), nbytes = matched([held], [kept])
    assert row.residual == kept.origin.primitive
    assert nbytes == held.nbytes


@pytest.mark.parametrize(
    ("held", "kept"),
    [
        (buffer(line=8), residual()),
        (buffer("f32[8,5]"), residual()),
        (buffer("s32[8,4]"), residual()),
        (buffer(op_name="jit(f)/jvp()/cos"), residual()),
        (buffer(op_name="jit(f)/transpose(jvp())/while/body/sin"), residual()),
        (buffer(op_name="jit(f)/checkpoint/rematted_computation/sin"), residual()),
        (buffer("f32[2,8,4]"), residual()),
        (buffer("f32[8,4]"), replace(residual(), aval=Aval("float32", (8, 4), 4, shard=(2, 4)))),
        (buffer("f32[8,4]", ""), residual()),
        (buffer("", SIN), residual()),
        (buffer(kind="constant"), residual()),
    ],
)
def test_what_is_something_else(held, kept):
    (row,), nbytes = matched([held], [kept])
    assert (row.residual, nbytes) == (None, 0)


def test_a_residual_is_held_once():
    rows, nbytes = matched([buffer()] * 3, [residual(), residual()])
    assert [(row.residual, row.count, row.nbytes) for row in rows] == [
        ("sin", 2, 256),
        (None, 1, 128),
    ]
    assert nbytes == 256


def test_the_surest_match_is_taken_first():
    rows, _ = matched([buffer("f32[4,8]"), buffer()], [residual()])
    assert {row.shape: row.residual for row in rows} == {"f32[4,8]": None, "f32[8,4]": "sin"}


def test_a_name_says_more_than_a_primitive():
    (row,), _ = matched([buffer()], [residual(name="activation")])
    assert row.residual == "activation"


def test_arguments_and_outputs_are_what_they_are():
    argument = PeakBuffer("argument", 64, "f32[16]", "parameter", "operands[1]")
    output = PeakBuffer("output", 32, "f32[8]", "dot", "jit(f)/transpose(jvp())/dot_general")
    on_host = PeakBuffer("argument", 8, "f32[2]", "parameter", "operands[0]", memory="host")
    held = (argument, output, on_host)
    kept = Residual(Aval("float32", (16,), 4), Argument("w"))
    rows, nbytes = matched(held, [kept], ("x", "w"))
    assert [(row.kind, row.residual, row.memory) for row in rows] == [
        ("argument", "w", "device"),
        ("output", None, "device"),
        ("argument", "x", "host"),
    ]
    assert nbytes == 96
    assert [row.residual for row in matched(held, [kept])[0]] == [None, None, None]


def on_cpu(fun):
    args = f32(6, 128, 128), f32(512, 128)
    subject = report.subject(Question(fun, args))
    residuals = subject.residuals
    compilation = compiler.compilation(Job(lowered(subject.trace, "cpu"), parse_place("cpu")))
    rows, nbytes = matched(compilation.buffers, residuals)
    kept = [r for r in residuals if r.origin.kind == "computed" and r.aval.shape[-2:] == (512, 128)]
    return rows, kept, nbytes / compilation.live_nbytes


def test_what_a_loop_stacks_is_kept():
    rows, kept, share = on_cpu(scanned)
    (cosine,) = (row for row in rows if row.residual == "cos")
    assert (cosine.shape, cosine.nbytes) == ("f32[6,512,128]", 6 * 512 * 128 * 4)
    assert cosine.location in {r.origin.location for r in kept}
    assert {row.residual for row in rows} - {None} <= {r.origin.primitive for r in kept}
    assert share > 0.75


@pytest.mark.integration
def test_what_xla_computes_again_is_not_taken_for_kept():
    """Of an unrolled layer XLA:CPU keeps the dot, from which the backward pass gets the cosine."""
    rows, _, share = on_cpu(looped)
    held = {row.opcode: row for row in rows if row.shape == "f32[512,128]"}
    assert held["dot"].residual is None
    assert "cos" not in {row.residual for row in rows}
    assert 0.2 < share < 0.9
