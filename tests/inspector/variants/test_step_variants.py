"""Training steps with their checkpoints changed: what is made of a step must be what the step
written that way gives."""

import functools
import importlib.util
import itertools
import sys
import threading
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import jaxresid
from fixtures.inspect import train_step
from jaxresid import jax_compat
from jaxresid.base.errors import InputsError, RetraceError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.checkpoints.policies import description
from jaxresid.inspector.jaxpr.bindings import checkpoint_binding, intercept_bind
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.report import subject
from jaxresid.inspector.variants.choices import Choice, everywhere
from jaxresid.inspector.variants.naming import nameable
from tests import where
from tests.pairs import in_turn
from tests.small import cp, f32

FIXTURES = where.FIXTURES / "inspect"
WS, X, STACKED = [f32(16, 32)] * 4, f32(8, 16), f32(4, 16, 32)


def variants(step, *args):
    return subject(Question(step, args, mode="program")).variants()


def figures(variant):
    return variant.kept_nbytes, variant.host_nbytes, variant.peak_nbytes, variant.cost


def written(step, *args):
    """The same of a step as it is written, by the report."""
    report = jaxresid.inspect(step, mode="program")(*args)
    totals = report.totals
    return totals.computed_nbytes, totals.host_nbytes, report.peak.nbytes, report.cost.total


def of_kind(found, kind):
    return [place for place in found.places() if place.kind == kind]


def only(found, kind="checkpoint"):
    (place,) = of_kind(found, kind)
    return place


def training(loss):
    def step(params, x):
        value, gradients = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients), value

    return step


def layer(x, w):
    h = checkpoint_name(jnp.sin(jnp.sin(x @ w)), "hidden")
    return jnp.tanh(h @ w.T)


# Losses, given what is done with their layers: a checkpoint of some policy, or nothing.


def unrolled(wrap):
    def loss(ws, x):
        for w in ws:
            x = wrap(layer)(x, w)
        return x.sum()

    return loss


def decorated(wrap):
    """One checkpointed function, called several times."""
    wrapped = wrap(layer)

    def loss(ws, x):
        for w in ws:
            x = wrapped(x, w)
        return x.sum()

    return loss


def whole(wrap):
    return wrap(unrolled(lambda f: f))


def scanned(wrap):
    def loss(ws, x):
        return lax.scan(lambda x, w: (wrap(layer)(x, w), None), x, ws)[0].sum()

    return loss


def jitted(wrap):
    return jax.jit(unrolled(wrap))


def jitted_layers(wrap):
    inner = jax.jit(wrap(layer))

    def loss(ws, x):
        for w in ws:
            x = inner(x, w)
        return x.sum()

    return loss


def batched(wrap):
    def loss(ws, x):
        for w in ws:
            x = jax.vmap(wrap(layer), (0, None))(x, w)
        return x.sum()

    return loss


def branching(wrap):
    def loss(ws, x):
        for w in ws:
            x = lax.cond(w[0, 0] > 0, wrap(layer), lambda x, w: x, x, w)
        return x.sum()

    return loss


def inner_of_two(wrap):
    def loss(ws, x):
        outer = jax.checkpoint(lambda x, w: jnp.sin(wrap(layer)(jnp.sin(x), w)))
        for w in ws:
            x = outer(x, w)
        return x.sum()

    return loss


def outer_of_two(wrap):
    def loss(ws, x):
        for w in ws:
            inner = jax.checkpoint(layer, policy=cp.dots_saveable)
            x = wrap(lambda x, w: jnp.sin(inner(jnp.sin(x), w)))(x, w)  # noqa: B023
        return x.sum()

    return loss


def closing_over(wrap):
    def loss(ws, x):
        for w in ws:
            x = wrap(lambda x: layer(x, w))(x)  # noqa: B023
        return x.sum()

    return loss


@jax.custom_vjp
def squashed(x):
    return jnp.tanh(x)


