"""Layers that a framework calls by the structure of a model are places, by their names."""

import framework_graph
import jax
import jax.numpy as jnp
import pytest

from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.inspector.variants.choices import Choice

LIBRARY = framework_graph.library(jax)
X = jax.ShapeDtypeStruct((64, 64), "float32")


def model(*layers):
    made = LIBRARY["Model"]("model")
    made.layers = list(layers)
    return made


def layer(kind, name):
    return LIBRARY[kind](name)


class Own(LIBRARY["Layer"]):
    def call(self, x):
        return jnp.tanh(jnp.sin(x)) * x


def calls(fun, traced=None):
    places = (traced or subject(Question(fun).of([X], {}))).variants().places()
    return [p for p in places if p.kind == "call"]


# What calls the model is a library's, or the line would be the user's.
def target(made, result="result.sum()", call="model.call"):
    names = {"model": made}
    source = f"def run(x):\n    result = {call}(x)\n    return {result}\n"
    exec(compile(source, "/nowhere/site-packages/keras/src/trainer.py", "exec"), names)
    return names["run"]


@pytest.mark.parametrize("call", ["model.call", "model"])  # which has a name as well
def test_each_layer_is_a_call_by_its_name(call):
    waves = [layer("Wave", f"wave_{i}") for i in range(4)]
    (place,) = calls(target(model(*waves, layer("Scale", "end")), call=call))
    assert (place.function, place.calls) == ("Wave.call", 4)
    assert place.layers == ("wave_0", "wave_1", "wave_2", "wave_3")
    assert place.by_framework
    assert place.location.file.endswith("keras/src/ops/function.py")
    assert place.defined.file.endswith("keras/src/layers/some.py")


def test_layers_of_the_users_and_models_in_models():
    parts = [model(layer("Wave", "a"), layer("Wave", "b")) for _ in range(2)]
    for i, part in enumerate(parts):
        part.name = f"part_{i}"
    found = calls(target(model(*parts, Own("own"), Own("own_1"))))
    assert [(p.function, p.layers) for p in found] == [
        ("Model.call", ("part_0", "part_1")),
        ("Own.call", ("own", "own_1")),
    ]


def test_a_function_is_no_layer():
    class Holder(LIBRARY["Layer"]):
        def call(self, x):
            return wave(wave(x) + x)

    def wave(x):
        return jnp.tanh(jnp.sin(x)) * x

    (place,) = calls(target(model(Holder("holder"))))
    assert (place.function, place.layers, place.by_framework) == ("wave", (None, None), False)


def test_a_layer_that_hands_out_state_is_no_place():
    norm, wave = layer("Norm", "norm"), layer("Wave", "wave")
    made = model(norm, wave, layer("Wave", "wave_1"))
    assert {p.function for p in calls(target(made))} == {"Norm.call", "Wave.call"}
    stateful = target(made, "result.sum(), model.layers[0].mean")
    traced = subject(Question(stateful, has_aux=True).of([X], {}))
    assert {p.function for p in calls(None, traced)} == {"Wave.call"}


def test_lines_of_the_users_are_places_as_ever():
    made = model(layer("Wave", "wave"), layer("Wave", "wave_1"))

    def block(x):
        return jnp.tanh(made.call(x))

    (place,) = calls(lambda x: block(block(x)).sum())
    assert (place.function.rpartition(".")[2], place.by_framework) == ("block", False)
    assert not calls(lambda x: made.call(made.call(x)).sum())


@pytest.mark.parametrize("count", [1, 2])
def test_the_checkpointed_layer_keeps_its_input_alone(count):
    made = model(*(layer("Wave", f"wave_{i}") for i in range(3)))
    traced = subject(Question(target(made)).of([X], {}))
    variants = traced.variants()
    (place,) = calls(None, traced)
    chosen = tuple(Choice() if i < count else None for i in range(3))
    found = variants.variant({place: chosen})

    def by_hand(x):
        for i in range(3):
            one = lambda x: jnp.tanh(jnp.sin(x)) * x
            x = (jax.checkpoint(one) if i < count else one)(x)
        return x.sum()

    expected = subject(Question(by_hand).of([X], {})).variants().variant({})
    assert (found.kept_nbytes, found.cost.flops) == (expected.kept_nbytes, expected.cost.flops)
