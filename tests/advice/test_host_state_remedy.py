"""A plan's optimizer state in host memory, against a step written by hand, numbers, and XLA."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fixtures.inspect import optimizer
from jaxresid import jax_compat
from jaxresid.advice.compile.ahead_of_time import CompileSettings, PolicyProgram, compiled_rows
from jaxresid.advice.compile.limited import LimitedCompiles
from jaxresid.advice.plan.lower_bound import remedies
from jaxresid.advice.plan.lower_bound.host_state import with_host_state
from jaxresid.advice.plan.lower_bound.remedies import Remedies
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.jaxpr.nesting import eqns_in, nests
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.peak import peak_nbytes
from jaxresid.inspector.program.step import step_program
from jaxresid.inspector.report import subject
from jaxresid.xla.places import parse_place

optax = pytest.importorskip("optax")

WIDTH, ON = 512, "gpu:h100"
pytestmark = pytest.mark.skipif(
    not jax_compat.tells_memory(), reason="until 0.7.2 JAX does not tell what is in host memory"
)


def traced(fun, args, on=ON):
    return subject(Question(fun, args, on=on))


@functools.cache
def optimizer_step(name="donated_step", width=WIDTH, on=ON):
    return traced(getattr(optimizer, name), getattr(optimizer, f"{name}_inputs")(width), on)


def moved(found):
    made = with_host_state(found.trace)
    assert not isinstance(made, str), made
    return made


def program_of(made):
    return step_program(made.step, made.roles)


def found_remedies(found, compiles=None, needed=None):
    """Return the remedies of a step as it is written, by kind, and what is left out."""
    trace = found.trace
    lowered = lower(found.program, found.profile)
    figures = {"peak_nbytes": found.peak.nbytes, "few": None, "lowered": lowered}
    variant = types.SimpleNamespace(trace=trace, **figures)
    shown = types.SimpleNamespace(variant=variant, changes=0, combination={})
    made = Remedies(found, found.variants(), shown, 1 << 20, None, compiles, needed)
    return {each.kind: each for each in made.found(is_short=True)}, made.left_out


# -- what is traced


def written_by_hand(params, states, x):
    """`array_by_array_step`, with each new state an array before it is put back."""

    def update_one(param, gradient, state):
        state = jax.device_put(state, jax.memory.Space.Device)
        updates, state = optax.adam(0.1).update(gradient, state, param)
        made = jax.lax.optimization_barrier((optax.apply_updates(param, updates), state))
        return made[0], jax.device_put(made[1], jax.memory.Space.Host)

    value, gradient = jax.value_and_grad(optimizer.loss)(params, x)
    gradient, _ = optax.clip_by_global_norm(1.0).update(gradient, optax.EmptyState())
    made = [
        jax.lax.cond(jnp.isfinite(value), update_one, optimizer.keep_one, *each)
        for each in zip(params, gradient, states, strict=True)
    ]
    return value, [param for param, _ in made], [state for _, state in made]


def written_by_hand_and_donating(params, states, x):
    return jax.jit(written_by_hand, donate_argnums=(0, 1))(params, states, x)


@pytest.mark.integration
@pytest.mark.parametrize("width", [256, WIDTH])
@pytest.mark.parametrize("on", ["gpu:h100", "tpu:v5e"])
def test_it_is_worth_what_the_step_written_by_hand_is(on, width):
    found = optimizer_step(width=width, on=on)
    remedy = found_remedies(found)[0]["host-state"]
    args = optimizer.array_by_array_step_inputs(width)
    by_hand = traced(written_by_hand_and_donating, args, on).peak.nbytes
    # By hand Adam's counters are in host memory too, and there is one for each array.
    assert remedy.peak_nbytes == pytest.approx(by_hand, abs=64)
    assert remedy.saved_nbytes == found.peak.nbytes - remedy.peak_nbytes > 0
    # The range of estimates was made without programs with state in host memory.
    assert not remedy.confirmed and remedy.answer == "too close"
    assert remedy.change == (
        "optimizer state (state) in host memory, fetched, updated and put back array by array in a"
        " jax.lax.cond"
    )


def split_over(devices, tree):
    """Return arrays split over a mesh along their first dim, in the memory that they are in."""
    mesh = jax_compat.new_abstract_mesh({"data": devices})

    def split(leaf):
        spec = PartitionSpec("data") if leaf.ndim else PartitionSpec()
        kind = getattr(leaf.sharding, "memory_kind", None)
        made = NamedSharding(mesh, spec, memory_kind=kind)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=made)

    return jax.tree.map(split, tree)


@pytest.mark.integration
def test_on_a_mesh_it_is_worth_what_the_split_step_written_by_hand_is():
    found = traced(optimizer.donated_step, split_over(4, optimizer.step_inputs(WIDTH)))
    remedy = found_remedies(found)[0]["host-state"]
    args = split_over(4, optimizer.array_by_array_step_inputs(WIDTH))
    assert remedy.peak_nbytes == pytest.approx(
        traced(written_by_hand_and_donating, args).peak.nbytes, abs=64
    )
    assert remedy.peak_nbytes < optimizer_step(width=WIDTH).peak.nbytes / 2
    made = moved(found).step.arguments
    hosted = [leaf.sharding for leaf in made.leaves if leaf.sharding.memory_kind == "pinned_host"]
    assert len(hosted) == 2 * optimizer.LAYERS
    assert {sharding.spec for sharding in hosted} == {PartitionSpec("data")}


def test_only_the_state_leaves_the_device():
    found = optimizer_step()
    made = moved(found)
    assert made.count == optimizer.LAYERS and len(made.paths) == 2 * optimizer.LAYERS
    assert all(".mu[" in path or ".nu[" in path for path in made.paths)
    assert made.part == 1 / optimizer.LAYERS
    spaces = {
        path: jax_compat.memory_space(v.aval)
        for path, v in zip(made.step.inputs, made.step.jaxpr.invars, strict=True)
    }
    assert {path for path, space in spaces.items() if space == "host"} == set(made.paths)
    assert made.step.donated == found.trace.donated


@pytest.mark.integration
@pytest.mark.parametrize("name", ["step", "donated_step"])
def test_it_computes_what_the_step_does(name):
    found = optimizer_step(name, 8)
    made = moved(found)
    structs = [found.trace.arguments.leaves[i] for i in found.trace.arguments.dynamic]
    rng = np.random.default_rng(0)
    values = [np.abs(rng.normal(size=s.shape)).astype(s.dtype) for s in structs]
    host = [
        jax.device_put(v, optimizer.memory("pinned_host")) if path in made.paths else v
        for v, path in zip(values, made.step.inputs, strict=True)
    ]
    run = jax.jit(jax_compat.as_function(made.step.closed))
    results = list(run(*host))
    as_it_is = jax.jit(found.trace.runnable())(values)
    for result, expected in zip(results, as_it_is, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)
    on_host = [r for r in results if r.sharding.memory_kind == "pinned_host"]
    assert len(on_host) == len(made.paths)


@pytest.mark.integration
def test_where_the_loss_is_not_finite_nothing_changes():
    made = moved(optimizer_step("step", 8))
    structs = [made.step.arguments.leaves[i] for i in made.step.arguments.dynamic]
    values = [
        jax.device_put(jnp.full(s.shape, 2, s.dtype), s.sharding)
        if path in made.paths
        else jnp.full(s.shape, jnp.nan if path == "x" else 2, s.dtype)
        for s, path in zip(structs, made.step.inputs, strict=True)
    ]
    results = jax.jit(jax_compat.as_function(made.step.closed))(*values)
    assert all(bool((r == 2).all()) for r in results if r.shape)


def test_arrays_whose_updates_need_each_other_are_fetched_together():
    def step(params, momentum, x):
        gradient = jax.grad(optimizer.loss)(params, x)
        momentum = [0.9 * m + g for m, g in zip(momentum, gradient, strict=True)]
        scale = 1 / (1 + sum(jnp.sum(m**2) for m in momentum))
        return [p - scale * m for p, m in zip(params, momentum, strict=True)], momentum

    params, x = optimizer.loss_inputs(WIDTH)
    made = moved(traced(step, (params, params, x)))
    assert made.count == 1 and made.part == 1


def dense_step(params, state, x, *, jitted=False):
    """A step of layers with biases; a layer and the update of all may be jitted within it."""
    within = jax.jit if jitted else lambda fun: fun

    def layer(made, w, b):
        return jnp.tanh(made @ w + b)

    def loss(params):
        made = x
        for w, b in params:
            made = within(layer)(made, w, b)
        return jnp.mean(made**2)

    gradient = jax.grad(loss)(params)
    updates, state = within(optax.adam(0.1).update)(gradient, state)
    return optax.apply_updates(params, updates), state


def dense_step_inputs(layers=3):
    w, b = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((WIDTH, WIDTH), (WIDTH,)))
    params = [(w, b)] * layers
    return params, jax.eval_shape(optax.adam(0.1).init, params), w


@pytest.mark.parametrize("jitted", [False, True])
def test_an_update_is_taken_apart_within_calls_and_small_state_stays(jitted):
    step = jax.jit(functools.partial(dense_step, jitted=jitted))
    made = moved(traced(step, dense_step_inputs()))
    assert made.count == 3
    assert all(path.endswith("[0]") for path in made.paths) and len(made.paths) == 6
    updates = [eqn for eqn in made.step.jaxpr.eqns if jax_compat.primitive_name(eqn) == "cond"]
    inside = [each for eqn in updates for nest in nests(eqn) for each in eqns_in(nest.jaxpr)]
    assert len(updates) == 3 and inside
    # No part of the backward pass waits with what it reads.
    assert "dot_general" not in {jax_compat.primitive_name(eqn) for eqn in inside}


@pytest.mark.integration
def test_steps_of_flax_have_it():
    nnx_steps = pytest.importorskip("fixtures.inspect.nnx_steps")
    found = traced(nnx_steps.train_step_functional, nnx_steps.train_step_functional_inputs())
    made = moved(found)
    assert made.count == len(made.paths) // 2 > 1
    program = program_of(made)
    assert peak_nbytes(lower(program, found.profile)) < found.peak.nbytes


# -- what is left out, and why


def plain_step(params, x):
    gradient = jax.grad(optimizer.loss)(params, x)
    return [p - 0.1 * g for p, g in zip(params, gradient, strict=True)]


def left_out(found):
    kinds, texts = found_remedies(found)
    assert "host-state" not in kinds
    (text,) = texts
    return text.removeprefix("the optimizer's state in host memory: ")


def test_a_step_without_state_says_so():
    text = left_out(traced(plain_step, optimizer.loss_inputs(WIDTH)))
    assert text == "no array of an optimizer's state was found on the device"


@pytest.mark.integration
def test_state_that_is_there_already_is_left():
    text = left_out(optimizer_step("host_state_step"))
    assert text == "no array of an optimizer's state was found on the device"


@pytest.mark.integration
def test_shardings_of_its_own_say_so():
    here = optimizer.memory("device")
    step = jax.jit(optimizer.step, out_shardings=here)
    text = left_out(traced(step, optimizer.step_inputs(WIDTH)))
    assert text == "the step is jitted with shardings of its own"


def one_layer_step(params, state, x):
    gradient = jax.grad(optimizer.loss)(params, x)
    updates, state = optax.adam(0.1).update(gradient, state, params)
    return optax.apply_updates(params, updates), state


def one_layer(rows):
    """A step whose biggest array is nearly all of its state: XLA needs more with it on the host."""
    params = [jax.ShapeDtypeStruct((2048, 2048), jnp.float32)]
    state = jax.eval_shape(optax.adam(0.1).init, params)
    x = jax.ShapeDtypeStruct((rows, 2048), jnp.float32)
    donating = jax.jit(one_layer_step, donate_argnums=(0, 1))
    return traced(donating, (params, state, x))


def test_what_the_estimate_cannot_tell_is_left_to_the_compiler():
    text = left_out(one_layer(2048))
    assert text == "the estimate is too close to tell; with --compile gpu:h100 is asked"


@pytest.mark.integration
def test_what_jax_cannot_trace_has_no_row(monkeypatch):
    monkeypatch.setattr(remedies, "with_host_state", jnp.sin)  # a TypeError of JAX's
    assert left_out(optimizer_step()) == "JAX cannot trace it"


# -- where a compiler is asked


class Answering:
    """Compiles that answer with a figure of their own."""

    place = parse_place(ON)

    def __init__(self, needed):
        self.asked = []
        self._row = needed and types.SimpleNamespace(needed_nbytes=needed)

    def besides(self, program, budget_nbytes):
        self.asked.append(program)
        return self._row


@pytest.mark.integration
def test_the_row_has_the_figures_of_the_compiler():
    compiles = Answering(900_000)
    remedy = found_remedies(optimizer_step(), compiles, 1 << 20)[0]["host-state"]
    assert (remedy.peak_nbytes, remedy.saved_nbytes) == (900_000, (1 << 20) - 900_000)
    assert remedy.confirmed and remedy.answer == "fits"
    (program,) = compiles.asked
    assert isinstance(program, PolicyProgram) and program.trace.arguments is not None


def test_what_the_estimate_cannot_tell_is_asked():
    kinds, texts = found_remedies(one_layer(2048), Answering(1 << 20), 1 << 21)
    assert kinds["host-state"].confirmed and texts == ()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("answer", "needed", "text"),
    [
        (1 << 20, 1 << 20, "gpu:h100 needs 1.00 MiB with it, hardly less or more"),
        (None, 1 << 20, "gpu:h100 has no figures of it"),
        (1 << 20, None, "gpu:h100 has no figures of it"),
    ],
)
def test_what_the_compiler_does_not_confirm_is_no_row(answer, needed, text):
    kinds, texts = found_remedies(optimizer_step(), Answering(answer), needed)
    assert "host-state" not in kinds
    assert texts == (f"the optimizer's state in host memory: {text}",)


@pytest.mark.integration
def test_what_is_asked_besides_does_not_count():
    found = optimizer_step("step", 8)
    compiles = LimitedCompiles(parse_place("cpu"), CompileSettings(), most=0)
    program = PolicyProgram("besides", found.trace, found.program)
    row = compiles.besides(program, 1 << 30)
    assert row is not None and row.needed_nbytes
    assert compiles.count == 0 and compiles.unconfirmed == () and compiles.left_s < 120


@pytest.mark.slow
@pytest.mark.parametrize(
    "on",
    [
        pytest.param("tpu:v5e", marks=pytest.mark.tpu),
        pytest.param("gpu:h100", marks=pytest.mark.gpu),
    ],
)
def test_xla_needs_less_too(on):
    found = optimizer_step(width=1024, on=on)
    made = moved(found)
    program = program_of(made)
    programs = [
        PolicyProgram("as-written", found.trace, found.program),
        PolicyProgram("host", made.step, program),
    ]
    (before,), (after,) = compiled_rows(programs, [parse_place(on)], CompileSettings())
    assert after.needed_nbytes < 1.1 * peak_nbytes(lower(program, found.profile))
    state = 2 * optimizer.LAYERS * 4 * 1024**2
    assert before.needed_nbytes - after.needed_nbytes > 0.5 * state
