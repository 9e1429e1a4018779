"""Training steps: what their own gradients keep, who their inputs are, what each pass costs."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from jax import lax

from fixtures.inspect import train_step
from jaxresid.inspector.call.arguments import arguments
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.cost.jaxpr_cost import jaxpr_cost
from jaxresid.inspector.cost.step import step_cost
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.phases import phase_of
from jaxresid.inspector.memory.compilers import profile_of
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import OpSources, peak
from jaxresid.inspector.program.build import all_ops
from jaxresid.inspector.program.step import step_program
from jaxresid.inspector.program.step_roles import roles
from jaxresid.inspector.residuals.function import residuals
from jaxresid.inspector.residuals.step import step_kept_nbytes, step_residuals
from jaxresid.inspector.trace import step as steps
from jaxresid.inspector.trace.function import trace
from jaxresid.results import Computed, Mark, totals_of
from jaxresid.xla.places import parse_place
from tests import programs
from tests.inspector.residuals.test_oracle import CASES
from tests.small import f32

PARAMS, X = [f32(4, 4)] * 2, f32(3, 4)


def mlp(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return x


def loss(params, x):
    return jnp.sum(mlp(params, x) ** 2)


def updated(params, gradient):
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradient)


def stepping(fun):
    """One step of gradient descent on `fun`, over its first argument."""

    def step(params, *rest):
        return updated(params, jax.grad(fun)(params, *rest)), 0

    return step


def sgd(params, x):
    return updated(params, jax.grad(loss)(params, x))


def step_of(fun, *args):
    call = arguments(Question(fun, args))
    return steps.step_trace(steps.step_primal(fun, call), call, Frames())


def kept(fun, *args):
    found = step_residuals(step_of(fun, *args))
    return [r for r in found if r.origin.kind == "computed"]


def rows(found):
    """The computed residuals that something reads: a step shows no others."""
    return Counter(
        (r.aval.dtype, r.aval.shape, r.nbytes, r.aval.memory)
        for r in found
        if r.origin.kind == "computed" and Mark.UNREAD not in r.marks
    )


def read_by(found):
    """Where each computed residual is made and what reads it."""
    return Counter(
        (r.origin.location, r.aval.shape, frozenset((c.primitive, c.location) for c in r.consumers))
        for r in found
        if r.origin.kind == "computed" and r.consumers
    )


def of_function(fun, *args):
    call = arguments(Question(fun, args, argnums=(0,)))
    return residuals(trace(fun, call, False, Frames()))


def kinds(fun, *args):
    """The kinds of the inputs by argument path, and those of the outputs."""
    inputs, outputs = roles(step_of(fun, *args))
    return {r.path: r.kind for r in inputs}, [r.kind for r in outputs]


def force_matching(params, x):
    return jnp.sum(jax.grad(loss, argnums=1)(params, x) ** 2)


def accumulating(params, xs):
    def add(total, x):
        value, gradient = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(jnp.add, total, gradient), value

    total, values = lax.scan(add, jax.tree.map(jnp.zeros_like, params), xs)
    return updated(params, total), values


@pytest.mark.parametrize(
    ("tags", "phase"),
    [
        ("", "update"),
        ("trunk/attention", "update"),
        ("jvp()", "forward"),
        ("step/jvp(trunk)/attention", "forward"),
        ("vmap(jvp())", "forward"),
        ("transpose(jvp())", "backward"),
        ("transpose(jvp(jvp()))/rematted_computation", "recompute"),
        ("transpose(jvp(rematted_computation))", "recompute"),
        # A gradient inside of a loss, with a checkpoint in it.
        ("jvp(transpose(jvp()))", "forward"),
        ("jvp(transpose(jvp()))/rematted_computation", "forward"),
        ("transpose(jvp(transpose(jvp())))", "backward"),
        ("transpose()", "update"),
    ],
)
def test_phase(tags, phase):
    assert phase_of(tags) == phase


# Residuals: those of the loss, as function mode lists them.


def _scalar(fun):
    return lambda params, *rest: jnp.sum(jax.tree.leaves(fun(params, *rest))[0])


@pytest.mark.integration
@pytest.mark.parametrize("name", CASES)
def test_residuals_are_those_of_the_loss(name):
    fun, args = CASES[name]
    fun = _scalar(fun)
    expected = of_function(fun, *args)
    found = step_residuals(step_of(stepping(fun), *args))
    assert rows(found) == rows(expected)
    assert read_by(found) == read_by(expected)
    assert any(r.origin.kind == "computed" for r in found)
    paths = [
        Counter(r.origin.path for r in rs if r.origin.kind == "argument" and r.consumers)
        for rs in (found, expected)
    ]
    assert paths[0] == paths[1]


def _kept_as_listed(step):
    """Whether any residual is computed, and in host memory; their bytes are those of the list."""
    totals = totals_of(step_residuals(step))
    assert step_kept_nbytes(step) == (totals.computed_nbytes, totals.host_nbytes)
    return totals.computed_nbytes > 0, totals.host_nbytes > 0


@pytest.mark.integration
@pytest.mark.parametrize("name", CASES)
def test_kept_bytes_are_those_of_the_list(name):
    fun, args = CASES[name]
    assert any(_kept_as_listed(step_of(stepping(_scalar(fun)), *args)))


def test_kept_bytes_of_casts_and_stacks_are_those_of_the_list():
    def looped(params, x):
        half = [w.astype(jnp.bfloat16) for w in params]
        return lax.scan(lambda x, _: (mlp(half, x), x), x, length=3)[0].sum().astype(jnp.float32)

    for fun in (sgd, stepping(loss), stepping(looped)):
        assert _kept_as_listed(step_of(fun, PARAMS, X)) == (True, False)


def test_a_stack_of_an_argument_is_no_argument():
    length = 3

    def stacked(params, x):
        _, xs = lax.scan(lambda c, _: (c, x), 0.0, length=length)
        return jnp.sum(jnp.sin(xs @ params[0]))

    found = step_residuals(step_of(stepping(stacked), PARAMS, X))
    kinds = {r.origin.kind for r in found if r.aval.shape == (length, *X.shape)}
    assert kinds == {"computed"}
    assert _kept_as_listed(step_of(stepping(stacked), PARAMS, X)) == (True, False)


def _holds(program, kind):
    if isinstance(program, tuple):
        return any(_holds(part, kind) for part in program)
    return program == kind


@pytest.mark.integration
@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(programs.programs)
def test_programs(program):
    # Out of a scan JAX moves eqns without their outer tags: those of a gradient inside of the loss
    # then look like one of their own.
    assume(not _holds(program, "gradient"))
    fun, args = programs.function(program), programs.arguments()
    call = arguments(Question(fun, args))
    try:
        expected = trace(fun, call, False, Frames())
    except Exception:  # JAX itself cannot
        assume(False)

    def step(W, x, s, k):
        return updated((W, x, s), jax.grad(fun, (0, 1, 2))(W, x, s, k))

    made = step_of(step, *args)
    assert rows(step_residuals(made)) == rows(residuals(expected))

    cost = step_cost(made)
    assert cost.total == jaxpr_cost(made.jaxpr)
    backward = jaxpr_cost(expected.backward).matmul_flops
    assert cost.backward.matmul_flops + cost.recompute.matmul_flops == backward


def _summed(loop):
    """A loss with a rule of its own, whose backward pass runs a loop; it keeps sin, cos and exp of
    its argument."""

    @jax.custom_vjp
    def f(x):
        return jnp.sum(jnp.sin(x))

    def fwd(x):
        return f(x), (jnp.sin(x), jnp.cos(x), jnp.exp(x))

    f.defvjp(fwd, lambda kept, ct: (loop(*kept, ct),))
    return f


def _dead_carry(s, c, e, ct):
    body = lambda carry: (carry[0] + 1, carry[1] * c, carry[2] + e * s)
    return lax.while_loop(lambda carry: carry[0] < 3, body, (0, ct * c, e))[1]


def _dead_carry_of_a_scan_in_it(s, c, e, ct):
    def body(carry):
        inner = lambda g, _: ((g[0] * c, g[1] + e * s), None)
        return carry[0] + 1, *lax.scan(inner, carry[1:], None, length=2)[0]

    return lax.while_loop(lambda carry: carry[0] < 3, body, (0, ct * c, e))[1]


def _read_by_nothing(s, c, e, ct):
    def body(carry):
        e * s
        return carry[0] + 1, carry[1] * c

    return lax.while_loop(lambda carry: carry[0] < 3, body, (0, ct * c))[1]


def _read_by_nothing_in_a_scan(s, c, e, ct):
    def body(carry):
        inner = lambda g, _: ((g[0] * c, g[1] + e * s), None)
        return carry[0] + 1, lax.scan(inner, (carry[1], e), None, length=2)[0][0]

    return lax.while_loop(lambda carry: carry[0] < 3, body, (0, ct * c))[1]


def _carry_of_a_carry(s, c, e, ct):
    body = lambda carry: (carry[0] + 1, carry[1] * carry[2], carry[2] + c, carry[3] + e * s)
    return lax.while_loop(lambda carry: carry[0] < 3, body, (0, ct * c, c, e))[1]


def _carry_of_the_condition(s, c, e, ct):
    body = lambda carry: (carry[0] * c, carry[1] + e * s)
    return lax.while_loop(lambda carry: jnp.sum(carry[1]) < 3, body, (ct * c, e))[0]


def _result_of_a_branch(s, c, e, ct):
    return lax.cond(ct > 0, lambda: (c, e * s), lambda: (c * c, e))[0] * ct


@pytest.mark.parametrize(
    ("loop", "names"),
    [
        (_dead_carry, ["cos"]),
        (_dead_carry_of_a_scan_in_it, ["cos"]),
        (_read_by_nothing, ["cos"]),
        (_read_by_nothing_in_a_scan, ["cos"]),
        (_carry_of_a_carry, ["cos"]),
        (_carry_of_the_condition, ["cos", "exp", "sin"]),
        (_result_of_a_branch, ["cos"]),
    ],
)
def test_what_no_output_needs_is_not_read(loop, names):
    """Against what JAX leaves of the arguments of the backward pass when it lowers it."""
    fun = _summed(loop)

    def back(x):
        return jax.vjp(fun, x)[1]

    shapes = jax.eval_shape(back, X)
    pulled = jax.jit(lambda pulled: pulled(jnp.float32(1))).lower(shapes)
    (entry,) = (line for line in pulled.as_text().splitlines() if "@main" in line)
    found = sorted(r.origin.primitive for r in kept(stepping(fun), X))
    assert len(found) == entry.count("%arg")
    assert set(names) <= set(found)  # JAX prunes no `while` before 0.12


def test_a_jitted_gradient():
    """The same residuals one level down, without the values of another call."""

    def step(params, x):
        return updated(params, jax.jit(jax.grad(loss))(params, x))

    found = kept(step, PARAMS, X)
    assert rows(found) == rows(kept(sgd, PARAMS, X))
    assert {r.origin.within for r in found} == {("jit loss",)}


def test_accumulation_keeps_one_microbatch():
    found = kept(accumulating, PARAMS, f32(5, 3, 4))
    assert rows(found) == rows(kept(sgd, PARAMS, X))
    assert {r.origin.within for r in found} == {("scan ×5",)}
    assert {r.trips for r in found} == {1}


def test_a_loop_of_steps_reads_its_arguments():
    """What a trip is given is the step's own argument, not what the last trip made."""

    def step(params, xs):
        return lax.scan(lambda p, x: (sgd(p, x), None), params, xs)[0]

    found = step_residuals(step_of(step, PARAMS, f32(5, 3, 4)))
    assert [r.origin.path for r in found if r.origin.kind == "argument"] == ["params[1]", "xs"]


