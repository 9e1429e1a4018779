import linecache
import os
import sysconfig
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from small import f32

from jaxresid.inspector import report
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.residuals.matching import matched
from jaxresid.inspector.trace.lowering import lowered
from jaxresid.results import Argument, Aval, Computed, Location, Residual, Source
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


LIBRARY = os.path.join(sysconfig.get_paths()["purelib"], "layers", "dense.py")


def dense(scope, line):
    """A residual that a library's line makes, in a layer that the user's line calls."""
    here, there = Location(FILE, line, None, "loss"), Location(LIBRARY, 294, None, "Dense")
    origin = Computed("add", Source(here, there, None, scope), stack=(here, there))
    return Residual(Aval("float32", (8, 4), 4), origin)


def logits(callers=(), scope="model/out"):
    name = f"jit(f)/jvp({scope.replace('/', ')/', 1)}/add"
    return PeakBuffer("temporary", 128, "f32[8,100]", "add", name, LIBRARY, 294, callers=callers)


def test_a_librarys_line_is_of_the_user_who_called_it():
    """Of a line that one residual is made through too, on another line of the user's."""
    called = logits(((LIBRARY, 12), (FILE, 43), (FILE, 50)))
    (row,), _ = matched([called], [dense("model/block_0/in", 25)])
    assert (row.location.file, row.location.line) == (FILE, 43)
    assert (row.source.library.line, row.source.scope) == (294, "model/out")


def test_an_unknown_caller_is_told_by_the_scope():
    kept = dense("model/block_0/in", 25)
    for scope, line in (("model/out", 294), ("model/block_3/in", 25), ("", 25)):
        (row,), _ = matched([logits(scope=scope)], [kept])
        assert row.location.line == line, scope


@pytest.mark.integration
def test_lines_of_one_layer_that_is_called_twice():
    """By XLA: the widest value is not kept, and is of another line than what is kept."""
    flax = pytest.importorskip("flax.linen")

    class Model(flax.Module):
        @flax.compact
        def __call__(self, x):
            x = jnp.sin(flax.Dense(64)(x))
            return flax.Dense(4096)(x)

    model = Model()
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((256, 64)))
    question = Question(
        lambda p, x: jnp.sum(jax.nn.logsumexp(model.apply(p, x), -1)), (params, f32(256, 64))
    )
    subject = report.subject(question)
    job = Job(lowered(subject.trace, "cpu"), parse_place("cpu"))
    rows, _ = matched(compiler.compilation(job).buffers, subject.residuals)
    wide = [row for row in rows if row.shape == "f32[256,4096]" and "Dense_1" in row.source.scope]
    (line,) = {(row.location.file, row.location.line) for row in wide}
    assert linecache.getline(*line).strip() == "return flax.Dense(4096)(x)"


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
