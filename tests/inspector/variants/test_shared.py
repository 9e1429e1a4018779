"""What variants have in common is made once, by this code and by JAX."""

import functools

import jax
import jax.numpy as jnp
import pytest

from jaxresid import jax_compat
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.jaxpr import phases
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.program.reading import JaxprReader
from jaxresid.inspector.report import subject
from jaxresid.inspector.variants import checkpoints
from jaxresid.inspector.variants.choices import Choice, everywhere
from jaxresid.inspector.variants.naming import nameable
from tests.small import cp, f32

WS, X = [f32(16, 16)] * 12, f32(8, 16)


def layer(x, w):
    return x + jnp.sin(jnp.tanh(x @ w) @ w)


def loss(ws, x):
    for w in ws:
        x = jax.checkpoint(layer)(x, w)
    return x.sum()


def step(ws, x):
    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, jax.grad(loss)(ws, x))


def variants_of(fun):
    found = subject(Question(fun, (WS, X), on="gpu:h100")).variants()
    return found, {place.kind: place for place in found.places()}


@pytest.fixture
def differentiated(monkeypatch):
    """The bodies of the checkpoints that JAX is given, of one variant after the other."""
    found = []

    def few_layers(traced, short):
        eqns = [e for e in short.jaxpr.eqns if jax_compat.primitive_name(e) == "remat"]
        found.append([jax_compat.open_jaxpr(jax_compat.params(e)["jaxpr"]) for e in eqns])
        return made(traced, short)

    made = checkpoints.few_layers
    monkeypatch.setattr(checkpoints, "few_layers", few_layers)
    return found


def test_policies_around_all_layers_share_what_is_in_the_checkpoint(monkeypatch, differentiated):
    calls = []
    made = checkpoints.shortened
    monkeypatch.setattr(checkpoints, "shortened", lambda jaxpr: calls.append(jaxpr) or made(jaxpr))
    found, places = variants_of(loss)
    inside = {places["checkpoint"]: everywhere(places["checkpoint"], None)}
    for policy in (None, cp.dots_saveable, cp.everything_saveable):
        found.variant({**inside, places["whole"]: (Choice(policy),)})
    assert len(calls) == 1
    assert len(differentiated) == 3
    assert len({id(body) for bodies in differentiated for body in bodies}) == 1


def test_other_choices_inside_are_not_taken_for_the_same(differentiated):
    found, places = variants_of(loss)
    inside, whole = places["checkpoint"], {places["whole"]: (Choice(),)}
    flops = [
        found.variant({inside: everywhere(inside, choice), **whole}).cost.flops
        for choice in (None, Choice(), Choice(cp.everything_saveable))
    ]
    # With jax_remat3 what the inner policy saves is recomputed all the same, without sharing too.
    assert len(set(flops)) == (2 if jax_compat.flags().get("jax_remat3") else 3)


def test_policies_of_layers_share_bodies_with_the_same_names(differentiated):
    found, places = variants_of(loss)
    place = places["checkpoint"]
    value = next(v for v in nameable(found.body(place), found.holes.traced.frames))
    names = ((value.expression, "kept"),)
    for policy in (cp.save_only_these_names("kept"), cp.save_any_names_but_these("kept")):
        found.variant({place: everywhere(place, Choice(policy, names))})
    one, other = differentiated
    assert {id(body) for body in one} == {id(body) for body in other}


def test_the_name_stack_of_an_eqn_is_read_once_for_its_pass(monkeypatch):
    traced = subject(Question(step, (WS, X), on="gpu:h100", mode="program")).trace
    passes, read = phases.Passes(), []
    stack = jax_compat.name_stack
    monkeypatch.setattr(jax_compat, "name_stack", lambda eqn: read.append(id(eqn)) or stack(eqn))
    for _ in range(2):
        for eqn in eqns_in(traced.jaxpr):
            passes.of(eqn)
    assert len(read) == len(set(read)) > 0


