"""Programs over a mesh: how values are split, what one device holds, against XLA's own figures."""

import functools
import itertools
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
import sharded
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxresid
from jaxresid import jax_compat
from jaxresid.advice.timing.chips import chip_of
from jaxresid.advice.timing.roofline import seconds
from jaxresid.base.errors import InputsError
from jaxresid.cli.main import run as command_line
from jaxresid.inspector.call import splits
from jaxresid.inspector.call.arguments import arguments
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.call.sharding import Sharding
from jaxresid.inspector.memory.compilers import profile_of
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.program.build import ValueRole, program_of_jaxpr, value_and_gradients
from jaxresid.inspector.report import subject
from jaxresid.inspector.trace import meshes
from jaxresid.xla.places import parse_place
from tests.schemas import validate
from tests.stages import without_stages
from tests.where import ROOT

AXES = {"data": 4, "model": 2}
AUTO = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)


def f32(*shape, split=None, mesh=EXPLICIT):
    sharding = None if split is None else NamedSharding(mesh, P(*split))
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)


def i32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


# --- how arrays are split ---------------------------------------------------------------------


def test_a_shard_is_the_largest_piece():
    assert splits.shard((512, 7), (("data", "model"), ()), AXES) == (64, 7)
    assert splits.shard((6, 3), (("data",), ("model",)), AXES) == (2, 2)


@pytest.mark.parametrize(
    ("split", "text"),
    [
        (((), ()), ""),
        ((("data",), ()), "data"),
        (((), ("model",)), "None,model"),
        ((("data", "model"), ()), "(data,model)"),
    ],
)
def test_a_split_reads_as_in_a_spec(split, text):
    assert splits.text(split) == text


@pytest.mark.parametrize(
    ("shape", "piece", "split"),
    [
        ((8, 8), (8, 8), ((), ())),
        ((8, 8), (2, 8), (("data",), ())),
        ((8, 8), (4, 2), (("model",), ("data",))),
        ((8, 8), (1, 8), (("data", "model"), ())),
        ((8, 8), (2, 2), None),  # no axis is left for the second dim
        ((9, 8), (3, 8), None),
    ],
)
def test_a_split_is_found_from_the_shape_of_a_piece(shape, piece, split):
    assert splits.fitting(shape, piece, AXES, ((),) * len(shape)) == split


def test_a_likely_split_is_taken_if_it_fits():
    square = {"x": 2, "y": 2}
    likely = (("y",), ())
    assert splits.fitting((4, 4), (2, 4), square, likely) == likely
    assert splits.fitting((4, 4), (2, 4), square, ((), ())) == (("x",), ())


def spread(fun, args, given):
    """The split of each result, in words."""
    jaxpr = jax_compat.open_jaxpr(jax.make_jaxpr(fun)(*args))
    inputs = dict(zip(jaxpr.invars, given, strict=True))
    roles = [ValueRole("argument")] * len(jaxpr.invars), [ValueRole("output")] * len(jaxpr.outvars)
    program = program_of_jaxpr(jaxpr, *roles, sharding=Sharding(AXES, inputs))
    return [v.spec for v in program.block.outputs]


D, M, W = ("data",), ("model",), ()