def squashed_fwd(x):
    y = jnp.tanh(x)
    return y, (y, jnp.exp(y))


squashed.defvjp(squashed_fwd, lambda kept, g: (g * kept[1] * kept[0],))


def with_rules_of_its_own(wrap):
    def loss(ws, x):
        for w in ws:
            x = wrap(lambda x, w: squashed(jax.nn.relu(x @ w)) @ w.T)(x, w)
        return x.sum()

    return loss


LOSSES = {
    "unrolled": (unrolled, WS),
    "decorated": (decorated, WS),
    "whole": (whole, WS),
    "scanned": (scanned, STACKED),
    "jitted": (jitted, WS),
    "jitted layers": (jitted_layers, WS),
    "batched": (batched, WS),
    "branching": (branching, WS),
    "inner": (inner_of_two, WS),
    "outer": (outer_of_two, WS),
    "closing over": (closing_over, WS),
    "custom rules": (with_rules_of_its_own, WS),
}
POLICIES = {
    "None": None,
    "nothing": cp.nothing_saveable,
    "everything": cp.everything_saveable,
    "dots": cp.dots_saveable,
    "names": cp.save_only_these_names("hidden"),
    "offload": cp.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["hidden"],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}


def with_policy(policy):
    return functools.partial(jax.checkpoint, policy=policy)


def changed(found, place, choice):
    return found.variant({place: everywhere(place, choice)})


def place_of(found, name):
    """The checkpoint that `wrap` makes."""
    places = of_kind(found, "checkpoint")
    which = {"inner": 1, "outer": 0}.get(name)
    if which is None:
        (place,) = places
        return place
    assert len(places) == 2
    return places[which]


@pytest.mark.integration
@pytest.mark.parametrize(("name", "policy"), in_turn(LOSSES, list(POLICIES), turns=2))
def test_another_policy(name, policy):
    loss, ws = LOSSES[name]
    start = cp.dots_with_no_batch_dims_saveable
    found = variants(training(loss(with_policy(start))), ws, X)
    place = place_of(found, name)
    made = changed(found, place, Choice(POLICIES[policy]))
    other = training(loss(with_policy(POLICIES[policy])))
    assert figures(made) == written(other, ws, X)
    before = written(training(loss(with_policy(start))), ws, X)
    assert figures(found.variant({})) == before
    assert figures(changed(found, place, Choice(start))) == before


@pytest.mark.integration
@pytest.mark.parametrize("name", LOSSES)
def test_no_checkpoint(name):
    loss, ws = LOSSES[name]
    found = variants(training(loss(jax.checkpoint)), ws, X)
    made = changed(found, place_of(found, name), None)
    *plain, cost = written(training(loss(lambda f: f)), ws, X)
    assert figures(made)[:3] == tuple(plain)
    # That the cotangent of a loss is 1 is known to the code, and read where all of it is a call.
    assert 0 <= made.cost.nbytes - cost.nbytes <= 4
    assert replace(made.cost, nbytes=cost.nbytes) == cost
    assert tuple(plain) != written(training(loss(jax.checkpoint)), ws, X)[:3]


# Places.


def scanning(step):
    """A loop of one step after the other."""
    return lambda params, xs: lax.scan(lambda p, x: (step(p, x)[0], None), params, xs)[0]


def accumulating(wrap):
    def step(params, xs):
        def add(total, x):
            return jax.tree.map(jnp.add, total, jax.grad(unrolled(wrap))(params, x)), None

        total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, params), xs)
        return jax.tree.map(lambda w, g: w - g, params, total)

    return step


SAVE_DOTS = with_policy(cp.dots_saveable)


# Before 0.9 the lines of a nested checkpoint's body are no longer known where it is bound, and the
# outer one has the inner one's name there.
NAMES_OUTER = jax.__version_info__ >= (0, 9)