def test_two_gradients():
    """Of a step on each of two networks; the second is taken at what the first one changed."""

    def step(g, d, z):
        d = updated(d, jax.grad(lambda d: jnp.sum(mlp(d, mlp(g, z))))(d))
        return updated(g, jax.grad(lambda g: jnp.sum(mlp(d, mlp(g, z))))(g)), d

    def first(d, g, z):
        return jnp.sum(mlp(d, mlp(g, z)))

    def second(g, d, z):
        return jnp.sum(mlp(d, mlp(g, z)))

    args = PARAMS, PARAMS, X
    found = kept(step, *args)
    separate = rows(of_function(first, *args)) + rows(of_function(second, *args))
    # The changed networks are arguments of the second gradient, and values of the step. The first
    # layer's weights are not needed again, but by the gradient of its input.
    between = [r for r in found if r.aval.shape == (4, 4)]
    assert rows(found) - rows(between) == separate
    assert len(between) == 2
    assert {r.origin.primitive for r in between} == {"sub"}


def test_a_cotangent_is_no_residual():
    def step(params, x):
        y, vjp = jax.vjp(lambda p: mlp(p, x), params)
        return updated(params, vjp(y - jnp.cos(x))[0])

    found = kept(step, PARAMS, X)
    assert rows(found) == rows(of_function(mlp, PARAMS, X))
    assert "cos" not in {r.origin.primitive for r in found}


