"""Plans as a RematScope of Keras, for which Keras need not be installed: a layer here is what has a
name and a base class of that package."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxresid.advice.plan.emit.keras import keras_settings, watched_layers
from jaxresid.base.errors import InputsError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.results import Location, PlannedPart, PlannedSite

ARGS = [jax.ShapeDtypeStruct(s, "float32") for s in ((16, 64), (3, 64, 64))]


class Layer:
    __module__ = "keras.src.layers.layer"

    def __init__(self, name):
        self.name = name


class Variable:
    __module__ = "keras.src.backend.common.variables"

    def assign(self, value):
        self.value = value


class Norm(Layer):
    def __init__(self, name):
        super().__init__(name)
        self.mean = Variable()

    def call(self, x):
        self.mean.assign(x.mean())
        return jnp.sin(x) - x.mean()


class Outer(Layer):
    def __init__(self, name):
        super().__init__(name)
        self.norm = Norm("inner")

    def call(self, x):
        return jnp.tanh(self.norm.call(x))


class Block(Layer):
    def call(self, x, w):
        h = jnp.sin(x @ w)
        return x + jnp.tanh(h * h)


class Plain:
    name = "plain"

    def call(self, x):
        return x


BLOCKS = [Block("block"), Block("block_1"), Block("block_2")]


def loss(x, ws):
    one, two, three = (block.call for block in BLOCKS)
    return Plain().call(three(two(one(x, ws[0]), ws[1]), ws[2])).sum()  # one line, as for Keras


@pytest.fixture(scope="module")
def traced():
    return subject(Question(loss).of(ARGS, {}))


def planned(traced, *parts, kind="call", function=None):
    (place,) = (p for p in traced.variants().places() if p.function == "Block.call")
    site = PlannedSite(
        kind, function or place.function, place.location, place.calls, place.calls, parts, True
    )
    return SimpleNamespace(sites=(site,))


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ((PlannedPart(3, True),), ("block", "block_1", "block_2")),
        ((PlannedPart(1, True), PlannedPart(2, False)), ("block",)),
        ((PlannedPart(1, False), PlannedPart(2, True)), ("block_1", "block_2")),
    ],
)
def test_the_layers(traced, parts, names):
    made = keras_settings(planned(traced, *parts), traced)
    assert (made.names, made.unsaid) == (names, ())


def test_the_scope(traced):
    made = keras_settings(planned(traced, PlannedPart(1, True), PlannedPart(2, False)), traced)
    assert made.text == (
        'with keras.RematScope(mode="list_of_layers", layer_names=["block"]):\n'
        "    ...  # make the layers in here\n"
    )


def test_a_policy_inside_of_a_layer_is_not_said(traced):
    made = keras_settings(planned(traced, PlannedPart(3, True, "dots_saveable")), traced)
    assert made.names == ("block", "block_1", "block_2")
    assert made.unsaid == ("Keras saves nothing inside of a layer, not dots_saveable",)


def test_where_no_layer_is_planned_all_are_computed_again(traced):
    made = keras_settings(
        planned(traced, PlannedPart(1, True), kind="whole", function="loss"), traced
    )
    assert made.names == ("block", "block_1", "block_2")
    assert made.unsaid[0].startswith("Keras has no setting for ")


def test_a_target_without_layers_is_one_line():
    plain = subject(Question(lambda x, ws: jnp.sin(x @ ws[0]).sum()).of(ARGS, {}))
    changed = SimpleNamespace(sites=(SimpleNamespace(changed=True),))
    with pytest.raises(InputsError, match="the target calls no layer of Keras that") as e:
        keras_settings(changed, plain)
    assert "\n" not in str(e.value)


def test_a_plan_that_changes_nothing_is_one_line(traced):
    with pytest.raises(InputsError, match=r"^the plan changes nothing$"):
        keras_settings(SimpleNamespace(sites=()), traced)


def test_a_layer_that_changes_its_state_is_left_out():
    layer = Outer("outer")
    function = subject(Question(lambda x: layer.call(x).sum()).of(ARGS[:1], {}))
    changed = SimpleNamespace(sites=(SimpleNamespace(changed=True),))
    with pytest.raises(InputsError, match="Keras takes no state out of one, as inner has"):
        keras_settings(changed, function)


def test_only_layers_are_seen():
    def run():
        Plain().call(1)
        BLOCKS[1].call(jnp.ones((2, 2)), jnp.ones((2, 2)))
        BLOCKS[0].call(jnp.ones((2, 2)), jnp.ones((2, 2)))
        BLOCKS[1].call(jnp.ones((2, 2)), jnp.ones((2, 2)))

    assert watched_layers(run).names == {"Block.call": ("block_1", "block")}


def test_which_layers_change_their_state():
    seen = watched_layers(lambda: Outer("outer").call(jnp.ones(2)))
    assert seen.changed == {"outer", "inner"}


def test_the_place_of_a_layer_is_by_its_line(traced):
    (site,) = planned(traced, PlannedPart(3, True)).sites
    elsewhere = SimpleNamespace(
        sites=(
            PlannedSite(
                "call", site.function, Location("other.py", 1, 0, "f", ""), 3, 3, site.parts, True
            ),
        )
    )
    assert keras_settings(elsewhere, traced).unsaid == (
        "Keras has no setting for other.py:1 (Block.call)",
    )