@pytest.mark.integration
@pytest.mark.parametrize("name", LOSSES)
def test_places_are_those_of_the_report(name):
    if name in ("inner", "outer") and not NAMES_OUTER:
        pytest.skip("this JAX does not tell a nested checkpoint's lines where it is bound")
    loss, ws = LOSSES[name]
    step = training(loss(SAVE_DOTS))
    expected = jaxresid.inspect(step, mode="program")(ws, X).checkpoints
    found = of_kind(variants(step, ws, X), "checkpoint")
    assert {key(p.function, p.location, p.trips) for p in found} == {
        key(c.function, c.location, c.trips) for c in expected
    }
    policies = {p.location.line: description(p.policy) for p in found}
    if not jax_compat.flags().get(
        "jax_remat3"
    ):  # there the outer one's policy holds for the inner one
        assert policies == {c.location.line: c.policy for c in expected}
    if name not in ("jitted layers", "inner"):  # what JAX traces once is one call
        assert [p.calls for p in found] == [c.calls for c in expected]


def key(function, location, trips):
    return function, location.file, location.line, trips


def test_the_calls_of_a_jitted_layer_are_changed_as_one():
    place = only(variants(training(jitted_layers(jax.checkpoint)), WS, X))
    assert (place.calls, place.trips, place.can_split) == (4, 4, False)


def test_trips_of_loops():
    step = accumulating(jax.checkpoint)
    place = only(variants(step, WS, f32(5, 8, 16)))
    assert (place.calls, place.trips) == (4, 20)
    place = only(variants(scanning(training(scanned(jax.checkpoint))), STACKED, f32(5, 8, 16)))
    assert (place.calls, place.trips) == (1, 20)


def test_outer_before_inner():
    step = training(inner_of_two(jax.checkpoint))
    outer, inner = of_kind(variants(step, WS, X), "checkpoint")
    if NAMES_OUTER:
        assert (outer.function, inner.function) == ("<lambda>", "layer")
    assert (outer.calls, outer.trips, inner.trips) == (4, 4, 4)


def test_overlaps():
    found = variants(training(inner_of_two(jax.checkpoint)), WS, X)
    outer, inner = of_kind(found, "checkpoint")
    whole = only(found, "whole")
    assert set(found.overlaps()) == {(outer, inner), (whole, outer), (whole, inner)}
    found = variants(training(unrolled(jax.checkpoint)), WS, X)
    assert found.overlaps() == ((only(found, "whole"), only(found)),)


def scans_of_all_kinds(ws, x):
    def loss(ws):
        h = lax.scan(plain_body, x, ws)[0]
        h = lax.scan(plain_body, h, ws[:1])[0]  # one trip is no loop
        return lax.scan(outer_body, h, ws)[0].sum()

    gradients = jax.grad(loss)(ws)
    smooth, _ = lax.scan(lambda c, g: (0.9 * c + g, None), jnp.zeros_like(gradients[0]), gradients)
    once, _ = lax.scan(lambda c, g: (c + g, None), smooth, gradients[:1])
    return ws - gradients * once


def plain_body(x, w):
    return layer(x, w), None


def outer_body(x, w):
    return lax.scan(lambda c, _: (jnp.sin(c @ w) @ w.T, None), x, None, length=3)[0], None


