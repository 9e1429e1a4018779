"""Variants of one trace of a step must be what the step gives when it is traced for each of them,
eqn by eqn, and must not run the user's code again."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.inspector import report
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.holes import open_programs, program
from jaxresid.inspector.holes.splicing import UnjoinableError
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.program import step_roles
from jaxresid.inspector.report import subject
from jaxresid.inspector.residuals import step as residuals
from jaxresid.inspector.variants.checkpoints import CheckpointVariants
from jaxresid.inspector.variants.choices import Choice, everywhere, same_places
from jaxresid.inspector.variants.naming import nameable
from tests.small import cp, f32

WS, X = [f32(16, 32)] * 3, f32(8, 16)


def layer(x, w):
    h = checkpoint_name(jnp.sin(jnp.sin(x @ w)), "hidden")
    return jnp.tanh(h @ w.T)


def model(ws, x):
    for w in ws:
        x = jax.checkpoint(layer)(x, w)
    return x


def squares(ws, x):
    return jnp.sum(model(ws, x) ** 2)


def descent(ws, gradients):
    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, gradients)


def plain(loss):
    def step(ws, x):
        return descent(ws, jax.grad(loss)(ws, x))

    return step, (WS, X)


def of_four_layers(loss):
    step, _ = plain(loss)
    return step, ([WS[0]] * 4, X)  # as many as may be grouped


def jitted_and_scoped(loss):
    def step(ws, x):
        with jax.named_scope("learning"):
            value, gradients = jax.jit(jax.value_and_grad(loss))(ws, x)
        return descent(ws, gradients), value

    return jax.jit(step), (WS, X)


def with_aux(loss):
    def told(ws, x):
        value = loss(ws, x)
        return value, {"value": value, "mean": x.mean(), "name": "aux"}

    def step(ws, x):
        with jax.named_scope("learning"):
            (value, aux), gradients = jax.value_and_grad(told, has_aux=True)(ws, x)
        assert aux["name"] == "aux"
        return descent(ws, gradients), value, aux["mean"], aux["value"]

    return step, (WS, X)


def of_two_arguments(loss):
    def both(ws, x, shift, unused):
        return loss(ws, x + shift)

    def step(ws, x, shift):
        value, gradients = jax.value_and_grad(both, argnums=(0, 2, 3))(ws, x, shift, shift)
        return descent((ws, shift, shift), gradients), value

    return step, (WS, X, f32(16))


def over_microbatches(loss):
    def step(ws, xs):
        def add(total, x):
            value, gradients = jax.value_and_grad(loss)(ws, x)
            return jax.tree.map(jnp.add, total, gradients), value

        total, values = lax.scan(add, jax.tree.map(jnp.zeros_like, ws), xs)
        return descent(ws, total), values

    return step, (WS, f32(4, *X.shape))


def clipped_by_hand(loss):
    def step(ws, x):
        gradients = jax.grad(loss)(ws, x)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in gradients))
        return descent(ws, [g / jnp.maximum(norm, 1.0) for g in gradients])

    return step, (WS, X)


def scaled_and_cast(loss):
    def scaled(half, x, scale):
        return loss(half, x.astype(jnp.bfloat16)).astype(jnp.float32) * scale

    def step(ws, x, scale):
        half = jax.tree.map(lambda w: w.astype(jnp.bfloat16), ws)
        value, pull = jax.vjp(lambda half: scaled(half, x, scale), half)
        (gradients,) = pull(jnp.ones_like(value))
        return descent(ws, [g.astype(jnp.float32) / scale for g in gradients]), value

    return step, (WS, X, f32())


def one_after_the_other(loss):
    def step(ws, x):
        ws = descent(ws, jax.grad(loss)(ws, x))
        return descent(ws, jax.grad(loss)(ws, x + 1))

    return step, (WS, X)


def of_constants(loss):
    table = jnp.linspace(0.0, 1.0, 16)

    def step(ws, x):
        return descent(ws, jax.grad(lambda ws: loss(ws, x * table))(ws))

    return step, (WS, X)


def by_adam(loss):
    optax = pytest.importorskip("optax")
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))

    def step(ws, state, x):
        value, gradients = jax.value_and_grad(loss)(ws, x)
        updates, state = optimizer.update(gradients, state, ws)
        return optax.apply_updates(ws, updates), state, value

    return step, (WS, jax.eval_shape(optimizer.init, WS), X)


def filtered(loss):
    eqx = pytest.importorskip("equinox")

    class Module(eqx.Module):
        ws: list
        activation: object

        def __call__(self, x):
            return loss(self.ws, x)

    @eqx.filter_jit
    def step(ws, x):
        module = Module(ws, jnp.tanh)
        value, gradients = eqx.filter_value_and_grad(lambda m, x: m(x))(module, x)
        return descent(ws, gradients.ws), value

    return step, (WS, X)


def of_linen(loss):
    nn = pytest.importorskip("flax.linen")

    class Module(nn.Module):
        @nn.compact
        def __call__(self, x):
            ws = [self.param(f"w{i}", nn.initializers.ones, w.shape) for i, w in enumerate(WS)]
            return loss(ws, x)

    module = Module()

    def step(params, x):
        return descent(params, jax.grad(lambda p: module.apply(p, x))(params))

    return step, (jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.ones(X.shape))), X)


JOINED = [
    plain,
    of_four_layers,
    jitted_and_scoped,
    with_aux,
    of_two_arguments,
    over_microbatches,
    clipped_by_hand,
    scaled_and_cast,
    one_after_the_other,
    of_constants,
    by_adam,
    filtered,
    of_linen,
]


def per_example(loss):
    def step(ws, xs):
        gradients = jax.vmap(lambda x: jax.grad(loss)(ws, x[None]))(xs)
        return jax.tree.map(lambda w, g: w - g.mean(0), ws, gradients)

    return step, (WS, X)


def pulled_twice(loss):
    def step(ws, x):
        value, pull = jax.vjp(lambda ws: loss(ws, x), ws)
        (one,), (two,) = pull(jnp.ones_like(value)), pull(2 * jnp.ones_like(value))
        return descent(descent(ws, one), two)

    return step, (WS, X)


def in_a_derivative(loss):
    def step(ws, x):
        _, change = jax.jvp(lambda ws: jax.grad(loss)(ws, x), (ws,), (ws,))
        return descent(descent(ws, change), jax.grad(loss)(ws, x))

    return step, (WS, X)


APART = [per_example, pulled_twice, in_a_derivative]


def batched(ws, x):
    """A loss of layers under vmap, whose bodies are changed before they are batched."""
    for w in ws:
        x = jax.vmap(jax.checkpoint(layer), (0, None))(x, w)
    return jnp.sum(x**2)


def looping(ws, x):
    return lax.scan(lambda x, w: (layer(x, w), None), x, jnp.stack(ws))[0].sum()


def variants(step, args):
    return subject(Question(step, args, mode="program")).variants()


def figures(variant):
    return variant.kept_nbytes, variant.host_nbytes, variant.peak_nbytes, variant.cost


def eqns(trace):
    """What each eqn is, in which scope, and the user's lines that it came through."""
    return [
        (jax_compat.primitive_name(eqn), jax_compat.name_stack(eqn), lines(trace.frames, eqn))
        for eqn in eqns_in(trace.jaxpr)
    ]


