"""Gradients however they are taken: what each keeps is what `jax.vjp` of its program returns."""

import functools
import json
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from hypothesis import assume, given, settings
from jax.sharding import PartitionSpec

import jaxresid
from jaxresid import jax_compat
from jaxresid.inspector.call.arguments import arguments
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.residuals.step import residuals_of_gradient
from jaxresid.inspector.trace import step as steps
from jaxresid.results import Verdict
from tests import programs
from tests.inspector.residuals.test_oracle import row
from tests.small import f32


def step_of(fun, *args):
    call = arguments(Question(fun, args, mode="program"))
    return steps.step_trace(steps.step_primal(fun, call), call, Frames())


def rows_of(found):
    return Counter((r.aval.dtype, r.aval.shape, r.nbytes) for r in found)


def leaves_of(fun, *args):
    """What a traced `jax.vjp` keeps, without what is written in the program."""
    closed = jax.make_jaxpr(lambda *args: jax.tree.leaves(jax.vjp(fun, *args)[1]))(*args)
    jaxpr = jax_compat.open_jaxpr(closed)
    own = [v for v in jaxpr.outvars if not jax_compat.is_literal(v) and v not in jaxpr.constvars]
    return Counter(row(v.aval) for v in own)


def zeros(struct):
    return jnp.zeros(struct.shape, struct.dtype)


def ones_like(tree):
    return jax.tree.map(jnp.ones_like, tree)


def vjp(fun, *args):
    y, pull = jax.vjp(fun, *args)
    return y, pull(ones_like(y))


def in_jits(fun, *args):
    y, pull = jax.jit(lambda *args: jax.vjp(fun, *args))(*args)
    return jax.jit(lambda pull, y: pull(ones_like(y)))(pull, y)


def fwd_and_bwd(fun, *args):
    fwd, bwd = jax.fwd_and_bwd(fun, tuple(range(len(args))))
    y, kept = fwd(*args)
    return bwd(kept, ones_like(y))


def in_a_scan(fun, *args):
    return jax.lax.scan(lambda c, _: (c, vjp(fun, *args)), 0.0, None, length=3)


def inside_another(fun, *args):
    def outer(s):
        scaled = [a * s if jnp.issubdtype(jnp.result_type(a), jnp.floating) else a for a in args]
        _, found = vjp(fun, *scaled)
        leaves = [v for v in jax.tree.leaves(found) if v.dtype == jnp.float32]
        return sum(jnp.sum(v**2) for v in leaves)

    return jax.grad(outer)(1.0)


needs_refs = pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="no jax.new_ref")
WAYS = {f.__name__: f for f in (vjp, in_jits, in_a_scan, fwd_and_bwd, inside_another)}
if not hasattr(jax, "fwd_and_bwd"):
    del WAYS["fwd_and_bwd"]


def check(way, program, output):
    fun, args = programs.function(program, output), programs.arguments()
    try:
        leaves = leaves_of(fun, *args)
        jax.eval_shape(lambda *args: vjp(fun, *args), *args)
    except Exception:  # JAX itself cannot
        assume(False)
    step = step_of(lambda *args: WAYS[way](fun, *args), *args)
    gradients = step.taken_gradients
    if way == "inside_another":
        # What is linear in its inputs is no part of the outer one, and may leave nothing of it.
        gradients = [inner for gradient in gradients for inner in gradient.inner]
        assume(gradients)
        # What does not depend on the inputs is not recomputed in the outer one.
        assume(not getattr(jax.config, "jax_remat3", False) or "checkpoint" not in str(program))
    # JAX moves parts of a gradient in a scan out of the one around it, where that is jitted.
    gradient = next(g for g in gradients if g.function == "fun")
    found = residuals_of_gradient(step, gradient)
    # What is written in the program may stand for itself, or be handed on as a value.
    own = [r for r in found if r.origin.kind in ("argument", "computed")]
    assert not rows_of(own) - leaves
    if jax.__version_info__ >= (0, 10):  # before, nothing stands for what is never read
        assert not leaves - rows_of(found)


@pytest.mark.integration
@settings(max_examples=20)
@given(programs.programs, programs.outputs)
@pytest.mark.parametrize("way", WAYS)
def test_each_keeps_the_leaves_of_vjp(way, program, output):
    check(way, program, output)


@pytest.mark.programs
@settings(max_examples=300)
@given(programs.programs, programs.outputs)
@pytest.mark.parametrize("way", WAYS)
def test_each_keeps_the_leaves_of_vjp_in_many_programs(way, program, output):
    check(way, program, output)


def test_kept_and_returned_is_kept_once():
    check("in_jits", (("exp",),), "vector")