@pytest.mark.parametrize(
    ("fun", "args", "given", "expected"),
    [
        (lambda x: jnp.sin(x) + 1, [f32(8, 4)], [(D, M)], ["data,model"]),
        (lambda x: x.T, [f32(8, 4)], [(D, M)], ["model,data"]),
        (lambda x: x.sum(0), [f32(8, 4)], [(D, M)], ["model"]),
        (lambda x: x.argmax(1), [f32(8, 4)], [(D, M)], ["data"]),
        (lambda x: x.reshape(8, 2, 2), [f32(8, 4)], [(D, M)], ["data,model"]),
        (lambda x: x.reshape(32), [f32(8, 4)], [(D, W)], ["data"]),
        (lambda x: x.reshape(1, 8, 4), [f32(8, 4)], [(W, M)], ["None,None,model"]),
        (lambda x: x.reshape(3, 4), [f32(12)], [(D,)], [""]),  # 3 cannot be split by 4
        (lambda x: x[None] * jnp.ones((3, 8)), [f32(8)], [(D,)], ["None,data"]),
        (lambda x: jnp.concatenate([x, x], 1), [f32(8, 4)], [(D, M)], ["data"]),
        (lambda x: x[:, 1:3], [f32(8, 4)], [(D, M)], ["data"]),
        (lambda x: jnp.cumsum(x, 0), [f32(8, 4)], [(W, M)], ["None,model"]),
        (lambda x, y: x @ y, [f32(8, 4), f32(4, 6)], [(D, W), (W, M)], ["data,model"]),
        # What is contracted is gone; of two wishes for one axis the larger array's counts.
        (lambda x, y: x @ y, [f32(8, 4), f32(4, 6)], [(W, M), (M, W)], [""]),
        (lambda x, y: x @ y, [f32(64, 4), f32(4, 8)], [(D, W), (W, D)], ["data"]),
        (lambda x, y: x @ y, [f32(8, 4), f32(4, 64)], [(D, W), (W, D)], ["None,data"]),
        (
            lambda x, y: jnp.einsum("bik,bkj->bij", x, y),
            [f32(8, 4, 2), f32(8, 2, 6)],
            [(D, W, W), (W, W, M)],
            ["data,None,model"],
        ),
        (lambda t, i: t[i], [f32(64, 8), i32(4, 6)], [(W, M), (D, W)], ["data,None,model"]),
        (lambda t, i: t.at[i].add(1.0), [f32(64, 8), i32(4)], [(W, M), (D,)], ["None,model"]),
        (
            lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME"),
            [f32(8, 3, 9, 9), f32(4, 3, 3, 3)],
            [(D, W, W, W), (M, W, W, W)],
            ["data,model"],
        ),
        (
            lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
            [f32(8, 4)],
            [(D, M)],
            ["data,model"],
        ),
        (
            lambda x, w: jax.lax.scan(lambda c, w: (jnp.sin(c @ w), c), x, w),
            [f32(8, 4), f32(3, 4, 4)],
            [(D, W), (W, W, W)],
            ["data", "None,data"],
        ),
        (
            lambda x, w: jax.lax.scan(lambda c, w: (c, jnp.sin(w)), x, w)[1],
            [f32(2), f32(3, 8, 4)],
            [(W,), (W, D, M)],
            ["None,data,model"],
        ),
        (
            lambda x: jax.lax.while_loop(lambda c: c[0, 0] < 1, lambda c: c + 1, x),
            [f32(8, 4)],
            [(D, M)],
            ["data,model"],
        ),
        (jax.jit(lambda x: jnp.tanh(x) * 2), [f32(8, 4)], [(D, M)], ["data,model"]),
        # An argument stays as it is, and does not hand on what others wish of it.
        (
            lambda x, y: (x + y, y * 2),
            [f32(8, 4), f32(8, 4)],
            [(D, M), (W, W)],
            ["data,model", ""],
        ),
        # Backwards: what nothing else splits goes the way of its reader.
        (
            lambda w, x, y: w - x.T @ y,
            [f32(8, 4), f32(16, 8), f32(16, 4)],
            [(D, M), (W, W), (W, W)],
            ["data,model"],
        ),
    ],
)
def test_splits_spread(fun, args, given, expected):
    assert spread(fun, args, given) == expected


def test_the_inputs_stay_as_they_are_split():
    def fun(x, y):
        return x + y

    jaxpr = jax_compat.open_jaxpr(jax.make_jaxpr(fun)(f32(8, 4), f32(8, 4)))
    given = dict(zip(jaxpr.invars, [(D, W), (W, W)], strict=True))
    roles = [ValueRole("argument")] * 2, [ValueRole("output")]
    program = program_of_jaxpr(jaxpr, *roles, sharding=Sharding(AXES, given))
    assert [v.shape for v in program.block.inputs] == [(2, 4), (8, 4)]


def test_a_shape_that_the_compiler_told_is_taken():
    jaxpr = jax_compat.open_jaxpr(jax.make_jaxpr(lambda x: jnp.sin(jnp.cos(x)))(f32(8, 4)))
    inner = jaxpr.eqns[0].outvars[0]
    given = {jaxpr.invars[0]: (W, W)}
    sharding = Sharding(AXES, given, {inner: (8, 2)})
    program = program_of_jaxpr(
        jaxpr, [ValueRole("argument")], [ValueRole("output")], sharding=sharding
    )
    assert program.values[inner].shape == (8, 2)
    assert [v.shape for v in program.block.outputs] == [(8, 2)]


def test_the_compiler_splits_what_a_constraint_leaves_open():
    open_rows = NamedSharding(AUTO, P(P.UNCONSTRAINED, "model"))

    def fun(x):
        return jnp.sin(jax.lax.with_sharding_constraint(jnp.cos(x), open_rows))

    jaxpr = jax_compat.open_jaxpr(jax.make_jaxpr(fun)(f32(8, 4)))
    inner = jaxpr.eqns[0].outvars[0]
    sharding = Sharding(AXES, {jaxpr.invars[0]: (D, W)}, {inner: (2, 2)})
    program = program_of_jaxpr(
        jaxpr, [ValueRole("argument")], [ValueRole("output")], sharding=sharding
    )
    assert program.values[inner].spec == "data,model"
    assert [v.shape for v in program.block.outputs] == [(2, 2)]


def constrained(x, *split):
    return jax.lax.with_sharding_constraint(x, NamedSharding(AUTO, P(*split)))


