"""Programs without a checkpoint or a scan: what `compare` and `plan` offer of them, and that the
code to write gives it."""

import dis
import sys

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from jaxresid.advice.plan.source.writing import write
from jaxresid.advice.plan.verification import in_process_check
from jaxresid.base.errors import InputsError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.jaxpr.calls import CallMark, LoopRun, iterations
from jaxresid.inspector.jaxpr.frames import Frame
from jaxresid.inspector.report import subject
from jaxresid.targets.targets import load
from tests.plans import drafted, planned
from tests.small import cp, f32

MLP = """\
import jax
import jax.numpy as jnp


def dense(p, x, act):
    return act(jnp.sin(jnp.cos(x @ p["w"] + p["b"])))


def loss(ps, x, y, act=jnp.tanh):
    for p in ps:
        x = dense(p, x, act)
    return jnp.mean((x - y) ** 2)


def inline_loss(ps, x, y):
    for p in ps:
        h = x @ p["w"] + p["b"]
        x = jnp.tanh(jnp.sin(jnp.cos(h)))
    return jnp.mean((x - y) ** 2)


def stepping(loss):
    def step(ps, x, y):
        value, gradients = jax.value_and_grad(loss)(ps, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, ps, gradients), value

    return step


step, inline_step = stepping(loss), stepping(inline_loss)


def micro_step(ps, x, y):
    def body(total, xy):
        value, gradients = jax.value_and_grad(loss)(ps, *xy)
        return jax.tree.map(jnp.add, total, gradients), value

    total, values = jax.lax.scan(body, jax.tree.map(jnp.zeros_like, ps), (x, y))
    return jax.tree.map(lambda p, g: p - 0.1 * g, ps, total), values


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def step_inputs(*batch):
    ps = [{"w": f32(64, 64), "b": f32(64)} for _ in range(6)]
    return ps, f32(*batch, 4096, 64), f32(*batch, 4096, 64)


inline_step_inputs = step_inputs


def micro_step_inputs():
    return step_inputs(3)
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder with `mlp.py`, whose functions are loaded by name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlp.py").write_text(MLP)
    yield lambda name: load(f"{tmp_path}/mlp.py:{name}").fun
    sys.modules.pop("mlp", None)


def figures(rows):
    return {row.policy: (row.peak_nbytes, row.kept_nbytes) for row in rows}


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("step", "mlp.py:11 (dense) ×6 calls"),
        ("inline_step", "mlp.py:16 (loop in inline_loss) ×6 calls"),
        ("micro_step", "mlp.py:11 (dense) ×6 calls"),
    ],
)
def test_compare_offers_the_calls_of_a_step(programs, name, place):
    fun = programs(name)
    args = fun.__globals__[f"{name}_inputs"]()
    found = jaxresid.compare(fun, mode="program", on="gpu:h100")(*args)
    assert (found.at, found.places) == ("calls", (place,))
    rows = figures(found.rows)
    assert rows["nothing_saveable"][0] < rows["none"][0]
    assert rows["nothing_saveable"][1] < rows["dots_saveable"][1] < rows["none"][1]


@pytest.mark.integration
def test_compare_of_a_whole_loss_is_that_of_the_step_with_it_checkpointed(programs):
    fun = programs("step")
    args = fun.__globals__["step_inputs"]()
    found = jaxresid.compare(fun, at="whole", mode="program", on="gpu:h100")(*args)
    checkpointed = jax.checkpoint(fun.__globals__["loss"], policy=cp.dots_saveable)
    report = jaxresid.inspect(
        fun.__globals__["stepping"](checkpointed), mode="program", on="gpu:h100"
    )
    written = report(*args)
    assert figures(found.rows)["dots_saveable"] == (
        written.peak.nbytes,
        written.totals.computed_nbytes,
    )


def test_a_function_is_compared_at_its_calls_before_it_is_as_a_whole(programs):
    loss = programs("loss")
    args = loss.__globals__["step_inputs"]()
    assert jaxresid.compare(loss, on="gpu:h100")(*args).at == "calls"
    assert jaxresid.compare(loss, at="whole", on="gpu:h100")(*args).at == "whole"


def test_where_there_is_no_place_it_says_what_to_do():
    def step(w, x):
        # Nobody's function: JAX's own is differentiated.
        return w - jax.grad(jnp.vdot)(w, x)

    with pytest.raises(InputsError, match=r"no place for a checkpoint was found .* by hand"):
        jaxresid.compare(step, mode="program")(f32(64), f32(64))


def test_calls_are_listed_where_a_place_is_not_known(programs):
    fun = programs("inline_step")
    args = fun.__globals__["step_inputs"]()
    with pytest.raises(InputsError, match=r"choose one of calls, whole, mlp.py:16 \(loop in"):
        jaxresid.compare(fun, at="nowhere", mode="program")(*args)


def lowest(fun, *args):
    found = subject(Question(fun, args, mode="program", on="gpu:h100"))
    return planned(found, planned(found, 1).lowest_nbytes)


@pytest.mark.integration
def test_a_step_is_planned_at_its_calls(programs):
    fun = programs("step")
    plan = lowest(fun, *fun.__globals__["step_inputs"]())
    assert [(s.kind, s.function) for s in plan.sites] == [
        ("groups", "loop in loss"),
        ("call", "dense"),
    ]
    assert plan.answer in ("fits", "may not fit", "too close")
    assert "static_argnums=(2,)" in "".join(plan.code)
    assert plan.peak_nbytes < plan.plain_nbytes


@pytest.mark.integration
def test_a_loop_is_left_to_the_user_with_what_to_write(programs):
    fun = programs("inline_step")
    plan = lowest(fun, *fun.__globals__["step_inputs"]())
    assert [(s.kind, s.function) for s in plan.sites] == [
        ("groups", "loop in inline_loss"),
        ("block", "loop in inline_loss"),
    ]
    assert plan.doubt is not None
    said = " ".join(plan.unwritten)
    assert "mlp.py:16: by hand: make what this loop does in one iteration a function" in said


@pytest.mark.integration
@pytest.mark.parametrize("name", ["step", "micro_step"])
def test_what_is_written_into_a_step_gives_what_was_promised(programs, tmp_path, name):
    fun = programs(name)
    args = fun.__globals__[f"{name}_inputs"]()
    asked = Question(fun, args, mode="program", on="gpu:h100")
    found = subject(asked)
    budget = planned(found, 1).lowest_nbytes
    plan, edits = drafted(found, budget, check=in_process_check(found, asked))
    write(edits)
    assert "jax.checkpoint(dense" in (tmp_path / "mlp.py").read_text()
    sys.modules.pop("mlp", None)
    again = load(f"{tmp_path}/mlp.py:{name}").fun
    written = jaxresid.inspect(again, mode="program", on="gpu:h100")(*args)
    assert written.peak.nbytes == plan.peak_nbytes < plan.plain_nbytes
    assert written.totals.computed_nbytes == plan.kept_nbytes
    values = jax.tree.map(lambda s: jax.random.normal(jax.random.key(3), s.shape) / 8, args)
    for ours, theirs in zip(
        jax.tree.leaves(again(*values)), jax.tree.leaves(fun(*values)), strict=True
    ):
        assert jnp.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


# -- loops -----------------------------------------------------------------------------------------


def offsets_of(code, word):
    return [i.offset for i in dis.get_instructions(code) if i.opname.startswith(word)]


def mark(code, offset, *inner):
    frames = (Frame(code, offset, "user"), *(f for each in inner for f in each.frames))
    return CallMark(frames, "mul")


def marks(code, offsets):
    return [mark(code, offset) for offset in offsets]


def test_iterations_begin_where_the_innermost_loop_goes_back():
    def loop(xs):
        y = xs[0] * 2
        for x in xs:
            y = y * x
            y = y + x
        return y - 1

    code = loop.__code__
    first, mul, add, last = offsets_of(code, "BINARY_OP")
    ran = [first, mul, add, mul, add, mul, add, last]
    (each,) = iterations(marks(code, ran))
    assert (each.cuts, each.is_one_call) == ((1, 3, 5, 7), False)
    twice = [first, mul, mul, add, mul, mul, add]  # one expression, two eqns
    assert iterations(marks(code, twice)) == [LoopRun(each.start, (1, 4, 7), False)]
    assert iterations(marks(code, [first, last])) == []


def test_iterations_of_one_call_begin_where_the_call_does():
    def called(x):
        y = x * 2
        return y + 1

    def loop(xs):
        for x in xs:
            called(x)

    (at,) = offsets_of(loop.__code__, "CALL")
    mul, add = offsets_of(called.__code__, "BINARY_OP")
    inside = [mark(loop.__code__, at, mark(called.__code__, each)) for each in [mul, add] * 3]
    (each,) = iterations(inside)
    assert (each.cuts, each.is_one_call) == ((0, 2, 4, 6), True)
    one_eqn = [mark(loop.__code__, at)] * 4  # a checkpoint leaves one
    (each,) = iterations(one_eqn)
    assert (each.cuts, each.is_one_call) == ((0, 1, 2, 3, 4), True)


def test_a_loop_around_another_is_left_out():
    def nested(xs):
        y = 1
        for x in xs:
            for z in xs:
                y = y * x
                y = y + z
            y = y - x
        return y

    mul, add, sub = offsets_of(nested.__code__, "BINARY_OP")
    ran = [mul, add, mul, add, sub] * 2
    assert [r.cuts for r in iterations(marks(nested.__code__, ran))] == [(0, 2, 4), (5, 7, 9)]


def places_of(fun, *args):
    found = subject(Question(fun, args, mode="loss"))
    return [(p.kind, p.function, p.calls) for p in found.variants().places()]


def test_iterations_that_are_not_alike_are_no_place():
    def loss(ws, x):
        for i, w in enumerate(ws):
            h = jnp.sin(x @ w)
            x = jnp.sin(h) if i % 2 else jnp.cos(jnp.cos(h))
        return x.sum()

    def alike(ws, x):
        for w in ws:
            h = jnp.sin(x @ w)
            x = jnp.cos(jnp.cos(h))
        return x.sum()

    args = [f32(32, 32)] * 4, f32(64, 32)
    assert [kind for kind, _, _ in places_of(loss, *args)] == ["whole"]
    assert [(k, c) for k, _, c in places_of(alike, *args)] == [("block", 4), ("whole", 1)]


def test_calls_that_make_most_of_a_loop_are_the_places():
    def layer(x, w):
        return jnp.sin(jnp.cos(x @ w))

    def loss(ws, x):
        for w in ws:
            x = layer(x, w) + 1.0
        return x.sum()

    found = places_of(loss, [f32(32, 32)] * 4, f32(64, 32))
    assert [(k, c) for k, _, c in found] == [("call", 4), ("whole", 1)]