def test_separately_jitted_passes():
    def step(params, x):
        y, vjp = jax.jit(lambda p: jax.vjp(lambda p: mlp(p, x), p))(params)
        return updated(params, jax.jit(lambda v, c: v(c))(vjp, y - 1.0)[0])

    assert rows(kept(step, PARAMS, X)) == rows(of_function(mlp, PARAMS, X))


def test_a_cast_before_the_gradient_is_kept():
    def step(params, x):
        narrow = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)
        g = jax.grad(lambda p: loss(p, x.astype(jnp.bfloat16)).astype(jnp.float32))(narrow)
        return updated(params, jax.tree.map(lambda g: g.astype(jnp.float32), g))

    casts = [r for r in kept(step, PARAMS, X) if r.origin.path]
    assert {(r.origin.path, r.aval.dtype) for r in casts} == {
        ("params[1]", "bfloat16"),
        ("x", "bfloat16"),
    }


def test_consumers_are_of_the_backward_pass():
    found = kept(train_step.train_step_checkpointed, *train_step.train_step_checkpointed_inputs())
    phases = Counter(c.phase for r in found for c in r.consumers)
    assert set(phases) == {"backward", "recompute"}
    plain = kept(train_step.train_step, *train_step.train_step_inputs())
    assert {c.phase for r in plain for c in r.consumers} == {"backward"}