def of_one_device(fun, args, given):
    """The ops of one device, each with how its operands and results are split."""
    jaxpr = jax_compat.open_jaxpr(jax.make_jaxpr(fun)(*args))
    inputs = dict(zip(jaxpr.invars, given, strict=True))
    roles = [ValueRole("argument")] * len(jaxpr.invars), [ValueRole("output")] * len(jaxpr.outvars)
    program = program_of_jaxpr(jaxpr, *roles, sharding=Sharding(AXES, inputs))

    def told(ops):
        return [
            each
            for op in ops
            for each in (
                (op.name, [v.spec for v in op.operands], [v.spec for v in op.results]),
                *(inner for body in op.bodies for inner in told(body.ops)),
            )
        ]

    return told(program.block.ops)


def test_a_constraint_on_an_argument_gathers_it():
    def fun(w):
        return jnp.sin(constrained(w)), jnp.cos(w)

    assert of_one_device(fun, [f32(8, 4)], [(D, W)]) == [
        ("all-gather", ["data"], [""]),
        ("sin", [""], [""]),
        ("cos", ["data"], ["data"]),
    ]


def test_each_constraint_is_for_those_that_read_it():
    def fun(x):
        return constrained(x, "data") * 2, constrained(x, None, "model") * 3

    assert of_one_device(fun, [f32(8, 4)], [(D, W)]) == [
        ("mul", ["data", ""], ["data"]),
        ("all-gather", ["data"], [""]),
        ("cut", [""], ["None,model"]),
        ("mul", ["None,model", ""], ["None,model"]),
    ]


def test_an_axis_that_goes_to_another_dim_is_exchanged():
    def fun(x):
        return constrained(jnp.sin(x), "model", "data")

    x = [f32(8, 8)]
    assert of_one_device(fun, x, [(D, W)])[1:] == [
        ("all-to-all", ["data"], ["None,data"]),
        ("cut", ["None,data"], ["model,data"]),
    ]
    # Nothing of it is ever whole, and what is split so already needs nothing.
    assert of_one_device(fun, x, [(M, D)]) == [("sin", ["model,data"], ["model,data"])]


def test_a_reshard_does_what_a_constraint_does():
    def loss(x):
        columns = NamedSharding(EXPLICIT, P(None, "data"))
        return jnp.sum(jax.sharding.reshard(jnp.sin(x), columns) ** 2)

    x = jax.ShapeDtypeStruct((8, 16), "float32", sharding=NamedSharding(EXPLICIT, P("data")))
    program = subject(Question(loss, (x,), on="gpu:h100:8")).program
    names = [op.name for op in program.block.ops]
    assert names.count("all-to-all") == 2  # and the way back
    assert not {"reshard", "all-gather", "cut"}.intersection(names)


def test_what_splits_more_is_cut_out():
    def fun(x):
        return jnp.sin(constrained(x, "data"))

    assert of_one_device(fun, [f32(8, 4)], [(W, W)]) == [
        ("cut", [""], ["data"]),
        ("sin", ["data"], ["data"]),
    ]


def test_a_constraint_holds_but_for_what_it_leaves_open():
    def fun(x):
        return jnp.sin(constrained(x, P.UNCONSTRAINED, "model"))

    assert of_one_device(fun, [f32(8, 4)], [(D, W)]) == [
        ("cut", ["data"], ["data,model"]),
        ("sin", ["data,model"], ["data,model"]),
    ]
    # Of the other dim it says that nothing splits it.
    assert of_one_device(
        lambda x: constrained(x, P.UNCONSTRAINED, None), [f32(8, 4)], [(D, M)]
    ) == [("all-gather", ["data,model"], ["data"])]


def test_the_dim_that_vmap_adds_is_left_open():
    def fun(x):
        return jax.vmap(lambda row: jnp.sin(constrained(row, "model")))(x)

    assert of_one_device(fun, [f32(8, 4)], [(D, W)])[0] == ("cut", ["data"], ["data,model"])


def test_what_cannot_be_split_evenly_is_refused_as_by_jax():
    x = f32(16, 12, split=(None, ("data", "model")), mesh=AUTO)
    expected = r"^x: dimension 1 of size 12 cannot be split evenly over data=4 and model=2$"
    with pytest.raises(InputsError, match=expected):
        jaxresid.inspect(lambda x: 2 * x, mode="program")(x)


def test_a_constraint_in_a_loop_is_for_each_trip():
    """And leaves what the loop goes over as it is."""

    def fun(x, ws):
        return jax.lax.scan(lambda x, w: (x @ constrained(w), None), x, ws)[0]

    found = of_one_device(fun, [f32(8, 4), f32(3, 4, 4)], [(D, W), (W, D, W)])
    assert found == [
        ("scan", ["data", "None,data"], ["data"]),
        ("all-gather", ["data"], [""]),
        ("dot_general", ["data", ""], ["data"]),
    ]