def test_scans():
    """The outermost ones that a gradient goes through and that hold no checkpoint."""
    found = of_kind(variants(scans_of_all_kinds, STACKED, X), "scan")
    code = [(p.function, p.calls, p.trips, p.location.code) for p in found]
    assert code == [
        ("plain_body", 1, 4, "h = lax.scan(plain_body, x, ws)[0]"),
        ("outer_body", 1, 4, "return lax.scan(outer_body, h, ws)[0].sum()"),
    ]
    # One around what is checkpointed is another choice, as in a loss.
    loss = scanned(jax.checkpoint)
    of_loss = subject(Question(loss, (STACKED, X), mode="loss")).variants()
    for kind in ("checkpoint", "scan"):
        (of_step,) = of_kind(variants(training(loss), STACKED, X), kind)
        assert str(of_step) == str(only(of_loss, kind))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_checkpointed_scan_body(policy):
    def loss(body):
        return lambda ws, x: lax.scan(body, x, ws)[0].sum()

    plain = training(loss(plain_body))
    body = jax.checkpoint(plain_body, policy=POLICIES[policy], prevent_cse=False)
    found = variants(plain, STACKED, X)
    place = only(found, "scan")
    expected = written(training(loss(body)), STACKED, X)
    assert figures(changed(found, place, Choice(POLICIES[policy]))) == expected
    assert figures(changed(found, place, None)) == written(plain, STACKED, X)


@pytest.mark.integration
def test_some_calls():
    def loss(which):
        def of(ws, x):
            for i, w in enumerate(ws):
                x = (jax.checkpoint(layer) if which[i] else layer)(x, w)
            return x.sum()

        return of

    found = variants(training(loss([1, 1, 1, 1])), WS, X)
    place = only(found)
    peaks = set()
    for which in ([0, 1, 1, 1], [0, 0, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1]):
        choices = tuple(Choice() if w else None for w in which)
        made = figures(found.variant({place: choices}))
        assert made == written(training(loss(which)), WS, X)
        peaks.add(made[2])
    assert len(peaks) > 2


def test_several_places_at_once():
    def loss(first, second):
        def of(ws, x):
            x = first(layer)(x, ws[0])
            return lax.scan(second(plain_body), x, jnp.stack(ws[1:]))[0].sum()

        return of

    found = variants(training(loss(jax.checkpoint, lambda f: f)), WS, X)
    choices = {only(found): (None,), only(found, "scan"): (Choice(cp.dots_saveable),)}
    in_loop = functools.partial(jax.checkpoint, policy=cp.dots_saveable, prevent_cse=False)
    expected = written(training(loss(lambda f: f, in_loop)), WS, X)
    assert figures(found.variant(choices)) == expected


def test_body():
    found = variants(training(inner_of_two(SAVE_DOTS)), WS, X)
    outer, inner = of_kind(found, "checkpoint")
    for place, dots in ((outer, 2), (inner, 2)):
        body = found.body(place)
        eqns = Counter(jax_compat.primitive_name(eqn) for eqn in eqns_in(body))
        assert eqns["dot_general"] == dots
        assert eqns["remat"] == 0
        assert [v.aval.shape for v in body.invars] == [(8, 16), (16, 32)]
    in_scan = variants(scans_of_all_kinds, STACKED, X)
    body = in_scan.body(of_kind(in_scan, "scan")[1])
    assert Counter(jax_compat.primitive_name(e) for e in eqns_in(body))["remat"] == 0
    assert [v.aval.shape for v in body.outvars] == [(8, 16)]


# Names.


def unnamed(x, w):
    first = jnp.sin(x @ w)
    second = jnp.sin(first)
    return jnp.tanh(second @ w.T)


def with_names(x, w):
    first = checkpoint_name(jnp.sin(x @ w), "first")
    second = jnp.sin(first)
    return jnp.tanh(second @ w.T)


def over(layer):
    def loss(wrap, *, scan):
        if scan:
            body = wrap(lambda x, w: (layer(x, w), None))
            return lambda ws, x: lax.scan(body, x, ws)[0].sum()

        def of(ws, x):
            for w in ws:
                x = wrap(layer)(x, w)
            return x.sum()

        return of

    return loss