def shapes(trace):
    return [getattr(v.aval, "shape", None) for eqn in eqns_in(trace.jaxpr) for v in eqn.outvars]


def lines(frames, eqn):
    return [frames.location(each).line for each in frames.of(eqn).frames if each.kind == "user"]


def choices_of(found):
    """Yield ways to change a step, those of one shape one after the other."""
    (place, *_) = found.places()
    (value, *_) = nameable(found.body(place), found.holes.traced.frames)
    named = Choice(cp.save_only_these_names("it"), ((value.expression, "it"),))
    policies = [Choice(), Choice(cp.dots_saveable), Choice(cp.everything_saveable), named]
    for choice in (*policies, None):
        yield {place: everywhere(place, choice)}
    if place.calls > 1:
        yield {place: (named, *[None] * (place.calls - 1))}
        yield {place: (None, *[named] * (place.calls - 1))}
    for nest in found.nests():
        cut = Choice(segments=(2,))
        yield {nest.place: everywhere(nest.place, cut)}
        for choice in (named, None) if nest.place.kind == "groups" else ():
            yield {place: everywhere(place, choice), nest.place: everywhere(nest.place, cut)}


def refuse(*_):
    raise UnjoinableError


def same_as_traced_anew(make, loss, monkeypatch):
    """Hold variants against those traced one by one; return how often each way ran the loss."""
    counts = []

    def counting(*args):
        next(counter)
        return loss(*args)

    found = []
    for is_joined in (True, False):
        counter = itertools.count()
        step, args = make(counting)
        with monkeypatch.context() as patch:
            if not is_joined:
                patch.setattr(open_programs, "Deferred", refuse)
            each = variants(step, args)
            found.append([each.variant(made) for made in choices_of(each)])
        counts.append(next(counter))
    for joined, anew in zip(*found, strict=True):
        assert figures(joined) == figures(anew)
        assert eqns(joined.trace) == eqns(anew.trace)
        assert [str(r) for r in joined.residuals()] == [str(r) for r in anew.residuals()]
    return counts


