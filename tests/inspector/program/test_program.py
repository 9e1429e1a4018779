"""Jaxprs as programs: what is inlined, merged, dropped and moved."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, assume, given, settings
from jax import lax

from jaxresid import jax_compat
from jaxresid.inspector.call.arguments import arguments
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.phases import BACKWARD, FORWARD, RECOMPUTE, phase_of
from jaxresid.inspector.memory.compilers import profile_of
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.program import inlining, reading
from jaxresid.inspector.program.build import ValueRole, program_of_jaxpr, value_and_gradients
from jaxresid.inspector.program.ops import all_ops
from jaxresid.inspector.trace.function import trace
from jaxresid.xla.places import parse_place
from tests import programs
from tests.small import f32

cp = jax.checkpoint_policies
W, X = f32(8, 8), f32(4, 8)


def program(fun, *args):
    return value_and_gradients(trace(fun, arguments(Question(fun, args)), False, Frames()))


def plain(fun, *args, **options):
    jaxpr = jax_compat.open_jaxpr(jax.jit(fun).trace(*args).jaxpr)
    inputs = options.pop("inputs", [ValueRole("argument")] * len(jaxpr.invars))
    return program_of_jaxpr(jaxpr, inputs, [ValueRole("output")] * len(jaxpr.outvars), **options)


def names(found, *phases):
    return [op.name for op in found.block.ops if not phases or op.phase in phases]


def undefined(block):
    """Values that are read before anything makes them."""
    have, missing = set(block.inputs), []
    for op in block.ops:
        missing += [v for v in op.operands if v.literal is None and v not in have]
        for body in op.bodies:
            missing += undefined(body)
        have.update(op.results)
    return missing + [v for v in block.outputs if v.literal is None and v not in have]


def test_calls_are_inlined_and_equal_ops_merged():
    sine = jax.jit(jnp.sin)
    found = plain(lambda x: sine(x) + jnp.sin(x) * 2, X)
    assert names(found) == ["sin", "mul", "add"]
    assert names(plain(lambda x: sine(x) + jnp.sin(x) * 2, X, as_written=True)).count("sin") == 2


def test_what_calls_and_programs_share_is_read_once(monkeypatch):
    layer = jax.jit(lambda x: jnp.sin(x) * 2 + 1)

    def fun(x):
        return jnp.tanh(layer(layer(layer(x))))

    read, literals, literal = [], [], reading.literal_of
    monkeypatch.setattr(reading, "phase_of", lambda tags: read.append(tags) or phase_of(tags))
    for module in (reading, inlining):
        monkeypatch.setattr(module, "literal_of", lambda v: literals.append(v) or literal(v))
    jaxpr = jax_compat.open_jaxpr(jax.jit(fun).trace(X).jaxpr)
    longer = jaxpr.replace(outvars=[*jaxpr.outvars, *jaxpr.eqns[0].outvars])
    reader, wanted = reading.JaxprReader(), ["sin", "mul", "add"] * 3 + ["tanh"]
    roles = [ValueRole("argument")], [ValueRole("output")]
    assert names(program_of_jaxpr(jaxpr, *roles, reader=reader)) == wanted
    assert len(read) == 4  # each op of the layer, and the tanh
    assert len(literals) == 2
    # Another jaxpr with the same eqns, as a variant of a step has.
    other = program_of_jaxpr(longer, roles[0], roles[1] * 2, reader=reader)
    assert names(other) == wanted
    assert (len(read), len(literals)) == (4, 2)


def test_what_nobody_reads_is_dropped_in_loops_too():
    def fun(x):
        def body(c, _):
            jnp.cos(c)
            return jnp.sin(c), jnp.tanh(c)

        c, _ = lax.scan(body, x, None, length=3)
        jnp.exp(x)
        return c

    found = plain(fun, X)
    assert [op.name for op in all_ops(found.block.ops)] == ["scan", "sin"]


def test_a_barrier_keeps_equal_ops_apart_and_only_a_barrier():
    def loss(prevent_cse):
        layer = jax.checkpoint(lambda x, w: jnp.sin(x @ w), prevent_cse=prevent_cse)
        return lambda x, w: layer(layer(x, w), w).sum()

    held, free = program(loss(True), X, W), program(loss(False), X, W)
    matmuls = [op for op in held.block.ops if op.name == "dot_general"]
    assert len([op for op in matmuls if op.phase == RECOMPUTE]) >= 1
    if "barrier" in names(free):
        pytest.skip("this JAX ignores prevent_cse")
    assert RECOMPUTE not in {op.phase for op in free.block.ops if op.name == "dot_general"}
    # What is recomputed without a barrier belongs before the backward pass.
    phases = [op.phase for op in free.block.ops]
    last = max(i for i, p in enumerate(phases) if p in (FORWARD, RECOMPUTE))
    assert last < phases.index(BACKWARD)


def test_recomputation_comes_when_it_is_read():
    def loss(ws, x):
        for w in ws:
            x = jnp.sin(x @ w)
        return x.sum()

    found = program(jax.checkpoint(loss, policy=cp.dots_saveable), [W] * 4, X)
    phases = [(op.name, op.phase) for op in found.block.ops]
    first = phases.index(("dot_general", BACKWARD))
    assert [p for p in phases[first:] if p[1] == RECOMPUTE and p[0] in ("sin", "cos")]
    # A chain of which the last is read first is recomputed at once.
    found = program(jax.checkpoint(loss), [W] * 4, X)
    phases = [(op.name, op.phase) for op in found.block.ops]
    first = phases.index(("dot_general", BACKWARD))
    assert ("dot_general", RECOMPUTE) not in phases[first:]


def test_a_checkpoint_that_is_not_differentiated_is_a_call():
    layer = jax.checkpoint(jnp.sin)
    found = program(lambda x: (x * layer(lax.stop_gradient(x))).sum(), X)
    assert "barrier" not in names(found)


def test_a_gradient_inside_a_loss_is_part_of_its_forward_pass():
    def loss(x):
        force = jax.grad(lambda x: jnp.sin(x).sum())(x)
        return (force**2).sum()

    found = program(loss, X)
    assert {op.phase for op in found.block.ops if op.name == "cos"} == {FORWARD}


@pytest.mark.parametrize("donate", [False, True])
def test_one_donated_argument_lends_its_buffer_once(donate):
    found = plain(
        lambda x: (x + 1.0, x * 2.0), X, inputs=[ValueRole("argument", "x", donated=donate)]
    )
    nbytes = 4 * 8 * 4
    total = peak_nbytes(lower(found, profile_of(parse_place("tpu:v5p"))))
    assert total == (2 if donate else 3) * nbytes


@pytest.mark.integration
@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(programs.programs)
def test_every_value_of_random_programs_is_made_before_it_is_read(steps):
    assume(programs.is_differentiable(programs.function(steps)))
    assert not undefined(program(programs.function(steps), *programs.arguments()).block)


def test_what_is_recomputed_with_another_waits_for_its_own_operands():
    # Found by the random programs: a sort in one checkpoint reads what another's barrier holds.
    def loss(x, W):
        first = jax.checkpoint(lambda c: jnp.exp(c) @ W)
        second = jax.checkpoint(jnp.sort, policy=cp.dots_saveable)
        y = second(first(x))
        return (second(first(y)) * y).sum()

    assert not undefined(program(loss, f32(8), W).block)


def test_every_value_is_made_before_it_is_read():
    def loss(ws, x):
        def body(c, w):
            return jax.checkpoint(lambda c, w: jnp.sin(c @ w))(c, w), None

        x, _ = lax.scan(body, x, ws)
        return lax.cond(x[0, 0] > 0, jnp.sum, lambda x: jnp.exp(x).sum(), x)

    assert not undefined(program(loss, f32(3, 8, 8), X).block)