def test_a_shard_map_gets_what_it_asks_for():
    def fun(x, w):
        mapped = jax.shard_map(
            jnp.matmul, mesh=AUTO, in_specs=(P("data"), P()), out_specs=P("data")
        )
        return mapped(x, w), w * 2

    found = of_one_device(fun, [f32(8, 4), f32(4, 4)], [(D, W), (D, W)])
    assert ("all-gather", ["data"], [""]) in found
    assert found[-1] == ("mul", ["data", ""], ["data"])


def test_what_an_op_gathers_and_scatters_has_arrays_of_its_own():
    def fun(x, w, g):
        return x @ w, x.T @ g

    given = [(D, W), (D, W), (D, W)]
    found = of_one_device(fun, [f32(64, 4), f32(4, 8), f32(64, 8)], given)
    assert found[:2] == [("all-gather", ["data"], [""]), ("dot_general", ["data", ""], ["data"])]
    # The gradient of a matrix that is split is a sum over all rows, of which each keeps its part.
    assert spread(lambda w, x, g: w - x.T @ g, [f32(4, 8), f32(64, 4), f32(64, 8)], given) == [
        "data"
    ]
    found = of_one_device(lambda w, x, g: w - x.T @ g, [f32(4, 8), f32(64, 4), f32(64, 8)], given)
    assert found[1:3] == [
        ("dot_general", ["None,data", "data"], [""]),
        ("reduce-scatter", [""], ["data"]),
    ]


def test_what_is_gathered_is_gathered_once():
    def fun(x, w):
        return x @ w, (x * 2) @ w

    found = of_one_device(fun, [f32(64, 4), f32(4, 8)], [(D, W), (D, W)])
    assert [name for name, *_ in found].count("all-gather") == 1


def test_rows_that_are_looked_up_each_in_its_own_stay_split():
    def looked_up(x, i):
        return jnp.take_along_axis(x, i, 1)

    def loss(x, i):
        return looked_up(x, i).sum()

    x, i = f32(8, 16), i32(8, 2)
    given = [(D, W), (D, W)]
    for traced in (looked_up, jax.grad(loss)):
        assert not [n for n, *_ in of_one_device(traced, [x, i], given) if n == "all-gather"]


def test_a_table_is_gathered_where_it_is_smaller_than_what_is_looked_up():
    """In a larger one each device looks up what it has, and the results are added up."""

    def looked_up(rows):
        given = [(D, W), (D,)]
        return of_one_device(lambda table, i: table[i], [f32(rows, 8), i32(64)], given)

    assert looked_up(16)[-1] == ("gather", ["", "data"], ["data"])
    assert looked_up(1024)[-3:] == [
        ("all-gather", ["data"], [""]),
        ("gather", ["data", ""], [""]),
        ("reduce-scatter", [""], ["data"]),
    ]


def test_what_is_left_to_the_compiler_is_no_split():
    """And not a dim that is whole, which would be spread to others."""
    assert jax_compat.split_of(NamedSharding(AUTO, P("data")), 2) == (("data",), ())
    assert jax_compat.split_of(NamedSharding(AUTO, P(P.UNCONSTRAINED, "data")), 2) is None
    assert jax_compat.split_of(object(), 2) is None


@pytest.mark.parametrize(
    ("mesh", "state", "is_said"),
    [(AUTO, 64, True), (AUTO, 1, False), (EXPLICIT, 64, False), (None, 64, False)],
)
def test_arguments_without_a_sharding_are_said(mesh, state, is_said):
    def step(w, state, x):
        gradient = jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w)
        return w - gradient, {name: 0.9 * s for name, s in state.items()}

    split = ("data",) if mesh else None
    w, x = f32(64, 64, split=split, mesh=mesh), f32(64, 64, split=split, mesh=mesh)
    adam = {"mu": f32(state, 16), "nu": f32(state, 64), "count": f32()}
    args = (w, adam, x)
    said = meshes.unsharded_warning(arguments(Question(step, args), mesh), jax.tree.leaves(args))
    assert said == (
        "20.00 KiB of the arguments have no sharding (3 leaves, the largest state['nu']) and are"
        " counted whole on each device; jax.jit leaves their split to the compiler"
        if is_said
        else None
    )


def mapped(x):
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
    inner = jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    return jnp.sum(inner(x))


WHOLE = "the mesh data=4,model=2 splits nothing: each device has every array whole."
WRITE = " Write behind an @ what is split, such as"