def test_lines_and_aux():
    step = step_of(train_step.train_step, *train_step.train_step_inputs())
    found = step_residuals(step)
    for r in found:
        if isinstance(r.origin, Computed):
            assert r.origin.location is not None
            assert r.origin.location.file.endswith("train_step.py")

    def aux(params, x):
        def with_hidden(params):
            h = jnp.sin(x @ params[0])
            return jnp.sum(jnp.tanh(h @ params[1])), h

        g, h = jax.grad(with_hidden, has_aux=True)(params)
        return updated(params, g), h

    marks = [r.marks for r in kept(aux, PARAMS, X) if r.origin.primitive == "sin"]
    assert marks == [(Mark.PRIMAL_OUTPUT,)]


# Roles.


@pytest.mark.parametrize("name", ["train_step", "train_step_accumulated", "train_step_donated"])
def test_roles(name):
    args = getattr(train_step, f"{name}_inputs")()
    inputs, outputs = kinds(getattr(train_step, name), *args)
    heads = {"params": "parameters", "opt_state": "optimizer-state", "batch": "batch"}
    heads["batches"] = "batch"
    assert inputs == {p: heads[p.partition("[")[0]] for p in inputs}
    donated = Counter(["parameters"] * 14 + ["optimizer-state"] * 29 + ["output"] * 2)
    assert len(outputs) == len(jax.tree.leaves(jax.eval_shape(getattr(train_step, name), *args)))
    assert Counter(outputs) == (donated if "donated" in name else {"output": len(outputs)})


