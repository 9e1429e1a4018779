"""Plans for modules of libraries, and checkpoints of what is no plain function: the code to write
names what stands in the user's file, and was traced."""

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from tests.small import f32

pytest.importorskip("flax")
pytest.importorskip("equinox")

import equinox as eqx
from flax import linen as nn
from flax import nnx

WIDTH, HIDDEN, LAYERS = 8, 32, 6
X = f32(512, WIDTH)


def act(h):
    return jnp.sin(jnp.cos(jnp.tanh(h)))


class Flat(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(WIDTH, HIDDEN, rngs=rngs)
        self.down = nnx.Linear(HIDDEN, WIDTH, rngs=rngs)

    def __call__(self, x):
        return x + self.down(act(self.up(x)))


class Stack(nnx.Module):
    def __init__(self, rngs):
        self.parts = nnx.List([Flat(rngs) for _ in range(LAYERS)])

    def __call__(self, x):
        for b in self.parts:
            x = b(x)
        return x.sum()


class CheckpointedStack(Stack):
    def __call__(self, x):
        for b in self.parts:
            x = jax.checkpoint(b)(x)
        return x.sum()


class Cell(eqx.Module):
    up: jax.Array
    down: jax.Array

    def __call__(self, x):
        return x + act(x @ self.up) @ self.down


def cell():
    return Cell(f32(WIDTH, HIDDEN), f32(HIDDEN, WIDTH))


def cells(parts, x):
    for b in parts:
        x = b(x)
    return x.sum()


class Unit(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x + nn.Dense(WIDTH)(act(nn.Dense(HIDDEN)(x)))


class Units(nn.Module):
    def setup(self):
        self.parts = [Unit() for _ in range(LAYERS)]

    def __call__(self, x):
        for b in self.parts:
            x = b(x)
        return x.sum()


class CheckpointedUnits(nn.Module):
    @nn.compact
    def __call__(self, x):
        for i in range(LAYERS):
            x = nn.remat(Unit)(name=f"part{i}")(x)
        return x.sum()


def run(model, x):
    return model(x)


def nnx_of(model):
    return nnx.eval_shape(lambda: model(nnx.Rngs(0)))


def units(params, x):
    return Units().apply(params, x)


def checkpointed_units(params, x):
    return CheckpointedUnits().apply(params, x)


def lowest(fun, *args):
    lowest = jaxresid.plan(fun, budget=1, mode="loss")(*args).lowest_nbytes
    return jaxresid.plan(fun, budget=lowest, mode="loss")(*args)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fun", "args", "remat", "plain"),
    [
        (run, lambda: (nnx_of(Stack), X), "nnx.remat(Flat.__call__", "Flat.__call__)(b, x)"),
        (
            cells,
            lambda: ([cell() for _ in range(LAYERS)], X),
            "eqx.filter_checkpoint(b",
            "b)(x)",
        ),
        (
            units,
            lambda: (jax.eval_shape(Units().init, jax.random.key(0), X), X),
            "nn.remat(Unit.__call__",
            "Unit.__call__)(b, x)",
        ),
    ],
)
def test_some_layers_are_checkpointed_by_the_name_that_they_have(fun, args, remat, plain):
    most = jaxresid.plan(fun, budget=1, mode="loss")(*args())
    budget = (most.lowest_nbytes + 3 * most.plain_nbytes) // 4
    plan = jaxresid.plan(fun, budget=budget, mode="loss")(*args())
    assert plan.is_within and plan.verified, plan.doubt
    text = " ".join("\n".join(plan.code).split())
    first = plan.sites[0].parts[0].calls
    assert "for i, b in enumerate(" in text
    assert remat in text and f" if i < {first} else " in text and plain in text.replace(" )", ")")


class Layer:
    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        return self.run(x)

    def run(self, x):
        return x + act(x @ self.w)


def of_instances(ws, x):
    for w in ws:
        b = Layer(w)
        x = jax.checkpoint(b)(x)
    return x.sum()


def of_lambdas(ws, x):
    for w in ws:
        x = jax.checkpoint(lambda x, w: Layer(w).run(x))(x, w)
    return x.sum()


def of_methods(ws, x):
    for w in ws:
        b = Layer(w)
        x = jax.checkpoint(b.run)(x)
    return x.sum()


def of_functions_of_classes(parts, x):
    for b in parts:
        x = jax.checkpoint(Cell.__call__)(b, x)
    return x.sum()


def ws():
    return [f32(WIDTH, WIDTH)] * LAYERS


@pytest.mark.parametrize(
    ("fun", "args", "written"),
    [
        pytest.param(
            run,
            lambda: (nnx_of(CheckpointedStack), X),
            "x = b(x)",
            marks=pytest.mark.integration,
        ),
        (of_instances, lambda: (ws(), X), "x = b(x)"),
        pytest.param(
            of_lambdas,
            lambda: (ws(), X),
            "x = Layer(w).run(x)",
            marks=pytest.mark.integration,
        ),
        pytest.param(of_methods, lambda: (ws(), X), "x = b.run(x)", marks=pytest.mark.integration),
        (of_functions_of_classes, lambda: ([cell(), cell()], X), "x = Cell.__call__(b, x)"),
    ],
)
def test_a_checkpoint_is_found_by_what_it_is_of(fun, args, written):
    plan = jaxresid.plan(fun, budget="1GiB", mode="loss")(*args())
    assert plan.verified, plan.doubt
    assert [site.changed for site in plan.sites] == [True]
    assert written in "\n".join(plan.code)


@pytest.mark.integration
def test_what_is_left_out_is_said_where_nothing_changes():
    params = jax.eval_shape(CheckpointedUnits().init, jax.random.key(0), X)
    plan = jaxresid.plan(checkpointed_units, budget="1GiB", mode="loss")(params, X)
    assert plan.is_within and plan.code == ()
    assert any("rejected" in warning and "other names" in warning for warning in plan.warnings), (
        plan
    )


# -- steps, and modules of libraries ---------------------------------------------------------------


class Tower(nn.Module):
    """Its `act` is a wrapper, whose own `__call__` is called from the same line."""

    @nn.compact
    def __call__(self, x):
        h = jax.nn.relu(nn.Dense(HIDDEN)(x))
        return nn.Dense(WIDTH)(jax.nn.silu(jax.nn.relu(act(h))))


class TwoTowers(nn.Module):
    @nn.compact
    def __call__(self, x):
        left = nn.Dense(4)(Tower(name="left")(x))
        right = nn.Dense(1)(Tower(name="right")(x))
        return (left * right).sum()


def two_towers(params, x):
    return TwoTowers().apply(params, x)


def residual(parts, x):
    for part in parts:
        x = x + jax.vmap(part)(x)
    return x.sum()


def linear(parts, x):
    for part in parts:
        x = act(jax.vmap(part)(x))
    return x.sum()


def eqx_step(loss):
    def step(model, x):
        gradients = eqx.filter_grad(loss)(model, x)
        return eqx.apply_updates(model, gradients)

    return step


def eqx_mlps():
    make = lambda key: eqx.nn.MLP(WIDTH, WIDTH, HIDDEN, 1, key=key)
    return [eqx.filter_eval_shape(make, jax.random.key(i)) for i in range(4)]


def eqx_linears():
    make = lambda key: eqx.nn.Linear(WIDTH, WIDTH, key=key)
    return [eqx.filter_eval_shape(make, jax.random.key(i)) for i in range(4)]


def places_of(fun, *args, **options):
    found = subject(Question(fun, args, **options))
    return [(p.kind, p.function, p.calls) for p in found.variants().places()]


def test_modules_of_a_library_are_places_and_linear_ones_are_not():
    found = places_of(eqx_step(residual), eqx_mlps(), X, mode="program")
    assert ("call", "MLP.__call__", 4) in found
    found = places_of(eqx_step(linear), eqx_linears(), X, mode="program")
    assert not [p for p in found if p[1] == "Linear.__call__"]
    assert ("block", "loop in linear", 4) in found


@pytest.mark.integration
def test_a_module_of_a_library_is_filtered_where_it_is_called():
    plan = lowest(residual, eqx_mlps(), X)
    called = [(s.function, s.library) for s in plan.sites if s.kind == "call"]
    assert called == [("MLP.__call__", "equinox")]


@pytest.mark.integration
def test_what_else_is_called_on_a_line_does_not_make_an_array_static():
    params = jax.eval_shape(TwoTowers().init, jax.random.key(0), X)
    plan = lowest(two_towers, params, X)
    assert {s.function for s in plan.sites} == {"Tower.__call__"}
    text = "\n".join(plan.code)
    assert "nn.remat(Tower.__call__" in text
    assert "static_argnums" not in text
    assert plan.doubt is None