@pytest.mark.parametrize(
    ("fun", "split", "words", "said"),
    [
        (jnp.sum, (), (), f"{WHOLE}{WRITE} f32[32,128]@data, or give the inputs a NamedSharding"),
        (
            jnp.sum,
            None,
            ("--arg", "f32[64, 16]"),
            f"{WHOLE} Write behind an @ what is split, such"
            " as --arg 'f32[64, 16]@data', or give the inputs a NamedSharding",
        ),
        (
            jnp.sum,
            (),
            ("--arg", "f32[63]"),
            f"{WHOLE} Write behind an @ what is split, such as f32",
        ),
        (jnp.sum, (None, "model"), (), None),
        (mapped, (), (), None),
        (jax.jit(lambda x: constrained(x, "data")), (), (), None),
    ],
)
def test_a_mesh_that_splits_nothing_is_said(fun, split, words, said):
    x = f32(64, 64, split=split, mesh=AUTO)
    call = arguments(Question(fun, (x,)), AUTO)
    jaxpr = jax.make_jaxpr(fun)(f32(64, 64)).jaxpr
    warning = meshes.unused_mesh_warning(call, [x], lambda: jaxpr, words)
    assert warning is None if said is None else warning.startswith(said)
    alone = arguments(Question(fun, (f32(64, 64),)), None)
    assert meshes.unused_mesh_warning(alone, [f32(64, 64)], lambda: jaxpr, words) is None


# --- explicit axes: exact, without devices ----------------------------------------------------


def explicit(args):
    """The shapes and splits of a case, over explicit axes of no device."""
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    return mesh, jax.tree.map(lambda a: f32(*a.shape, split=a.split, mesh=mesh), args)


def shard_nbytes(leaf):
    shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
    return jnp.dtype(leaf.dtype).itemsize * functools.reduce(int.__mul__, shape, 1)


@pytest.mark.parametrize("name", ["mlp data explicit", "scan data explicit"])
def test_residuals_are_those_of_the_types(name):
    case = next(c for c in sharded.CASES if c.name == name)
    mesh, args = explicit(case.args)
    found = jaxresid.inspect(case.under("none"), mesh=mesh)(*args)
    with jax_compat.in_mesh(mesh):
        _, vjp = jax.jit(lambda *a: jax.vjp(case.under("none"), *a)).trace(*args).out_info
    leaves = jax.tree.leaves(vjp)
    assert sorted(r.nbytes for r in found.residuals) == sorted(map(shard_nbytes, leaves))
    assert found.mesh == jaxresid.results.Mesh((("data", 8),), "explicit", "types")
    assert found.peak.arguments_nbytes == sum(map(shard_nbytes, jax.tree.leaves(args)))
    # Split eight ways, and nothing else: so is what is kept.
    assert 8 * found.totals.computed_nbytes == sum(
        r.aval.global_nbytes for r in found.residuals if r.origin.kind == "computed"
    )