@pytest.mark.parametrize("scan", [False, True])
def test_names(scan):
    ws = STACKED if scan else WS
    policy = cp.save_only_these_names("first")
    options = {"policy": policy, "prevent_cse": not scan}
    start = (lambda f: f) if scan else jax.checkpoint
    found = variants(training(over(unnamed)(start, scan=scan)), ws, X)
    place = only(found, "scan" if scan else "checkpoint")
    (value,) = [
        v.expression
        for v in nameable(found.body(place), Frames())
        if v.expression.code == "jnp.sin(x @ w)"
    ]
    made = changed(found, place, Choice(policy, ((value, "first"),)))
    other = over(with_names)(functools.partial(jax.checkpoint, **options), scan=scan)
    expected = written(training(other), ws, X)
    # The name itself is an eqn that reads and writes; it costs nothing else.
    assert figures(made) == expected
    assert figures(changed(found, place, Choice(policy)))[0] < expected[0]


# Isolation.


def test_nothing_leaks():
    """Jitted functions, loops and the checkpoints' own bodies are kept by JAX from trace to trace:
    none of ours may be, nor may ours find those of others."""
    inner = jax.jit(jax.checkpoint(layer))
    body = jax.checkpoint(plain_body)

    def loss(ws, x):
        x = lax.scan(body, x, ws)[0]
        return inner(x, ws[0]).sum()

    step = training(loss)
    before = str(jax.make_jaxpr(step)(STACKED, X))
    found = variants(step, STACKED, X)
    places = of_kind(found, "checkpoint")
    made = found.variant({place: everywhere(place, None) for place in places})
    dots = found.variant({p: everywhere(p, Choice(cp.dots_saveable)) for p in places})
    assert str(jax.make_jaxpr(anew(step))(STACKED, X)) == before
    again = variants(anew(step), STACKED, X)
    assert figures(again.variant({})) == figures(found.variant({}))
    assert made.kept_nbytes > dots.kept_nbytes > found.variant({}).kept_nbytes
    assert "jaxresid" not in str(made.trace.jaxpr)


def anew(step):
    """The same, which JAX does not know yet."""

    def call(*args):
        return step(*args)

    return call


def test_the_compiler_is_not_told():
    def loss(ws, x):
        x = lax.while_loop(lambda x: x.sum() > 1, lambda x: x - 1, lax.stop_gradient(x))
        return scanned(jax.checkpoint)(ws, x)

    found = variants(training(loss), STACKED, X)
    made = changed(found, only(found), Choice(cp.dots_saveable))
    lowered = jax.jit(jax_compat.as_function(made.trace.closed)).lower(STACKED, X).as_text()
    assert "sine" in lowered
    assert "jaxresid" not in lowered
    assert "frontend_attributes" not in lowered


def owner():
    """The module whose code binds."""
    return checkpoint_binding().primitive.bind.__module__.partition(".")[0]


def test_bind_is_as_before_also_after_errors():
    def failing(primitive, *args, **params):
        raise RuntimeError("a policy of mine")

    found = variants(training(unrolled(jax.checkpoint)), WS, X)
    with (
        pytest.raises(RuntimeError),
        intercept_bind({checkpoint_binding(): lambda params, frame: 1 / 0}),
    ):
        raise RuntimeError
    with pytest.raises(InputsError, match="fails: RuntimeError: a policy of mine"):
        changed(found, only(found), Choice(failing))
    assert owner() == "jax"


def test_other_threads_and_handlers_are_not_heard():
    heard_of = []

    def trace():
        jax.make_jaxpr(jax.checkpoint(jnp.sin))(1.0)

    def listen(params, frame):
        heard_of.append(params)
        trace()
        return params

    with intercept_bind({checkpoint_binding(): listen}):
        thread = threading.Thread(target=trace)
        thread.start()
        thread.join()
        assert not heard_of
        trace()
    assert len(heard_of) == 1


# What goes wrong.


def test_a_factory_as_policy():
    found = variants(training(unrolled(jax.checkpoint)), WS, X)
    with pytest.raises(InputsError, match="makes a policy, so call it"):
        changed(found, only(found), Choice(cp.save_only_these_names))
    with pytest.raises(InputsError, match="returns None; it must return True or False"):
        changed(found, only(found), Choice(lambda *_, **__: None))