@pytest.mark.integration
def test_roles_of_optax():
    pytest.importorskip("optax")
    args = train_step.train_step_optax_inputs()
    inputs, _ = kinds(train_step.train_step_optax, *args)
    by_head = Counter((p.partition("[")[0], kind) for p, kind in inputs.items())
    assert by_head == {
        ("params", "parameters"): 14,
        ("opt_state", "optimizer-state"): 29,
        ("batch", "batch"): 2,
    }


def test_roles_of_batch_like_parameters():
    """Shapes tell nothing: the batch is as large as a parameter and a moment."""
    square = f32(4, 4)

    def step(params, momentum, x):
        g = jax.grad(loss)(params, x)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, g)
        return updated(params, momentum), momentum

    inputs, _ = kinds(step, [square], [square], square)
    assert inputs == {
        "params[0]": "parameters",
        "momentum[0]": "optimizer-state",
        "x": "batch",
    }


def test_roles_in_a_loop_of_steps():
    def step(params, momentum, xs):
        def one(carry, x):
            params, momentum = carry
            momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, jax.grad(loss)(params, x))
            return (updated(params, momentum), momentum), None

        return lax.scan(one, (params, momentum), xs)[0]

    inputs, _ = kinds(step, PARAMS, PARAMS, f32(5, 3, 4))
    assert list(inputs.values()) == ["parameters"] * 2 + ["optimizer-state"] * 2 + ["batch"]


def test_roles_of_delayed_gradients():
    """A parameter is changed by the gradient of the trip before."""

    def step(params, waiting, xs):
        def one(carry, x):
            params, waiting = carry
            return (updated(params, waiting), jax.grad(loss)(params, x)), None

        return lax.scan(one, (params, waiting), xs)[0]

    inputs, _ = kinds(step, PARAMS, PARAMS, f32(5, 3, 4))
    assert [k for p, k in inputs.items() if p.startswith("params")] == ["parameters"] * 2


def test_roles_of_running_means_of_their_own():
    def step(w, stats, x):
        def error(w):
            h = x @ w - stats["mean"]
            return jnp.sum(jnp.tanh(h) ** 2), {"mean": 0.9 * stats["mean"] + 0.1 * h.mean(0)}

        g, stats = jax.grad(error, has_aux=True)(w)
        return w - g, stats

    inputs, _ = kinds(step, f32(4, 4), {"mean": f32(4)}, X)
    assert inputs == {"w": "parameters", "stats['mean']": "argument", "x": "batch"}


def test_roles_of_returned_gradients():
    inputs, outputs = kinds(jax.value_and_grad(loss), PARAMS, X)
    assert list(inputs.values()) == ["parameters", "parameters", "batch"]
    assert outputs == ["output", "gradient", "gradient"]


def test_roles_of_master_weights():
    """The parameters are remade of the copy that the optimizer keeps."""

    def step(params, master, x):
        g = jax.grad(lambda p: loss(p, x).astype(jnp.float32))(params)
        master = jax.tree.map(lambda m, g: m - g.astype(jnp.float32), master, g)
        return jax.tree.map(lambda m: m.astype(jnp.bfloat16), master), master

    narrow = [jax.ShapeDtypeStruct((4, 4), jnp.bfloat16)] * 2
    inputs, _ = kinds(step, narrow, PARAMS, jax.ShapeDtypeStruct((3, 4), jnp.bfloat16))
    assert list(inputs.values()) == ["parameters"] * 2 + ["optimizer-state"] * 2 + ["batch"]