def test_shardings_of_the_arguments_are_kept_without_a_mesh():
    def loss(w, x):
        return jnp.sum(jnp.sin(x @ w))

    found = jaxresid.inspect(loss)(f32(8, 4, split=(None, "model")), f32(16, 8, split=("data",)))
    assert found.mesh.axes == (("data", 4), ("model", 2))
    assert found.peak.arguments_nbytes == 4 * (8 * 4 // 2 + 16 * 8 // 4)
    (cosine,) = (r for r in found.residuals if r.origin.kind == "computed")
    assert cosine.aval.shape == (16, 4)
    assert cosine.aval.shard == (4, 2)
    assert cosine.aval.spec == "data,model"
    assert cosine.nbytes == 4 * 4 * 2


def test_without_shardings_nothing_changes():
    found = jaxresid.inspect(lambda x: jnp.sum(jnp.sin(x)))(f32(8, 4))
    assert found.mesh is None
    assert [r.aval.shard for r in found.residuals] == [None]


def step(w, x):
    def loss(w):
        return jnp.sum(jnp.sin(x @ w) ** 2)

    return w - 0.1 * jax.grad(loss)(w)


def test_a_step_is_split_too():
    args = f32(8, 4, split=(None, "model")), f32(16, 8, split=("data",))
    found = jaxresid.inspect(jax.jit(step, donate_argnums=0))(*args)
    assert found.target.mode == "program"
    assert found.peak.aliased_nbytes == 4 * 8 * 4 // 2
    computed = [r for r in found.residuals if r.origin.kind == "computed"]
    assert computed
    assert {r.aval.shard for r in computed} == {(4, 2)}


def test_a_checkpoint_is_judged_by_one_device():
    def loss(w, x):
        return jnp.sum(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x @ w)))(x))

    found = jaxresid.inspect(loss, mesh=EXPLICIT)(f32(8, 4, split=()), f32(16, 8, split=("data",)))
    (checkpoint,) = found.checkpoints
    assert checkpoint.kept_without_nbytes == 2 * 4 * (16 // 4) * 4
    assert checkpoint.kept_nbytes == 0


def test_a_policy_comparison_is_of_one_device():
    def loss(w, x):
        return jnp.sum(jnp.sin(x @ w))

    args = f32(8, 4, split=()), f32(16, 8, split=("data",))
    found = jaxresid.compare(loss)(*args)
    kept = {row.policy: row.kept_nbytes for row in found.rows}
    assert found.mesh.size == 8
    assert kept["none"] == 4 * (16 // 4) * 4


def test_devices_share_the_time():
    def loss(w, x):
        return jnp.sum(jnp.sin(x @ w))

    whole_args = f32(256, 256), f32(1024, 256)
    split_args = f32(256, 256, split=()), f32(1024, 256, split=(("data", "model"),))
    each = [
        seconds(
            lower(value_and_gradients(subject(Question(loss, args)).trace), profile),
            chip_of(parse_place("tpu:v5p")),
        ).compute
        for args, profile in (
            (whole_args, profile_of(parse_place("tpu:v5p"))),
            (split_args, profile_of(parse_place("tpu:v5p"))),
        )
    ]
    assert each[0] / each[1] == pytest.approx(8, rel=0.02)


def test_a_shard_map_counts_per_device():
    @functools.partial(
        jax.shard_map, mesh=EXPLICIT, in_specs=(P("data", "model"),), out_specs=P("data", "model")
    )
    def inner(x):
        def body(c, _):
            return jnp.sin(c) + jax.lax.psum(c, "data"), None

        return jax.lax.scan(body, x, None, length=3)[0]

    def loss(x):
        return jnp.sum(inner(x))

    x = f32(16, 8, split=("data", "model"))
    found = jaxresid.inspect(loss)(x)
    cosine = next(r for r in found.residuals if getattr(r.origin, "primitive", "") == "cos")
    assert cosine.trips == 3
    assert cosine.nbytes == 3 * (16 // 4) * (8 // 2) * 4
    assert sum(n for _, n in found.cost.forward.collectives) == cosine.nbytes
    assert found.peak.arguments_nbytes == 4 * 4 * 4
    text = json.loads(found.to_json())
    assert text["cost"]["collectives"] == dict(found.cost.total.collectives)
    assert next(r for r in text["residuals"] if r["trips"] == 3)["shard"] == [3, 4, 4]


# --- what is asked for --------------------------------------------------------------------------


def test_too_few_devices_are_said():
    jax.devices()
    with pytest.raises(InputsError, match="JAX_NUM_CPU_DEVICES=1024"):
        meshes.as_mesh({"data": 1024})


def test_something_else_is_no_mesh():
    with pytest.raises(InputsError, match="mesh must be"):
        jaxresid.inspect(lambda x: x * x, mesh="data=4")(f32())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--arg", "f32[8]@data"], "add --mesh"),
        (["--mesh", "data=4", "--arg", "f32[8]@dta"], "did you mean `data`?"),
        (["--mesh", "data=4", "--arg", "f32[6]@data"], "cannot be split evenly over data=4"),
        (["--mesh", "data", "--arg", "f32[8]"], "is not AXIS=SIZE"),
        (["--mesh-mode", "explicit", "--arg", "f32[8]"], "--mesh-mode needs --mesh"),
    ],
)
def test_mistakes_are_said(options, said, capsys):
    assert command_line(["report", "math:sin", *options]) == 2
    found = capsys.readouterr()
    assert said in found.err
    assert not found.out


MODEL = """
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

def loss(w, x):
    h = jnp.tanh(x @ w["a"])
    return jnp.sum(jnp.sin(h) * h + w["b"])

def constrained(w, x):
    h = jax.lax.with_sharding_constraint(jnp.tanh(x @ w["a"]), P("data", "model"))
    return jnp.sum(jnp.sin(h) * h + w["b"])
"""
SPECS = ["--arg", '{"a": f32[512,256]@None,model, "b": f32[]}', "--arg", "f32[64,512]@data"]


def fresh_environment(tmp_path):
    gone = ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS")
    env = {k: v for k, v in os.environ.items() if k not in gone}
    return env | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def run(command, tmp_path):
    return subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=fresh_environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def valid(text):
    found = json.loads(text)
    validate(found, "report")
    return found


@pytest.mark.integration
def test_report_over_a_mesh(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    command = ["-m", "jaxresid", "report", "model:constrained", "--mesh", "data=4,model=2", *SPECS]
    found = valid(run([*command, "-f", "json"], tmp_path))
    assert found["warnings"] == []
    axes = {"data": 4, "model": 2}
    assert found["mesh"] == {"axes": axes, "mode": "auto", "source": "compiler"}
    assert found["peak"]["arguments_nbytes"] == 4 * (512 * 256 // 2 + 1 + 64 * 512 // 4)
    computed = [r for r in found["residuals"] if r["origin"]["kind"] == "computed"]
    assert {(*r["shard"], r["split"]) for r in computed} == {(16, 128, "data,model")}


GATHERED = """
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

def loss(w, x):
    return jnp.sum(jnp.tanh(x @ jax.lax.with_sharding_constraint(w, P(None, "model"))))
"""


@pytest.mark.integration
def test_a_gradient_is_split_as_its_argument_whatever_its_constraint(tmp_path):
    (tmp_path / "model.py").write_text(GATHERED)
    specs = ["--arg", "f32[512,256]@data,model", "--arg", "f32[64,512]@data"]
    command = ["-m", "jaxresid", "report", "model:loss", "--mesh", "data=4,model=2", *specs]
    found = valid(run([*command, "-f", "json"], tmp_path))
    assert found["peak"]["outputs_nbytes"] == 4 * (512 * 256 // 8 + 64 * 512 // 4 + 1)


DROPOUT = """
import jax
import jax.numpy as jnp

@jax.checkpoint
def layer(x, inputs):
    w, key = inputs
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), jnp.tanh(x @ w), 0), None

def loss(w, x, key):
    x, _ = jax.lax.scan(layer, x, (w, jax.random.split(key, 3)))
    return jnp.sum(x * x)
"""


@pytest.mark.integration
def test_keys_are_kept_over_a_mesh(tmp_path):
    (tmp_path / "model.py").write_text(DROPOUT)
    specs = ["--arg", "f32[3,64,64]@None,None,model", "--arg", "f32[16,64]@data", "--arg", "key[]"]
    command = ["-m", "jaxresid", "report", "model:loss", "--mesh", "data=4,model=2", *specs]
    found = valid(run([*command, "-f", "json"], tmp_path))
    assert found["mesh"]["source"] == "compiler"
    (keys,) = (r for r in found["residuals"] if r["shape"] == [3])
    assert (keys["shard"], keys["nbytes"]) == (None, 3 * 8)


OWN = """
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.{mode},))

def loss(w, x):
    return jnp.sum(jnp.sin(x) * w)

def loss_inputs():
    split = NamedSharding(mesh, P("data"))
    return 1.0, jax.ShapeDtypeStruct((64,), jnp.float32, sharding=split)
"""


@pytest.mark.integration
@pytest.mark.parametrize("mode", ["Explicit", "Auto"])
def test_the_mesh_of_the_inputs_is_the_one_that_is_asked_for(mode, tmp_path):
    (tmp_path / "model.py").write_text(OWN.format(mode=mode))
    command = ["-m", "jaxresid", "report", "model:loss", "-f", "json"]
    found = valid(run([*command, "--mesh", "data=8"], tmp_path))
    assert found["mesh"]["mode"] == mode.lower()
    assert found["peak"]["arguments_nbytes"] == 4 + 64 * 4 // 8


MAPPED = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

def loss(x):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    return jnp.sum(jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x))
"""


@pytest.mark.integration
@pytest.mark.parametrize("on", ["tpu:v5e:2x4", "gpu:h100:8"])
def test_the_mesh_of_a_shard_map_needs_no_other(on, tmp_path):
    (tmp_path / "model.py").write_text(MAPPED)
    command = ["-m", "jaxresid", "report", "model:loss", "--arg", "f32[64,8]", "--on", on]
    found = valid(run([*command, "-f", "json"], tmp_path))
    assert found["warnings"] == []


@pytest.mark.integration
def test_a_report_says_that_a_mesh_splits_nothing(tmp_path):
    (tmp_path / "model.py").write_text("import jax.numpy as jnp\nloss = jnp.sum\n")
    command = ["-m", "jaxresid", "report", "model:loss", "--mesh", "data=8", "-f", "json"]
    (warning,) = valid(run([*command, "--arg", "f32[64,8]"], tmp_path))["warnings"]
    assert "such as --arg 'f32[64,8]@data'" in warning
    assert valid(run([*command, "--arg", "f32[64,8]@data"], tmp_path))["warnings"] == []


@pytest.mark.integration
def test_a_report_says_that_arguments_have_no_sharding(tmp_path):
    bare = OWN.replace("return 1.0,", "return jax.ShapeDtypeStruct((64,), jnp.float32),")
    (tmp_path / "model.py").write_text(bare.format(mode="Auto"))
    command = ["-m", "jaxresid", "report", "model:loss", "--mesh", "data=8", "-f", "json"]
    (warning,) = valid(run(command, tmp_path))["warnings"]
    assert warning.startswith("256 B of the arguments have no sharding (w) and are")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--mesh", "data=4,model=2"], "differs from the mesh of the inputs, data=8;"),
        ([], "JAX_NUM_CPU_DEVICES=8"),
    ],
)
def test_another_mesh_than_that_of_the_inputs(options, said, tmp_path):
    (tmp_path / "model.py").write_text(OWN.format(mode="Auto"))
    done = subprocess.run(
        [sys.executable, "-m", "jaxresid", "report", "model:loss", *options],
        cwd=tmp_path,
        env=fresh_environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


MADE_LATE = OWN.replace("\nmesh = ", "\ndef mesh(): return ").replace("(mesh,", "(mesh(),")
BUILT = (
    MADE_LATE
    + """
def build():
    return loss, loss_inputs()
"""
)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("model", "target"),
    [
        (OWN, ["model:loss"]),
        (MADE_LATE, ["model:loss"]),
        (MADE_LATE, ["model:loss", "--concrete-inputs"]),
        (BUILT, ["model:build", "--build"]),
    ],
)
def test_a_mesh_of_more_devices_than_there_are(model, target, tmp_path):
    (tmp_path / "model.py").write_text(model.format(mode="Auto"))
    command = [sys.executable, "-m", "jaxresid", "report", *target]
    options = {"cwd": tmp_path, "env": fresh_environment(tmp_path), "text": True}
    done = subprocess.run(command, capture_output=True, check=False, **options)
    assert done.returncode == 2
    *_, said, helps = done.stderr.splitlines()
    assert "umber of devices" in said
    assert helps.endswith(
        "add --mesh data=4,model=2, or set JAX_PLATFORMS=cpu and JAX_NUM_CPU_DEVICES=8"
    )
    done = subprocess.run(
        [*command, "--mesh", "data=8"], capture_output=True, check=False, **options
    )
    assert (done.returncode, without_stages(done.stderr)) == (0, "")


@pytest.mark.slow
def test_explicit_and_auto_meshes_agree_where_there_is_one_way(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    command = ["-m", "jaxresid", "report", "model:loss", "--mesh", "data=4,model=2", *SPECS]
    auto = valid(run([*command, "-f", "json"], tmp_path))
    typed = valid(run([*command, "--mesh-mode", "explicit", "-f", "json"], tmp_path))
    assert typed["mesh"]["source"] == "types"
    assert typed["residuals"] == auto["residuals"]
    text = run([*command, "--mesh-mode", "explicit", "-v"], tmp_path)
    assert "f32[64,256]@data,model" in text
    assert "bytes of one of 8 devices" in text
    assert "FLOPs are those of all 8 devices" in " ".join(text.split())


# --- against XLA --------------------------------------------------------------------------------


def measured(names, policies, tmp_path, on="cpu"):
    script = str(ROOT / "tests/benchmarks/sharded.py")
    command = [script, *names, "--policies", policies, "--on", on, "--json"]
    return [json.loads(line) for line in run(command, tmp_path).splitlines()]


def same_outputs(pair):
    """XLA:CPU counts the table of several outputs among them."""
    return pair[0] <= pair[1] < pair[0] + 1024


@pytest.mark.integration
def test_one_device_of_a_scanned_model_against_xla(tmp_path):
    (found,) = measured(["scan mixed"], "none", tmp_path)
    assert found["source"] == "compiler"
    assert found["warnings"] == []
    assert found["arguments"][0] == found["arguments"][1]
    assert same_outputs(found["outputs"])
    assert found["total"][0] is None  # XLA:CPU's peak is asked for


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("name", [c.name for c in sharded.CASES if c.fun is not sharded.mlp])
def test_policies_rank_as_with_xla(name, tmp_path):
    found = measured([name], ",".join(sharded.POLICIES), tmp_path, on="gpu:h100:8")
    assert len(found) == len(sharded.POLICIES)
    for row in found:
        assert row["arguments"][0] == row["arguments"][1]
        assert same_outputs(row["outputs"])
    for one, other in itertools.combinations(found, 2):
        mine = [row["total"][0] for row in (one, other)]
        theirs = [row["total"][1] for row in (one, other)]
        if abs(theirs[0] - theirs[1]) > 0.02 * max(theirs):
            assert (mine[0] < mine[1]) == (theirs[0] < theirs[1])


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("name", ["gathered by xla", "gathered for map", "large scan fsdp"])
def test_gathered_weights_take_what_they_take_with_xla(name, tmp_path):
    """Without their arrays the estimate is 18 to 70 % too low."""
    for found in measured([name], "none,nothing", tmp_path, on="tpu:v5e:2x4"):
        mine, theirs = found["total"]
        assert mine == pytest.approx(theirs, rel=0.04)


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gathered by xla", "gathered for map", "large mlp fsdp"])
def test_gathered_weights_are_kept_with_xla(name, tmp_path):
    (found,) = measured([name], "none", tmp_path, on="gpu:h100:8")
    mine, theirs = found["total"]
    assert mine == pytest.approx(theirs, rel=0.07)


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("name", ["scan mixed", "attention data"])
def test_arguments_on_a_tpu(name, tmp_path):
    (found,) = measured([name], "none", tmp_path, on="tpu:v5e:2x4")
    assert found["arguments"][0] == found["arguments"][1]
    assert same_outputs(found["outputs"])
