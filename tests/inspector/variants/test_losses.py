"""Places in what a step differentiates: what is made of a step there must be what the step gives
with `jax.checkpoint` written around the same calls."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import grad, lax, linear_transpose, linearize, value_and_grad, vjp

import jaxresid
from jaxresid.base.errors import RetraceError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.inspector.variants.choices import Choice, everywhere
from jaxresid.results import Verdict
from tests.small import cp, f32

WS, X = [f32(16, 32)] * 4, f32(8, 16)


def layer(x, w):
    h = jnp.sin(jnp.sin(x @ w))
    return jnp.tanh(h @ w.T)


def head(x, w):
    return jnp.sum(jnp.cos(jnp.sin(x @ w)) ** 2)


def unrolled(wrap):
    def loss(ws, x):
        for w in ws:
            x = wrap(layer)(x, w)
        return x.sum()

    return loss


def with_head(wrap):
    def loss(ws, x):
        for w in ws[1:]:
            x = wrap(layer)(x, w)
        return head(x, ws[0])

    return loss


def wrapped_whole(wrap):
    return wrap(unrolled(lambda f: f))


def inline(wrap):
    """What a Python loop does is no function of its own."""
    if wrap is no_checkpoint:

        def loss(ws, x):
            for w in ws:
                h = jnp.sin(jnp.sin(x @ w))
                x = jnp.tanh(h @ w.T)
            return x.sum()

        return loss
    return unrolled(wrap)


def no_checkpoint(fun):
    return fun


def plainly(loss):
    def step(ws, x):
        value, gradients = jax.value_and_grad(loss)(ws, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, gradients), value

    return step


def jitted(loss):
    return jax.jit(plainly(loss))


def pulled_back(loss):
    def step(ws, x):
        value, pull = jax.vjp(lambda ws: loss(ws, x), ws)
        (gradients,) = pull(jnp.ones_like(value))
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, gradients)

    return step


def by_name(loss):
    """By a name that the module has of `jax.vjp`."""

    def step(ws, x):
        value, pull, seen = vjp(lambda ws: (loss(ws, x), {"x": x.sum()}), ws, has_aux=True)
        (gradients,) = pull(jnp.ones_like(value))
        return jax.tree.map(lambda w, g: w - seen["x"] * g, ws, gradients), value

    return step


def linearized(loss):
    def step(ws, x):
        value, pushed = linearize(lambda ws: loss(ws, x), ws)
        (gradients,) = linear_transpose(pushed, ws)(jnp.ones_like(value))
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, gradients), value

    return step


def with_aux(loss):
    def told(ws, x):
        value = loss(ws, x)
        return value, {"value": value, "name": "aux", "none": None}

    def step(ws, x):
        gradients, aux = jax.grad(told, has_aux=True)(ws, x)
        assert aux["name"] == "aux"
        return jax.tree.map(lambda w, g: w - aux["value"] * g, ws, gradients)

    return step


def accumulating(loss):
    def step(ws, xs):
        def add(total, x):
            value, gradients = jax.value_and_grad(loss)(ws, x)
            return jax.tree.map(jnp.add, total, gradients), value

        total, values = lax.scan(add, jax.tree.map(jnp.zeros_like, ws), xs)
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, total), values

    return step


def per_example(loss):
    def step(ws, xs):
        gradients = jax.vmap(lambda x: jax.grad(loss)(ws, x[None]))(xs)
        return jax.tree.map(lambda w, g: w - g.mean(0), ws, gradients)

    return step


STEPS = {
    fun.__name__: fun
    for fun in (
        plainly,
        jitted,
        pulled_back,
        by_name,
        linearized,
        with_aux,
        accumulating,
        per_example,
    )
}
POLICIES = {"nothing": None, "dots": cp.dots_saveable, "everything": cp.everything_saveable}


def arguments(make):
    return WS, f32(3, *X.shape) if make is accumulating else X


def variants(step, *args):
    return subject(Question(step, args, mode="program")).variants()


def figures(variant):
    return variant.kept_nbytes, variant.peak_nbytes, variant.cost


def as_it_is(step, *args):
    return figures(variants(step, *args).variant({}))


@functools.cache
def plain_variants(loss, make):
    """Return the variants of a step without checkpoints, and its figures as it is."""
    found = variants(make(loss(no_checkpoint)), *arguments(make))
    return found, figures(found.variant({}))


def place_of(found, kind):
    (place,) = [p for p in found.places() if p.kind == kind]
    return place


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(
    ("loss", "kind", "calls"),
    [(unrolled, "call", 4), (inline, "block", 4), (with_head, "call", 3)],
)
def test_calls_in_a_loss(loss, kind, calls, make, policy):
    args = arguments(make)
    found, plain = plain_variants(loss, make)
    place = next(p for p in found.places() if p.kind == kind)
    assert place.calls == calls
    assert place.trips == calls * (3 if make is accumulating else 1)
    checkpointed = functools.partial(jax.checkpoint, policy=POLICIES[policy])
    expected = as_it_is(make(loss(checkpointed)), *args)
    made = found.variant({place: everywhere(place, Choice(POLICIES[policy]))})
    assert figures(made) == expected
    assert policy == "everything" or expected != plain


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("make", [plainly, jitted, accumulating])
def test_a_whole_loss(make, policy):
    args = arguments(make)
    found, _ = plain_variants(unrolled, make)
    place = place_of(found, "whole")
    assert place.function == "loss"
    assert place.defined.line == unrolled(no_checkpoint).__code__.co_firstlineno
    checkpointed = functools.partial(jax.checkpoint, policy=POLICIES[policy])
    made = found.variant({place: (Choice(POLICIES[policy]),)})
    assert figures(made) == as_it_is(make(wrapped_whole(checkpointed)), *args)


def test_some_calls_only():
    found = variants(plainly(unrolled(no_checkpoint)), WS, X)
    place = place_of(found, "call")
    made = found.variant({place: (Choice(), None, Choice(), None)})

    def loss(ws, x):
        for i, w in enumerate(ws):
            x = (layer if i % 2 else jax.checkpoint(layer))(x, w)
        return x.sum()

    assert figures(made) == as_it_is(plainly(loss), WS, X)


def two_kinds(wrap_first, wrap_second):
    """A checkpoint, then a scan, then calls."""

    def loss(ws, x):
        x = wrap_first(layer)(x, ws[0])
        x, _ = lax.scan(lambda x, w: (layer(x, w), None), x, jnp.stack(ws))
        for w in ws[1:]:
            x = wrap_second(layer)(x, w)
        return x.sum()

    return loss


def test_calls_beside_a_checkpoint_that_is_taken_away():
    found = variants(plainly(two_kinds(jax.checkpoint, no_checkpoint)), WS, X)
    site, call = place_of(found, "checkpoint"), place_of(found, "call")
    assert call.calls == 3
    made = found.variant({site: (None,), call: everywhere(call, Choice())})
    expected = as_it_is(plainly(two_kinds(no_checkpoint, jax.checkpoint)), WS, X)
    assert figures(made) == expected
    both = found.variant({call: everywhere(call, Choice())})
    assert figures(both) == as_it_is(plainly(two_kinds(jax.checkpoint, jax.checkpoint)), WS, X)


def test_calls_beside_a_loop_in_segments():
    found = variants(plainly(two_kinds(jax.checkpoint, no_checkpoint)), WS, X)
    call, (nest,) = place_of(found, "call"), found.nests()
    segments = {nest.place: (Choice(segments=(2,)),)}
    alone = found.variant(segments)
    both = found.variant({**segments, call: everywhere(call, Choice())})
    fewer = found.variant({}).kept_nbytes - alone.kept_nbytes
    calls = (
        found.variant({}).kept_nbytes
        - found.variant({call: everywhere(call, Choice())}).kept_nbytes
    )
    assert fewer > 0
    assert calls > 0
    assert found.variant({}).kept_nbytes - both.kept_nbytes == fewer + calls


def test_overlaps_of_calls_and_losses():
    found = variants(plainly(two_kinds(jax.checkpoint, no_checkpoint)), WS, X)
    whole = place_of(found, "whole")
    assert {(a.kind, b.kind) for a, b in found.overlaps()} == {
        ("whole", "checkpoint"),
        ("whole", "scan"),
        ("whole", "call"),
    }
    assert all(a is whole for a, _ in found.overlaps())


def test_a_call_around_a_scan():
    def stack(ws, x):
        return lax.scan(lambda x, w: (layer(x, w), None), jnp.sin(x @ ws[0] @ ws[0].T), ws)[0]

    def loss(ws, x):
        return head(stack(ws, x), ws[0]) + head(stack(ws, jnp.cos(x)), ws[1])

    found = variants(plainly(loss), f32(4, 16, 32), X)
    pairs = {(a.kind, a.function, b.kind) for a, b in found.overlaps()}
    assert pairs >= {("call", "stack", "scan")} or ("whole", "loss", "scan") in pairs


def test_each_loss_of_a_step_has_its_own_places():
    def second(ws, x):
        for w in ws:
            x = layer(x, w)
        return (x**2).sum()

    def step(ws, x):
        first, other = jax.grad(unrolled(no_checkpoint))(ws, x), jax.grad(second)(ws, x)
        return jax.tree.map(lambda a, b: a + b, first, other)

    found = variants(step, WS, X)
    assert [p.function for p in found.places()] == ["layer", "layer", "loss", "second"]
    first, other = [p for p in found.places() if p.kind == "call"]
    one = found.variant({first: everywhere(first, Choice())})
    both = found.variant({first: everywhere(first, Choice()), other: everywhere(other, Choice())})
    plain = found.variant({})
    assert plain.kept_nbytes > one.kept_nbytes > both.kept_nbytes


@pytest.mark.integration
def test_a_gradient_inside_a_loss_is_part_of_it():
    def energy(x, ws):
        for w in ws:
            x = layer(x, w)
        return x.sum()

    def loss(ws, x):
        return (jax.grad(energy)(x, ws) ** 2).sum() + unrolled(no_checkpoint)(ws, x)

    found = variants(plainly(loss), WS, X)
    (call,) = [p for p in found.places() if p.kind == "call"]
    assert call.location.function == "unrolled.loss"
    changed = found.variant({call: everywhere(call, Choice())})
    assert changed.kept_nbytes < found.variant({}).kept_nbytes


def test_a_loss_that_leaks_its_tracers_is_refused():
    def step(ws, x):
        seen = []

        def loss(ws):
            seen.append(jnp.sin(x))  # which no derivative is taken of
            return unrolled(jax.checkpoint)(ws, x)

        gradients = jax.grad(loss)(ws)
        return jax.tree.map(lambda w, g: w - g * seen[0].sum(), ws, gradients)

    with pytest.raises(RetraceError, match="differentiates cannot be told from the rest"):
        variants(step, WS, X)
    (site,) = jaxresid.inspect(step, mode="program")(WS, X).checkpoints
    assert (site.verdict, site.calls) == (Verdict.NOT_JUDGED, 4)
    assert site.reason.endswith(": a loss has to return what is used outside of it")


def test_a_loss_that_prints_has_the_places_of_one_that_does_not():
    def loss(ws, x, prints=True):
        for w in ws:
            if prints:
                jax.debug.print("{}", w.sum(), ordered=True)
            x = layer(x, w)
        return x.sum()

    quiet = variants(plainly(functools.partial(loss, prints=False)), WS, X)
    found = variants(plainly(loss), WS, X)
    call = place_of(found, "call")
    assert call.calls == place_of(quiet, "call").calls == 4
    kept = found.variant({call: everywhere(call, Choice())}).kept_nbytes
    assert kept < found.variant({}).kept_nbytes


@pytest.mark.integration
def test_gradients_stay_what_they_are():
    step = plainly(with_head(no_checkpoint))
    rng = np.random.default_rng(0)
    *ws, x = (rng.normal(size=each.shape).astype(each.dtype) for each in (*WS, X))
    found = variants(step, ws, x)
    place = next(p for p in found.places() if p.function == "layer")
    run = jax.jit(found.trace({place: everywhere(place, Choice())}).runnable())
    expected = jax.tree.leaves(jax.jit(step)(ws, x))
    for ours, theirs in zip(run([*ws, x]), expected, strict=True):
        assert jnp.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_what_is_linearized_and_not_transposed_is_no_loss():
    def curved(ws, x):
        for w in ws:
            x = jnp.sin(layer(x, w))
        return x.sum()

    def step(ws, x):
        _, pushed = linearize(lambda ws: curved(ws, x), ws)
        slope = pushed(ws)
        gradients = grad(unrolled(no_checkpoint))(ws, x)
        return jax.tree.map(lambda w, g: w - slope * g, ws, gradients)

    found = variants(step, WS, X)
    assert [(p.kind, p.function) for p in found.places()] == [("call", "layer"), ("whole", "loss")]


def test_a_backward_pass_of_each_layer_by_hand():
    """Each layer is pulled back on its own, as pipelines do it."""

    def by_hand(wrap):
        def step(ws, x):
            pulls = []
            for w in ws:
                x, pull = vjp(wrap(layer), x, w)
                pulls.append(pull)
            cotangent, gradients = jnp.ones_like(x), []
            for pull in reversed(pulls):
                cotangent, gradient = pull(cotangent)
                gradients.append(gradient)
            return [w - 0.1 * g for w, g in zip(ws, reversed(gradients), strict=True)]

        return step

    found = variants(by_hand(no_checkpoint), WS, X)
    places = found.places()
    assert [(p.kind, p.function) for p in places] == [("whole", "layer")] * 4
    made = found.variant({place: everywhere(place, Choice()) for place in places})
    assert figures(made) == as_it_is(by_hand(jax.checkpoint), WS, X)


def test_a_function_with_its_gradient_that_another_module_made():
    both = jax.jit(value_and_grad(unrolled(no_checkpoint)))
    jax.eval_shape(both, WS, X)  # JAX has its jaxpr already

    def step(ws, x):
        value, gradients = both(ws, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, gradients), value

    assert place_of(variants(step, WS, X), "call").calls == 4


def test_what_traces_losses_is_undone():
    before = jax.vjp, jax.grad
    variants(plainly(unrolled(no_checkpoint)), WS, X).places()
    assert (jax.vjp, jax.grad) == before
    traced = jax.make_jaxpr(jax.grad(unrolled(no_checkpoint)))(WS, X)
    assert "jaxresid" not in str(traced)
    assert jaxresid.inspect(plainly(unrolled(no_checkpoint)), mode="program")(WS, X).peak.nbytes > 0