def test_what_a_loop_does_not_change_is_kept_beside_what_it_makes():
    inner = (("checkpoint", "all_names_but_a", False, (("batched_dot",),)),)
    check("in_a_scan", (("scan", 1, inner),), "sum")


def test_an_argument_that_a_loop_reads_is_kept_once():
    check("in_a_scan", (("cumsum",),), "sum")


def energy(x):
    return jnp.sum(jnp.sqrt(jnp.sum((x[None] - x[:, None]) ** 2, axis=-1) + 1e-6))


def loss(w, x):
    return jnp.sum(jnp.sin(jnp.tanh(x @ w) @ w))


X, W, ROWS = f32(5, 3), f32(4, 4), f32(8, 4)
# Of the distances: their squares' gradient and their roots.
ENERGY = 5 * 5 * 3 * 4 + 5 * 5 * 4


def reported(fun, *args):
    return jaxresid.inspect(fun, mode="program")(*args)


def shown(gradients):
    return [(g.function, g.trips, g.kept_nbytes, shown(g.gradients)) for g in gradients]


SECOND_ORDER = {
    "hessian": (jax.hessian(energy), 16 * ENERGY),
    "jacfwd of jacrev": (jax.jacfwd(jax.jacrev(energy)), 16 * ENERGY),
    "jvp of grad": (lambda x: jax.jvp(jax.grad(energy), (x,), (x,))[1], 2 * ENERGY),
    "linearized grad": (lambda x: jax.linearize(jax.grad(energy), x)[1](x), ENERGY),
    "grad": (jax.grad(energy), ENERGY),
}


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_forward_mode_around_a_gradient(name):
    fun, nbytes = SECOND_ORDER[name]
    report = reported(fun, X)
    assert shown(report.gradients) == [("energy", 1, nbytes, [])]
    assert report.cost.backward.flops
    assert not report.warnings
    if name != "linearized grad":  # its tangents are kept only where the result is read
        assert report.totals.computed_nbytes == nbytes


def test_forward_mode_around_a_gradient_of_a_shard_map():
    mesh, whole = jax.make_mesh((1,), ("d",)), PartitionSpec()
    sharded = jax.shard_map(energy, mesh=mesh, in_specs=whole, out_specs=whole)
    alone = reported(jax.grad(sharded), X)
    report = reported(lambda x: jax.jvp(jax.grad(sharded), (x,), (x,))[1], X)
    ((kept, *_),) = [(g.kept_nbytes, g.function) for g in report.gradients]
    assert kept >= 2 * alone.gradients[0].kept_nbytes > 0
    assert report.totals.computed_nbytes >= 2 * alone.totals.computed_nbytes
    assert not report.warnings


def test_what_a_loss_leaves_behind_is_no_result():
    norms = []

    def logged(w, x):
        norms.append(jnp.sum(jnp.tanh(x @ w)))
        return loss(w, x)

    def step(loss, w, x):
        return w - jax.grad(loss)(w, x)

    plain, report = (reported(functools.partial(step, f), W, ROWS) for f in (loss, logged))
    assert report.totals == plain.totals
    assert report.peak.nbytes == plain.peak.nbytes
    assert [c.kept_nbytes for c in report.gradients] == [c.kept_nbytes for c in plain.gradients]
    assert report.warnings == plain.warnings == ()


def test_forward_mode_alone_is_no_gradient():
    report = reported(jax.jacfwd(lambda x: jnp.sin(x) @ x.T), X)
    assert report.gradients == ()
    assert not report.residuals
    assert not report.cost.backward.flops


def test_a_gradient_in_a_gradient_is_below_it():
    def hvp(x):
        return jax.vjp(jax.grad(energy), x)[1](x)[0]

    outer = sum(row(leaf)[2] for leaf in jax.tree.leaves(jax.vjp(jax.grad(energy), zeros(X))[1]))
    assert shown(reported(hvp, X).gradients) == [("energy", 1, outer, [("energy", 1, ENERGY, [])])]


def test_gradients_of_a_rule_are_below_what_has_it():
    @jax.custom_vjp
    def ruled(w, x):
        return loss(w, x)

    ruled.defvjp(
        lambda w, x: (loss(w, x), (w, x)),
        lambda kept, ct: (ct * jax.grad(loss)(*kept), jnp.zeros_like(kept[1])),
    )
    report = reported(lambda w, x: w - jax.grad(ruled)(w, x), W, ROWS)
    assert not report.warnings
    (of_rule,) = report.gradients
    assert (of_rule.function, of_rule.kept_nbytes) == ("ruled", 0)
    assert shown(of_rule.gradients) == [("loss", 1, 3 * 8 * 4 * 4, [])]