def test_a_reader_writes_out_a_literal_once(monkeypatch):
    closed = jax.make_jaxpr(lambda x: jnp.sin(x * 2.5) * 3.5)(1.0)
    jaxpr = jax_compat.open_jaxpr(closed)
    again = jaxpr.replace(eqns=list(jaxpr.eqns))
    written = []
    text = jax_compat.literal_text
    monkeypatch.setattr(jax_compat, "literal_text", lambda v: written.append(v) or text(v))
    reader = JaxprReader()
    one, other = (reader.steps(each, "") for each in (jaxpr, again))
    assert len(written) == 2
    assert [v.literal for v in one.literals.values()] == ["2.5", "3.5"]
    assert one.literals.keys() == other.literals.keys()
    assert not set(one.literals.values()) & set(other.literals.values())


def folded_loss(ws, x, key):
    """Each layer folds a number of its own into the key of its dropout, as Flax Linen's do."""

    def dropped(x, w, number):
        keep = jax.random.bernoulli(jax.random.fold_in(key, number), 0.9, x.shape)
        return layer(jnp.where(keep, x, 0), w)

    for number, w in enumerate(ws):
        x = dropped(x, w, 1000 + number)
    return x.sum()


def folded_step(ws, x, key):
    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, jax.grad(folded_loss)(ws, x, key))


def checkpointed_step(ws, x, key, policy=None):
    def loss(ws, x, key):
        for number, w in enumerate(ws):

            @functools.partial(jax.checkpoint, policy=policy)
            def dropped(x, w, key, number=1000 + number):
                keep = jax.random.bernoulli(jax.random.fold_in(key, number), 0.9, x.shape)
                return layer(jnp.where(keep, x, 0), w)

            x = dropped(x, w, key)
        return x.sum()

    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, jax.grad(loss)(ws, x, key))


FOLDED = (WS, X, jax.eval_shape(lambda: jax.random.key(0)))


def figures(variant):
    return variant.peak_nbytes, variant.kept_nbytes, variant.cost.flops


def figures_of_checkpointed(policy=None):
    fun = functools.partial(checkpointed_step, policy=policy)
    return figures(subject(Question(fun, FOLDED, on="gpu:h100")).variants().variant({}))


@pytest.mark.integration
def test_layers_that_differ_in_what_they_fold_into_keys_share_a_body(monkeypatch):
    bodies = []
    made = jax_compat.as_remat
    monkeypatch.setattr(
        jax_compat, "as_remat", lambda body, *rest: bodies.append(body) or made(body, *rest)
    )
    found = subject(Question(folded_step, FOLDED, on="gpu:h100")).variants()
    place = next(p for p in found.places() if p.calls == len(WS))
    variant = found.variant({place: everywhere(place, Choice())})
    assert len({id(body) for body in bodies}) == 1
    # And the figures are those of code with the checkpoints and the numbers inside.
    assert figures(variant) == figures_of_checkpointed()


@pytest.mark.integration
@pytest.mark.skipif(
    bool(jax_compat.flags().get("jax_remat3")), reason="JAX differentiates each there"
)
@pytest.mark.parametrize("policy", [None, cp.dots_saveable])
def test_checkpoints_that_differ_in_what_they_fold_into_keys_share_a_body(policy):
    found = subject(Question(checkpointed_step, FOLDED, on="gpu:h100")).variants()
    place = next(p for p in found.places() if p.kind == "checkpoint")
    traced = found.trace({place: everywhere(place, Choice(policy))})
    remats = [e for e in eqns_in(traced.jaxpr) if jax_compat.primitive_name(e) == "remat"]
    assert len(remats) == len(WS)
    # That of the first layer has no gradient for x.
    assert len({id(jax_compat.open_jaxpr(jax_compat.params(e)["jaxpr"])) for e in remats}) == 2
    assert figures(found.measured(traced)) == figures_of_checkpointed(policy)


@pytest.mark.integration
def test_layers_without_their_checkpoints_are_those_without():
    found = subject(Question(checkpointed_step, FOLDED, on="gpu:h100")).variants()
    place = next(p for p in found.places() if p.kind == "checkpoint")
    without = found.variant({place: everywhere(place, None)})
    plain = subject(Question(folded_step, FOLDED, on="gpu:h100")).variants().variant({})
    assert figures(without) == figures(plain)
