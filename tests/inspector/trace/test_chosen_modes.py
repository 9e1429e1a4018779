"""A mode that is named: what it changes, what it warns of, what it refuses."""

import importlib.util
import inspect

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxresid
from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.inspector.call.inputs import from_function
from tests.inspector.trace.test_reading import LOSSES, PROGRAMS
from tests.program_oracle import rows_of
from tests.small import f32, i32

X = f32(8)


def energy(x):
    return jnp.sum(jnp.sin(x) ** 2)


def step(x):
    return x - 0.1 * jax.grad(energy)(x)


def step_with_its_loss(x):
    value, gradient = jax.value_and_grad(energy)(x)
    return value, x - 0.1 * gradient


def penalised(x):
    return energy(x) + jnp.sum(jax.grad(energy)(x) ** 2)


def penalised_with_aux(x):
    gradient = jax.grad(energy)(x)
    return energy(x) + jnp.sum(gradient**2), {"forces": -gradient}


def endless(x):
    return jnp.sum(lax.while_loop(lambda x: x[0] < 9, lambda x: x + x, x))


def uncallable(x):
    return jnp.sum(jax.pure_callback(lambda x: x, x, x))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fun", "args", "mode"),
    [(*case, "loss") for case in LOSSES] + [(*case, "program") for case in PROGRAMS],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_the_mode_that_auto_chooses_says_the_same(fun, args, mode):
    read = jaxresid.inspect(fun)(*args)
    assert jaxresid.inspect(fun, mode=mode)(*args).to_json() == read.to_json()


FIXTURES = ("block", "docs", "gpt", "neural_ode", "offload", "optimizer", "stack8", "train_step")
NEEDED = {"neural_ode": "equinox", "optimizer": "optax"}


def _fixtures():
    for name in FIXTURES:
        if name in NEEDED and importlib.util.find_spec(NEEDED[name]) is None:
            continue
        module = importlib.import_module(f"fixtures.inspect.{name}")
        for function in vars(module).values():
            inputs = getattr(module, f"{getattr(function, '__name__', '')}_inputs", None)
            if inspect.isfunction(inputs) and function.__module__ == module.__name__:
                yield pytest.param(function, inputs, id=f"{name}.{function.__name__}")


@pytest.mark.integration
@pytest.mark.parametrize(("fun", "inputs"), _fixtures())
def test_a_fixture_says_the_same_in_the_mode_that_auto_chooses(fun, inputs):
    args = from_function(inputs, inputs.__name__).args
    read = jaxresid.inspect(fun)(*args)
    assert jaxresid.inspect(fun, mode=read.target.mode)(*args).to_json() == read.to_json()


@pytest.mark.parametrize(
    ("fun", "options"),
    [
        (step, {"mode": "loss"}),
        (step, {"argnums": 0}),
        (step_with_its_loss, {"has_aux": True}),
        (step_with_its_loss, {"mode": "loss"}),
    ],
)
def test_a_step_that_is_asked_for_as_a_loss_is_said_to_take_gradients(fun, options):
    report = jaxresid.inspect(fun, **options)(X)
    assert report.target.mode == "loss"
    line = fun.__code__.co_firstlineno + 1
    (warning,) = [w for w in report.warnings if "takes gradients itself (grad at " in w]
    assert f"test_chosen_modes.py:{line})" in warning
    assert "use mode program to take it as it is" in warning
    assert all(f"leave out {option}" in warning for option in options if option != "mode")


@pytest.mark.parametrize("fun", [penalised, penalised_with_aux, energy])
@pytest.mark.parametrize("mode", ["auto", "loss"])
def test_a_loss_with_gradients_inside_is_no_mistake(fun, mode):
    report = jaxresid.inspect(fun, mode=mode)(X)
    assert (report.target.mode, report.warnings) == ("loss", ())


def test_arrays_are_differentiated_with_cotangents_of_ones():
    report = jaxresid.inspect(jnp.sin, mode="loss")(X)
    scalar = jaxresid.inspect(lambda x: jnp.sum(jnp.sin(x)))(X)
    assert list(rows_of(report.residuals).elements()) == [("float32", (8,), 32)]
    assert rows_of(report.residuals) == rows_of(scalar.residuals)


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize(
    ("fun", "reason"),
    [(endless, "Reverse-mode differentiation does not"), (uncallable, "do not support JVP")],
)
def test_a_loss_that_jax_cannot_differentiate_says_what_takes_it(fun, reason, jitted):
    fun = jax.jit(fun) if jitted else fun
    with pytest.raises(JaxresidError) as caught:
        jaxresid.inspect(fun)(X)
    assert reason in str(caught.value)
    assert str(caught.value).endswith("\n  mode program takes it as it is, without its gradient")
    assert jaxresid.inspect(fun, mode="program")(X).target.mode == "program"


@pytest.mark.parametrize(
    ("fun", "args", "message"),
    [
        (jnp.sin, (i32(3),), r"nothing to differentiate: x \(int32\); mode program takes it as it"),
        (jnp.argsort, (X,), "only int32, which has no gradient; .* mode program to take it as it"),
        (lambda x: None, (X,), "returns no arrays"),
    ],
)
def test_what_has_no_gradient_is_no_loss(fun, args, message):
    with pytest.raises(InputsError, match=message) as caught:
        jaxresid.inspect(fun, mode="loss")(*args)
    assert "\n" not in str(caught.value)


def test_what_computes_nothing_is_no_program():
    with pytest.raises(InputsError, match="returns no array and changes nothing"):
        jaxresid.inspect(lambda x: None)(X)