def test_roles_of_running_means_and_frozen_layers():
    def step(state, x, rate):
        def error(w):
            h = x @ state["frozen"] - state["mean"]
            return jnp.sum(jnp.tanh(h @ w) ** 2), 0.9 * state["mean"] + 0.1 * h.mean(0)

        g, mean = jax.grad(error, has_aux=True)(state["w"])
        return {**state, "w": state["w"] - rate * g, "mean": mean}

    inputs, _ = kinds(step, {"w": f32(4, 4), "frozen": f32(4, 4), "mean": f32(4)}, X, f32())
    assert inputs == {
        "state['frozen']": "frozen-weights",
        "state['mean']": "argument",
        "state['w']": "parameters",
        "x": "batch",
        "rate": "argument",
    }


# The program and its peak.


@pytest.mark.integration
@pytest.mark.parametrize("name", ["train_step", "train_step_donated"])
def test_outside_bytes_are_the_compilers(name):
    """Arguments, outputs and what is taken over: exact."""
    fun, args = getattr(train_step, name), getattr(train_step, f"{name}_inputs")()
    if name == "train_step":
        fun = jax.jit(fun)
    step = step_of(fun, *args)
    found = peak(
        lower(step_program(step), profile_of(parse_place("tpu:v5p"))), OpSources(step)
    ).peak
    compiled = fun.lower(*args).compile().memory_analysis()
    if compiled is None:
        pytest.skip("this jaxlib has no memory analysis for the CPU")
    assert found.arguments_nbytes == compiled.argument_size_in_bytes
    # XLA pads each small output, and counts the tuple of them.
    assert found.outputs_nbytes <= compiled.output_size_in_bytes
    assert compiled.output_size_in_bytes - found.outputs_nbytes <= 64 * len(
        jax.tree.leaves(jax.eval_shape(fun, *args))
    )
    assert found.aliased_nbytes == compiled.alias_size_in_bytes
    assert (found.aliased_nbytes > 0) == (name == "train_step_donated")


def test_breakdown():
    args = train_step.train_step_inputs()
    sizes = [sum(s.size * s.dtype.itemsize for s in jax.tree.leaves(a)) for a in args]
    for fun in (train_step.train_step, train_step.train_step_donated):
        step = step_of(fun, *args)
        found = peak(
            lower(step_program(step), profile_of(parse_place("tpu:v5p"))), OpSources(step)
        ).peak
        parts = dict(found.breakdown)
        assert [parts[k] for k in ("parameters", "optimizer-state", "batch")] == sizes
        assert sum(parts.values()) == found.nbytes
        assert parts["residual"] > 0


def test_phases_of_ops():
    """Preparation is of the forward pass, clipping and updating of the update; both in a loop."""

    def one(params, x):
        x = jnp.log1p(x)
        g = jax.grad(loss)(params, x)
        return jax.tree.map(lambda w, g: w - jnp.arctan(g), params, g)

    def looped(params, xs):
        return lax.scan(lambda p, x: (one(p, x), None), params, xs)[0]

    def twice(params, x):
        return one(one(params, x), jnp.exp(x))

    for fun, x in ((one, X), (looped, f32(5, 3, 4)), (jax.jit(one), X), (twice, X)):
        step = step_of(fun, PARAMS, x)
        ops = all_ops(step_program(step).block.ops)
        assert {op.phase for op in ops if op.name == "log1p"} == {"forward"}
        assert {op.phase for op in ops if op.name == "atan"} == {"update"}
        steps_taken = {one: 1, twice: 2}.get(fun)
        if steps_taken:
            assert step_cost(step).update.transcendentals == steps_taken * 32
        assert {op.phase for op in ops if op.name == "tanh"} == {"forward"}
        assert {op.phase for op in ops if op.name == "dot_general"} == {"forward", "backward"}