@pytest.mark.integration
@pytest.mark.parametrize("make", JOINED, ids=lambda make: make.__name__)
def test_joined(make, monkeypatch):
    joined, anew = same_as_traced_anew(make, squares, monkeypatch)
    assert joined < anew


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            make,
            id=make.__name__,
            marks=[pytest.mark.integration] if make in (per_example, in_a_derivative) else [],
        )
        for make in APART
    ],
)
def test_what_cannot_be_joined_is_traced_anew(make, monkeypatch):
    joined, anew = same_as_traced_anew(make, squares, monkeypatch)
    assert joined >= anew


@pytest.mark.integration
@pytest.mark.parametrize("loss", [batched, looping], ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("make", [plain, over_microbatches], ids=lambda make: make.__name__)
def test_losses(make, loss, monkeypatch):
    same_as_traced_anew(make, loss, monkeypatch)


@pytest.mark.integration
def test_effects_are_traced_anew(monkeypatch):
    def printing(ws, x):
        jax.debug.print("{}", x[0, 0])
        return squares(ws, x)

    joined, anew = same_as_traced_anew(plain, printing, monkeypatch)
    assert joined >= anew


def with_rows(args, rows):
    """The arguments with that many rows of the batch, the last of them."""
    *others, x = args
    return (*others, f32(*x.shape[:-2], rows, x.shape[-1]))


def in_groups(found):
    """The choices that checkpoint groups of two layers in place of the layers."""
    (place,) = (p for p in found.places() if p.kind == "checkpoint")
    (groups,) = (nest.place for nest in found.nests() if nest.place.kind == "groups")
    return {place: everywhere(place, None), groups: everywhere(groups, Choice(segments=(2,)))}


def other_if_short(ws, x):
    return squares(ws, x if len(x) == 8 else jnp.tanh(x))


def fewer_if_short(ws, x):
    return squares(ws if len(x) == 8 else ws[:1], x) + sum(w[0, 0] for w in ws[1:])


def test_the_layers_of_a_loss_that_has_other_eqns_with_other_leaves_are_found_again():
    step, args = of_four_layers(other_if_short)
    found, other = variants(step, args), variants(step, with_rows(args, 4))
    chosen = in_groups(found)
    same = same_places(chosen, found, other)
    assert {same[place]: made for place, made in chosen.items()} == in_groups(other)


def test_a_loss_that_has_other_layers_with_other_leaves_is_not_grouped():
    step, args = of_four_layers(fewer_if_short)
    found, other = variants(step, args), variants(step, with_rows(args, 4))
    with pytest.raises(JaxresidError, match="other places"):
        same_places(in_groups(found), found, other)


def test_variants_share_what_checkpoints_do_not_change(monkeypatch):
    looked_up, followed = itertools.count(), itertools.count()

    def counted(module, name, counter):
        made = getattr(module, name)

        def call(*args, **options):
            next(counter)
            return made(*args, **options)

        monkeypatch.setattr(module, name, call)

    counted(residuals, "provenance", looked_up)
    counted(step_roles, "_input_uses", followed)
    found = variants(*plain(squares))
    made = [found.variant(each) for each in choices_of(found)]
    assert len(made) > 5
    assert next(followed) == 1
    assert next(looked_up) == 0
    assert made[0].residuals()
    assert next(looked_up) > 1


def test_no_variant_runs_the_code_again():
    runs = itertools.count()

    def counting(*args):
        next(runs)
        return squares(*args)

    found = variants(*of_four_layers(counting))
    without = in_groups(found)
    place, _ = without
    before = next(runs)
    found.variant({place: everywhere(place, Choice())})
    found.variant({**without, place: everywhere(place, Choice(cp.dots_saveable))})
    found.variant(without)
    assert next(runs) == before + 1


def test_residuals_are_counted_where_that_is_asked_for(monkeypatch):
    counted = []

    def counting(*args, count=residuals.step_kept_nbytes):
        counted.append(args)
        return count(*args)

    monkeypatch.setattr(program, "step_kept_nbytes", counting)
    found = variants(*plain(squares))
    each = [found.variant(made) for made in choices_of(found)]
    assert not counted
    assert each[0].kept_nbytes > 0 == each[0].host_nbytes
    assert len(counted) == 1


def test_a_jitted_step_is_not_differentiated(monkeypatch):
    step, args = plain(squares)
    differentiated = []

    def refusing(fun, *_, **__):
        differentiated.append(fun)
        raise InputsError("no derivative")

    monkeypatch.setattr(report, "trace", refusing)
    assert isinstance(subject(Question(jax.jit(step), args)).variants(), CheckpointVariants)
    assert not differentiated
    # The derivative is asked for of what is not jitted.
    assert isinstance(subject(Question(step, args)).variants(), CheckpointVariants)
    assert differentiated == [step]