def test_trips_of_loops_and_of_a_python_loop():
    def unrolled(w, x):
        for _ in range(3):
            w = w - jax.grad(loss)(w, x)
        return w

    def scanned(w, x):
        return jax.lax.scan(lambda w, _: (w - jax.grad(loss)(w, x), None), w, None, length=5)[0]

    def outer(w, x):
        return w - jax.grad(lambda w: loss(scanned(w, x), x))(w)

    nbytes = 3 * 8 * 4 * 4
    assert shown(reported(unrolled, W, ROWS).gradients) == [("loss", 3, nbytes, [])]
    assert shown(reported(scanned, W, ROWS).gradients) == [("loss", 5, nbytes, [])]
    (outermost,) = reported(outer, W, ROWS).gradients
    assert shown(outermost.gradients) == [("loss", 5, nbytes, [])]


def test_examples_of_vmap_are_kept_together():
    jitted = jax.jit(lambda w, row: jax.grad(loss)(w, row[None]))
    alone = {g.kept_nbytes for g in reported(jitted, W, f32(4)).gradients}
    (batch,) = reported(jax.vmap(jitted, (None, 0)), W, ROWS).gradients
    assert {batch.kept_nbytes} == {8 * nbytes for nbytes in alone}


def test_what_ran_before_has_its_gradients():
    jitted = jax.jit(jax.grad(energy))
    jitted(jnp.ones((5, 3)))
    report = reported(lambda x: jax.jvp(jitted, (x,), (x,))[1], X)
    assert shown(report.gradients) == [("energy", 1, 2 * ENERGY, [])]


def test_a_cotangent_made_before_the_forward_pass_is_not_kept():
    def gauss_newton(w, x):
        def fun(w):
            return jnp.tanh(x @ w)

        _, tangent = jax.jvp(fun, (w,), (w,))
        return jax.vjp(fun, w)[1](tangent)[0]

    report = reported(gauss_newton, W, ROWS)
    (only,) = report.gradients
    leaves = jax.vjp(lambda w: jnp.tanh(zeros(ROWS) @ w), zeros(W))[1]
    total = sum(row(leaf)[2] for leaf in jax.tree.leaves(leaves))
    assert only.kept_nbytes + only.arguments_nbytes == total
    assert report.totals.computed_nbytes == only.kept_nbytes


@needs_refs
def test_passes_that_run_apart_are_not_judged():
    def deep(w, x):
        return jnp.sum(jnp.tanh(jax.checkpoint(lambda x: jnp.sin(x @ w))(x) @ w))

    def through_refs(w, x):
        _, pull = jax.vjp(deep, w, x)
        leaves, tree = jax.tree.flatten(pull)
        held = [jax.new_ref(leaf) for leaf in leaves]
        pull = jax.tree.unflatten(tree, [ref[...] for ref in held])
        return w - pull(jnp.ones(()))[0]

    report = reported(through_refs, W, ROWS)
    (warning,) = report.warnings
    assert "of deep" in warning
    assert "known in bytes alone" in warning
    assert [c.verdict for c in report.checkpoints] == [Verdict.NOT_JUDGED]
    assert report.gradients[0].kept_nbytes >= 2 * 8 * 4 * 4


def test_text_and_json_of_a_gradient_in_a_gradient(capsys):
    report = reported(lambda x: jax.vjp(jax.grad(energy), x)[1](x)[0], X)
    document = json.loads(report.to_json())
    (outer,) = document["gradients"]
    assert outer["gradients"][0]["kept_nbytes"] == ENERGY
    report.print()
    text = capsys.readouterr().out
    assert "2 gradients" in text
    assert "    of energy" in text


# Accumulation into a Ref


def stack(ws, x):
    def body(c, w):
        return jnp.tanh(c @ w), None

    return (jax.lax.scan(body, x, ws)[0] ** 2).mean()


def micro(ws, x):
    return jax.vjp(lambda w: stack(w, x), ws)


def with_refs(acc, pull, value):
    pull.with_refs(acc)(jnp.ones_like(value))


def adding(acc, pull, value):
    acc[...] += pull(jnp.ones_like(value))[0]


FORMS = [adding]
if hasattr(getattr(jax.vjp(jnp.sin, 1.0)[1], "__class__", None), "with_refs"):
    FORMS.append(with_refs)


def plain_step(ws, x):
    def each(acc, x):
        value, pull = micro(ws, x)
        return acc + pull(jnp.ones_like(value))[0], value

    g, values = jax.lax.scan(each, jnp.zeros_like(ws), x.reshape(4, -1, x.shape[-1]))
    return ws - 0.1 * g, values.mean()