def test_phase_of_what_only_the_optimizer_reads():
    """Weight decay needs no gradient; it is of the update all the same."""

    def step(params, x):
        return jax.tree.map(lambda w, g: w - g - jnp.arcsinh(w), params, jax.grad(loss)(params, x))

    ops = all_ops(step_program(step_of(step, PARAMS, X)).block.ops)
    assert {op.phase for op in ops if op.name == "asinh"} == {"update"}


def test_phases_of_a_gradient_inside_the_loss():
    """The backward pass of the inner one is of the forward pass of the outer one."""
    dots = Counter(
        op.phase
        for op in all_ops(step_program(step_of(stepping(force_matching), PARAMS, X)).block.ops)
        if op.name == "dot_general"
    )
    call = arguments(Question(force_matching, (PARAMS, X), argnums=(0,)))
    expected = trace(force_matching, call, False, Frames())
    assert dots["forward"] * 96 == jaxpr_cost(expected.forward).matmul_flops
    assert dots["backward"] * 96 == jaxpr_cost(expected.backward).matmul_flops


# Cost.


@pytest.mark.parametrize("kind", ["", "_checkpointed"])
def test_cost(kind):
    args = train_step.train_step_inputs()
    step = step_of(getattr(train_step, f"train_step{kind}"), *args)
    layer = train_step.block if not kind else jax.checkpoint(train_step.block)

    def value(params, batch):
        return train_step.loss(params, batch, layer)[0]

    call = arguments(Question(value, (args[0], args[2]), argnums=(0,)))
    expected, cost = trace(value, call, False, Frames()), step_cost(step)
    assert cost.total == jaxpr_cost(step.jaxpr)
    assert cost.forward.matmul_flops == jaxpr_cost(expected.forward).matmul_flops
    backward = cost.backward.matmul_flops + cost.recompute.matmul_flops
    assert backward == jaxpr_cost(expected.backward).matmul_flops
    assert cost.update.matmul_flops == 0
    # Adam: 3 for the first moment, 4 for the second, 4 for the parameter, and a square root.
    count = sum(s.size for s in jax.tree.leaves(args[0]))
    assert 11 * count <= cost.update.elementwise_flops < 11.01 * count
    assert count <= cost.update.transcendentals < 1.01 * count
    # Of each block all but its last matmul is needed again.
    layers, tokens, width = train_step.LAYERS, train_step.BATCH * train_step.SEQUENCE, 32
    again = 2 * tokens * width * (3 + 1 + 4) * width + 4 * tokens * train_step.SEQUENCE * width
    assert cost.recompute.matmul_flops == (layers * again if kind else 0)


def test_cost_of_an_accumulated_step():
    args = train_step.train_step_accumulated_inputs(4)
    cost = step_cost(step_of(train_step.train_step_accumulated, *args))
    once = step_cost(step_of(train_step.train_step, *train_step.train_step_inputs()))
    assert cost.forward.matmul_flops == 4 * once.forward.matmul_flops
    assert cost.backward.matmul_flops == 4 * once.backward.matmul_flops


def test_cost_of_a_frozen_model():
    """Its forward pass is of the step's, though no gradient is taken of it."""

    def step(params, teacher, x):
        y = mlp(teacher, x)
        return updated(params, jax.grad(lambda p: jnp.sum((mlp(p, x) - y) ** 2))(params))

    cost = step_cost(step_of(step, PARAMS, PARAMS, X))
    assert cost.forward.matmul_flops == 2 * 2 * 2 * 3 * 4 * 4
    assert cost.update.matmul_flops == 0


# Other libraries and containers.


