"""Training steps whose gradients are added up over microbatches: against the step that a person
would write, and against the step as it is on real arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxresid.advice.plan.joint.configurations import Configurations, Grid
from jaxresid.advice.plan.joint.joint import jointly_drafted
from jaxresid.advice.plan.joint.microbatches import in_microbatches
from jaxresid.base.errors import InputsError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.inspector.variants.choices import Choice, everywhere
from jaxresid.xla.places import parse_place
from tests.small import f32

ON = "tpu:v5e"
WIDTH, LAYERS, BATCH = 64, 4, 16
WS = [{"in": f32(WIDTH, 2 * WIDTH), "out": f32(2 * WIDTH, WIDTH)}] * LAYERS
X = f32(BATCH, 32, WIDTH)


def layer(x, w):
    return x + jnp.tanh(jnp.sin(x @ w["in"]) @ w["out"])


def unrolled(wrap):
    def loss(ws, x):
        for w in ws:
            x = wrap(layer)(x, w)
        return jnp.mean(x**2)

    return loss


def scanned(wrap):
    def loss(ws, x):
        stacked = jax.tree.map(lambda *each: jnp.stack(each), *ws)
        x, _ = lax.scan(lambda x, w: (wrap(layer)(x, w), None), x, stacked)
        return jnp.mean(x**2)

    return loss


def no_checkpoint(fun):
    return fun


def momentum(ws, state, gradients):
    state = jax.tree.map(lambda m, g: 0.9 * m + g, state, gradients)
    return jax.tree.map(lambda w, m: w - 0.1 * m, ws, state), state


def plainly(both):
    def step(ws, state, x):
        value, gradients = both(ws, x)
        return *momentum(ws, state, gradients), value

    return step


def jitted(both):
    return jax.jit(plainly(both), donate_argnums=(0, 1))


def accumulated(both, count):
    """Return what `both` returns, over microbatches, as a person would write it."""

    def value_and_gradients(ws, x):
        def add(total, part):
            return jax.tree.map(jnp.add, total, both(ws, part)), None

        shapes = jax.eval_shape(both, ws, x)
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        total, _ = lax.scan(add, zeros, x.reshape(count, -1, *x.shape[1:]))
        return jax.tree.map(lambda a: a / count, total)

    return value_and_gradients


def traced(step, *args):
    return subject(Question(step, args, mode="program", on=ON))


def figures(variant):
    return variant.kept_nbytes, variant.host_nbytes, variant.peak_nbytes


@pytest.mark.integration
@pytest.mark.parametrize("make", [plainly, jitted])
@pytest.mark.parametrize(("loss", "kind"), [(unrolled, "call"), (scanned, "scan")])
@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.dots_saveable])
def test_a_step_in_microbatches_is_the_one_written_by_hand(make, loss, kind, policy):
    made = in_microbatches(traced(make(jax.value_and_grad(loss(no_checkpoint))), WS, WS, X), 4)
    found = made.variants()

    def by_hand(wrap):
        both = accumulated(jax.value_and_grad(loss(wrap)), 4)
        return traced(make(both), WS, WS, X).variants().variant({})

    plain = by_hand(no_checkpoint)
    (place,) = [p for p in found.places() if p.kind == kind]
    variant = found.variant({place: everywhere(place, Choice(policy))})
    written = by_hand(
        lambda fun: jax.checkpoint(fun, policy=policy, prevent_cse=loss is not scanned)
    )
    for ours, theirs in ((found.variant({}), plain), (variant, written)):
        assert figures(ours) == figures(theirs)
        assert ours.cost.flops == pytest.approx(theirs.cost.flops, rel=1e-4)
    assert figures(plain) != figures(written)


def numbers(structs):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda s: rng.normal(scale=1 / 8, size=s.shape).astype(s.dtype), structs)


def told(ws, x):
    y = x
    for w in ws:
        y = layer(y, w)
    return jnp.mean(y**2), {"largest": jnp.mean(y), "y": y, "width": x.shape[-1] * ws[0]["in"]}


def with_aux(ws, state, x):
    (value, seen), gradients = jax.value_and_grad(told, has_aux=True)(ws, jnp.sin(x))
    return *momentum(ws, state, gradients), value, seen


def pulled_back(ws, state, x):
    value, pull = jax.vjp(lambda ws: unrolled(no_checkpoint)(ws, x), ws)
    (gradients,) = pull(jnp.ones_like(value) * 3)
    return *momentum(ws, state, gradients), value


def two_losses(ws, state, x):
    first = jax.grad(unrolled(no_checkpoint))(ws, x)
    ws = jax.tree.map(lambda w, g: w - 0.1 * g, ws, first)
    value, second = jax.value_and_grad(scanned(no_checkpoint))(ws, x)
    return *momentum(ws, state, second), value


@pytest.mark.integration
@pytest.mark.parametrize("step", [pulled_back, with_aux, two_losses, jax.jit(with_aux)])
def test_a_step_in_microbatches_gives_what_the_step_does(step):
    found = in_microbatches(traced(step, WS, WS, X), 4).variants()
    place = found.places()[0]
    given = numbers((WS, WS, X))
    expected = jax.tree.leaves(jax.jit(step)(*given))
    for choices in ({}, {place: everywhere(place, Choice())}):
        results = jax.jit(found.variant(choices).trace.runnable())(jax.tree.leaves(given))
        for ours, theirs in zip(results, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-5)


def per_example(ws, state, x):
    gradients = jax.vmap(lambda x: jax.grad(unrolled(no_checkpoint))(ws, x[None]))(x)
    return momentum(ws, state, jax.tree.map(lambda g: g.mean(0), gradients))


def by_the_batch(ws, state, x):
    moved = x + 0.1 * jax.grad(unrolled(no_checkpoint), argnums=1)(ws, jnp.sin(x))
    return momentum(ws, state, jax.grad(unrolled(no_checkpoint))(ws, moved))


def with_running_mean(ws, state, x):
    def loss(ws):
        value = unrolled(no_checkpoint)(ws, x)
        return value, 0.9 * ws[0]["in"].sum(1) + 0.1 * x.mean((0, 1))

    (value, mean), gradients = jax.value_and_grad(loss, has_aux=True)(ws)
    return *momentum(ws, state, gradients), value, mean


def with_counts(ws, state, x):
    def loss(ws):
        return unrolled(no_checkpoint)(ws, x), (x > 0).sum()

    gradients, count = jax.grad(loss, has_aux=True)(ws)
    return *momentum(ws, state, gradients), count


def pairwise(ws, state, x):
    mask = jnp.eye(len(x))

    def loss(ws):
        return unrolled(no_checkpoint)(ws, jnp.einsum("ab,bij->aij", mask, x))

    return momentum(ws, state, jax.grad(loss)(ws))


def of_an_array(ws, state, x):
    y, pull = jax.vjp(lambda ws: layer(x, ws[0]), ws)
    (gradients,) = pull(y - jnp.cos(x))
    return momentum(ws, state, gradients)


def of_an_ensemble(ws, state, x):
    several = jax.tree.map(lambda w: jnp.stack([w, w + 1]), ws)
    gradients = jax.vmap(jax.grad(unrolled(no_checkpoint)), (0, None))(several, x)
    return momentum(ws, state, jax.tree.map(lambda g: g.sum(0), gradients))


def printing(ws, state, x):
    def loss(ws):
        jax.debug.print("{}", x.sum())
        return unrolled(no_checkpoint)(ws, x)

    return momentum(ws, state, jax.grad(loss)(ws))


REFUSED = {
    per_example: "reads nothing whose size follows the batch, as one of each item does",
    by_the_batch: "it differentiates by the batch itself",
    with_running_mean: r"also returns float32\[64\], which each batch changes",
    with_counts: r"also returns int32\[\], which each batch changes",
    pairwise: r"float32\[16,16\] with the whole batch and float32\[4,4\] with one microbatch",
    of_an_array: "it pulls back something other than one real scalar",
    of_an_ensemble: "it takes several gradients at once",
    printing: "its loss prints",
}


@pytest.mark.parametrize("step", REFUSED, ids=lambda step: step.__name__)
def test_what_cannot_be_added_up_is_told_in_one_line(step):
    with pytest.raises(InputsError, match=REFUSED[step]) as error:
        in_microbatches(traced(step, WS, WS, X), 4).variants().variant({})
    said = str(error.value)
    assert "\n" not in said
    assert f"gradients that {step.__name__} takes" in said
    assert said.endswith("plan the loss that it differentiates")


def test_where_the_batch_is_not_known_it_is_told():
    step = plainly(jax.value_and_grad(unrolled(no_checkpoint)))
    with pytest.raises(
        InputsError, match=r"which arguments of .*step hold the batch: those that it"
    ):
        in_microbatches(traced(step, WS, WS, f32(1, 8, WIDTH)), 2)
    with pytest.raises(InputsError, match="a batch of 16 cannot be divided by 3"):
        in_microbatches(traced(step, WS, WS, X), 3)


@pytest.mark.integration
def test_a_state_that_no_batch_changes_stays_what_the_loss_makes_of_it():
    """As the counts of keys that modules hold."""

    def step(ws, state, key, x):
        def loss(ws):
            used, following = jax.random.split(key)
            noise = jax.random.normal(used, (WIDTH,))
            return unrolled(no_checkpoint)(ws, x + noise), following

        gradients, following = jax.grad(loss, has_aux=True)(ws)
        return *momentum(ws, state, gradients), following

    given = (*numbers((WS, WS)), jax.random.key(3), numbers(X))
    trace = in_microbatches(traced(step, *given), 4).variants().variant({}).trace
    leaves = jax.tree.leaves(given)
    *results, key = jax.jit(trace.runnable())([leaves[i] for i in trace.arguments.dynamic])
    *expected, following = jax.tree.leaves(jax.jit(step)(*given))
    assert jax.random.key_data(key).tolist() == jax.random.key_data(following).tolist()
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-5)


def planned(budget, grid, make=jitted, loss=scanned):
    step = make(jax.value_and_grad(loss(no_checkpoint)))

    def ask(batch, mesh):
        x = X if batch is None else f32(batch, *X.shape[1:])
        return Question(step, (WS, WS, x), mode="program", on=ON)

    return jointly_drafted(Configurations(grid, ask), parse_place(ON), budget)[0]


@pytest.mark.integration
@pytest.mark.parametrize("grid", [Grid(microbatches=(1, 2, 4)), Grid((8, 16), (1, 2))])
def test_the_plan_of_a_whole_step(grid):
    ample = planned(10**9, grid)
    assert ample.selection.configuration.microbatches == 1
    assert ample.recompute_flops == 0
    tight = planned(int(ample.peak_nbytes * 0.9), grid)
    assert tight.is_within
    assert tight.peak_nbytes < ample.peak_nbytes
    assert tight.target.mode == "program"
    made = tight.selection.configuration
    if made.microbatches > 1:
        *_, code = tight.selection.to_set
        assert f"{made.microbatches} microbatches of" in code
    # The optimizer's part is in it: parameters, momentum, gradients.
    held = {part.kind for part in tight.floor.parts}
    assert {"parameters", "optimizer-state", "batch"} <= held


@pytest.mark.integration
def test_what_else_lowers_a_step_in_microbatches():
    plan = planned(1, Grid(microbatches=(4,)), make=plainly)
    found = {relief.kind: relief for relief in plan.floor.reliefs}
    donating = planned(1, Grid(microbatches=(4,)))
    assert found["donation"].peak_nbytes == donating.lowest_nbytes < plan.lowest_nbytes
    assert "donation" not in {relief.kind for relief in donating.floor.reliefs}


@pytest.mark.integration
def test_other_dtypes_of_a_step_in_microbatches_are_worth_what_that_step_is():
    def casting(wrap):
        return lambda ws, x: scanned(wrap)(ws, x.astype(jnp.float32))

    def ask(dtype, budget):
        step = jitted(jax.value_and_grad(casting(no_checkpoint)))
        x = jax.ShapeDtypeStruct((8 * BATCH, *X.shape[1:]), dtype)
        made = Configurations(
            Grid(microbatches=(4,)),
            lambda batch, mesh: Question(step, (WS, WS, x), mode="program", on=ON),
        )
        return jointly_drafted(made, parse_place(ON), budget)[0]

    plan, narrow = ask(jnp.float32, 1), ask(jnp.bfloat16, 1)
    (found,) = [relief for relief in plan.floor.reliefs if relief.kind == "dtype"]
    assert found.change == "x in bfloat16 in place of float32"
    assert found.peak_nbytes == narrow.lowest_nbytes < plan.lowest_nbytes


@pytest.mark.integration
def test_the_code_to_write_gives_what_the_plan_says():
    plan = planned(10**9, Grid(microbatches=(4,)))
    *_, code = plan.selection.to_set
    scope = {"jax": jax, "jnp": jnp}
    exec(code, scope)
    both = jax.value_and_grad(scanned(no_checkpoint))
    step = jitted(lambda ws, x: scope["accumulated"](both, ws, x))
    assert traced(step, WS, WS, X).variants().variant({}).peak_nbytes == plan.peak_nbytes
    given = numbers((WS, X))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6),
        scope["accumulated"](both, *given),
        both(*given),
    )