def at_top(accumulate, ws, x):
    acc = jax.new_ref(jnp.zeros_like(ws))
    value, pull = micro(ws, x)
    accumulate(acc, pull, value)
    return ws - 0.1 * acc[...], value


def in_scan(accumulate, ws, x):
    acc = jax.new_ref(jnp.zeros_like(ws))

    def each(_, x):
        value, pull = micro(ws, x)
        accumulate(acc, pull, value)
        return None, value

    _, values = jax.lax.scan(each, None, x.reshape(4, -1, x.shape[-1]))
    return ws - 0.1 * jax.freeze(acc), values.mean()


def in_branch(accumulate, ws, x):
    acc = jax.new_ref(jnp.zeros_like(ws))
    value, pull = micro(ws, x)
    jax.lax.cond(value > 0, lambda: accumulate(acc, pull, value), lambda: None)
    return ws - 0.1 * acc[...], value


@needs_refs
@pytest.mark.parametrize("accumulate", FORMS)
@pytest.mark.parametrize("step", [at_top, in_scan, in_branch])
def test_accumulation_into_a_ref(step, accumulate):
    ws, x = f32(3, 8, 8), f32(16, 8)
    report = reported(functools.partial(step, accumulate), ws, x)
    in_one = step is not in_scan
    plain = (lambda ws, x: (ws - jax.grad(stack)(ws, x), stack(ws, x))) if in_one else plain_step
    expected = reported(plain, ws, x)
    assert not report.warnings
    assert report.totals == expected.totals
    assert shown(report.gradients)[0][1:] == shown(expected.gradients)[0][1:]
    assert report.target.differentiated == ("ws",)


def test_constants_of_a_backward_pass_are_no_forward_pass():
    def deep(ws, x):
        def body(c, w):
            return jnp.sin(jnp.tanh(c @ w)), None

        return (jax.lax.scan(jax.checkpoint(body), x, ws)[0] ** 2).mean()

    def step(ws, x):
        y, pull = jax.jit(lambda ws: jax.vjp(lambda ws: deep(ws, x), ws))(ws)
        return ws - jax.jit(lambda pull: pull(jnp.ones(()))[0])(pull), y

    trace = step_of(step, f32(3, 8, 8), f32(16, 8))
    jitted = [eqn for eqn in trace.jaxpr.eqns if jax_compat.primitive_name(eqn) == "jit"]
    assert [trace.passes.of(eqn) for eqn in jitted] == ["forward", "backward"]


@needs_refs
def test_a_ref_that_the_next_trip_reads():
    def descend(ws, x):
        held = jax.new_ref(ws)

        def each(_, x):
            held[...] = held[...] - jax.grad(stack)(held[...], x)
            return None, None

        jax.lax.scan(each, None, x.reshape(4, -1, x.shape[-1]))
        return held[...]

    report = reported(descend, f32(3, 8, 8), f32(16, 8))
    assert not report.warnings
    assert report.target.differentiated == ("ws",)


@needs_refs
def test_a_ref_that_nothing_reads_is_still_dead():
    def dead(ws, x):
        acc = jax.new_ref(jnp.zeros_like(ws))
        acc[...] += jax.grad(stack)(ws, x)
        return stack(ws, x)

    (warning,) = reported(dead, f32(3, 8, 8), f32(16, 8)).warnings
    assert "nothing that" in warning


# Checkpoints


@pytest.mark.skipif(not hasattr(jax, "fwd_and_bwd"), reason="no jax.fwd_and_bwd")
@pytest.mark.parametrize("jitted", [True, False])
def test_a_checkpoint_earns_its_keep_in_passes_jitted_apart(jitted):
    def deep(ws, x):
        def body(c, w):
            return jnp.sin(jnp.tanh(c @ w)), None

        return (jax.lax.scan(jax.checkpoint(body), x, ws)[0] ** 2).mean()

    def apart(ws, x):
        fwd, bwd = jax.fwd_and_bwd(deep, (0,), jitted=jitted)
        y, kept = fwd(ws, x)
        return ws - 0.1 * bwd(kept, jnp.ones(()))[0], y

    def together(ws, x):
        y, g = jax.value_and_grad(deep)(ws, x)
        return ws - 0.1 * g, y

    ws, x = f32(8, 64, 64), f32(4096, 64)
    report, expected = reported(apart, ws, x), reported(together, ws, x)
    assert report.totals == expected.totals
    assert [c.verdict for c in report.checkpoints] == [Verdict.EARNS]
    assert [c.verdict for c in expected.checkpoints] == [Verdict.EARNS]