def test_user_classes_and_what_is_no_array():
    @jax.tree_util.register_pytree_with_keys_class
    class State:
        def __init__(self, params, activation):
            self.params, self.activation = params, activation

        def tree_flatten_with_keys(self):
            key = jax.tree_util.GetAttrKey
            children = ((key("params"), self.params), (key("activation"), self.activation))
            return children, None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    def step(state, x):
        def value(params):
            return jnp.sum(state.activation(x @ params["w"]))

        g = jax.grad(value)(state.params)
        return State(updated(state.params, g), state.activation), "done"

    inputs, outputs = kinds(step, State({"w": f32(4, 4)}, jnp.tanh), X)
    assert inputs == {"state.params['w']": "parameters", "x": "batch"}
    assert outputs == ["output"]


def test_linen_and_optax():
    nn, optax = pytest.importorskip("flax.linen"), pytest.importorskip("optax")
    state_of = pytest.importorskip("flax.training.train_state").TrainState

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(nn.gelu(nn.Dense(16)(x)))

    net = Net()

    def step(state, x, y):
        def value(params):
            return jnp.mean((state.apply_fn({"params": params}, x) - y) ** 2)

        v, g = jax.value_and_grad(value)(state.params)
        return state.apply_gradients(grads=g), v

    x, y = f32(8, 4), f32(8, 2)
    key = jax.random.key(0)

    def init(key):
        params = net.init(key, jnp.zeros(x.shape))["params"]
        return state_of.create(apply_fn=net.apply, params=params, tx=optax.adam(1e-3))

    inputs, outputs = kinds(step, jax.eval_shape(init, key), x, y)
    counts = Counter(inputs.values())
    assert counts == {"parameters": 4, "optimizer-state": 10, "batch": 2}
    assert {p for p, kind in inputs.items() if kind == "batch"} == {"x", "y"}
    assert all(p.startswith("state.params") for p, k in inputs.items() if k == "parameters")
    assert set(outputs) == {"output"}


def test_equinox():
    eqx = pytest.importorskip("equinox")

    @eqx.filter_jit
    def step(model, x, y):
        def value(model):
            return jnp.mean((jax.vmap(model)(x) - y) ** 2)

        v, g = eqx.filter_value_and_grad(value)(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, g)), v

    model = eqx.filter_eval_shape(lambda key: eqx.nn.MLP(4, 2, 16, 1, key=key), jax.random.key(0))
    args = model, f32(8, 4), f32(8, 2)
    inputs, _ = kinds(step, *args)
    assert Counter(inputs.values()) == {"parameters": 4, "batch": 2}
    found = kept(step, *args)

    def value(params):
        rest = eqx.partition(model, lambda leaf: hasattr(leaf, "dtype"))[1]
        full = eqx.combine(params, rest)
        return jnp.mean((jax.vmap(full)(jnp.zeros(args[1].shape)) - jnp.zeros(args[2].shape)) ** 2)

    params = eqx.filter(model, lambda leaf: hasattr(leaf, "dtype"))
    wide = [r for r in found if r.aval.shape == (8, 16)]
    expected = [r for r in of_function(value, params) if r.aval.shape == (8, 16)]
    assert rows(wide) == rows(expected)
    assert wide


def test_shard_map():
    shard_map = getattr(jax, "shard_map", None)
    if shard_map is None:
        shard_map = pytest.importorskip("jax.experimental.shard_map").shard_map
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("i",))
    spec = jax.sharding.PartitionSpec

    def one(params, x):
        g = jax.grad(loss)(params, x)
        return updated(params, jax.tree.map(lambda g: lax.pmean(g, "i"), g))

    # Without the check of replication, which would sum the gradients by itself.
    unchecked = {"check_vma": False} if hasattr(jax, "shard_map") else {"check_rep": False}
    step = shard_map(one, mesh=mesh, in_specs=(spec(), spec("i")), out_specs=spec(), **unchecked)
    assert rows(kept(step, PARAMS, X)) == rows(kept(sgd, PARAMS, X))
    inputs, _ = kinds(step, PARAMS, X)
    assert list(inputs.values()) == ["parameters", "parameters", "batch"]