def test_a_step_that_changes():
    traces = itertools.count(1)  # a list would be restored

    def loss(ws, x):
        for w in ws[: 2 + next(traces) % 2]:
            x = jax.checkpoint(layer)(x, w)
        return x.sum()

    with pytest.raises(RetraceError, match="other checkpoints each time"):
        variants(training(loss), WS, X)


def test_a_step_that_fails_later():
    is_over = False

    def loss(ws, x):
        if is_over:
            raise ValueError("no more\n\nand more")
        return unrolled(jax.checkpoint)(ws, x[None])

    def per_example(ws, x):
        return jax.vmap(lambda x: jax.grad(loss)(ws, x))(x)  # is traced again for each change

    found = variants(per_example, WS, X)
    place = only(found)
    changed(found, place, None)
    is_over = True
    with pytest.raises(InputsError, match="ValueError: no more") as raised:
        changed(found, place, Choice())
    assert "\n" not in str(raised.value)


# Whole training steps, and model libraries.


@pytest.mark.integration
@pytest.mark.parametrize("donated", [False, True])
def test_train_step(donated):
    def build(wrap):
        def step(params, state, batch):
            return train_step.train_step(params, state, batch, wrap(train_step.block))

        return jax.jit(step, donate_argnums=(0, 1)) if donated else step

    args = train_step.train_step_inputs()
    found = variants(build(jax.checkpoint), *args)
    place = only(found)
    assert (place.function, place.calls, place.trips) == ("block", 2, 2)
    assert place.location.code == "x = layer(x, p)"
    assert figures(changed(found, place, None)) == written(build(lambda f: f), *args)
    choice = Choice(cp.dots_with_no_batch_dims_saveable)
    expected = written(build(with_policy(choice.policy)), *args)
    assert figures(changed(found, place, choice)) == expected


def test_accumulated():
    found = variants(accumulating(jax.checkpoint), WS, f32(5, 8, 16))
    made = changed(found, only(found), Choice(cp.dots_saveable))
    assert figures(made) == written(accumulating(SAVE_DOTS), WS, f32(5, 8, 16))
    assert figures(changed(found, only(found), None)) == written(
        accumulating(lambda f: f), WS, f32(5, 8, 16)
    )
    assert not of_kind(found, "scan")


@functools.cache
def model(library):
    path = FIXTURES / f"{library}_model.py"
    spec = importlib.util.spec_from_file_location(f"{library}_steps", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


LIBRARIES = {"linen": "flax", "nnx": "flax", "equinox": "equinox"}


def step_of(library, loss):
    module = model(library)
    fun, (params, *rest) = getattr(module, loss), getattr(module, f"{loss}_inputs")()
    if library != "equinox":
        return training_on(jax.grad(fun)), (params, *rest)
    import equinox

    return training_on(equinox.filter_grad(fun)), (params, *rest)


def training_on(gradient):
    def step(params, *rest):
        return gradient(params, *rest)

    return step


@pytest.mark.integration
@pytest.mark.parametrize("library", LIBRARIES)
def test_model_libraries(library):
    pytest.importorskip(LIBRARIES[library])
    step, args = step_of(library, "loss_scan_remat")
    found = variants(step, *args)
    place = only(found)
    assert place.trips == 3
    hidden = cp.save_only_these_names("mlp_hidden")
    names, other_args = step_of(library, "loss_scan_names")
    assert figures(changed(found, place, Choice(hidden))) == written(names, *other_args)
    plain, plain_args = step_of(library, "loss_scan")
    assert figures(changed(found, place, None)) == written(plain, *plain_args)
    in_loop = variants(plain, *plain_args)
    loop = only(in_loop, "scan")
    assert loop.trips == 3
    made = changed(in_loop, loop, Choice(hidden))
    assert made.kept_nbytes == written(names, *other_args)[0]
