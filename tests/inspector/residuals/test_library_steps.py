"""Training steps as the users of libraries write them: what their inputs are."""

import os

import jax
import jax.numpy as jnp
import pytest

from jaxresid.inspector.call.inputs import from_concrete, from_function
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.program.step import step_program
from jaxresid.inspector.report import inspection

optax = pytest.importorskip("optax")
WIDTH, HIDDEN, BATCH = 16, 32, 8
ADAM = optax.adam(1e-3)
X = Y = jnp.ones((BATCH, WIDTH))


def nbytes(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def totals(step, inputs, make=from_function):
    given = make(inputs, "inputs")
    found = inspection(Question(step, given.args))
    assert found.report.target.mode == "program"
    assert found.report.warnings == ()
    program, sums = step_program(found.trace), {}
    for role, value in zip(program.inputs, program.block.inputs, strict=True):
        sums[role.kind] = sums.get(role.kind, 0) + value.nbytes
    return sums


def expected(parameters, state, batch=(X, Y), rest=()):
    found = {
        "parameters": nbytes(parameters),
        "optimizer-state": nbytes(state),
        "batch": nbytes(batch),
        "argument": nbytes(rest),
    }
    return {kind: size for kind, size in found.items() if size}


def distance(predicted, y):
    return jnp.mean((predicted - y) ** 2)


def dense(params, x):
    return jnp.tanh(x @ params["up"]) @ params["down"]


def dense_parameters():
    return {"up": jnp.ones((WIDTH, HIDDEN)), "down": jnp.ones((HIDDEN, WIDTH))}


@pytest.mark.parametrize(
    "tx", [ADAM, optax.MultiSteps(ADAM, 4), optax.chain(optax.clip_by_global_norm(1.0), ADAM)]
)
def test_linen_train_state_donated(tx):
    linen = pytest.importorskip("flax.linen")
    train_state = pytest.importorskip("flax.training.train_state")
    model = linen.Sequential([linen.Dense(HIDDEN), linen.relu, linen.Dense(WIDTH)])

    def step(state, x, y):
        def loss(params):
            return distance(state.apply_fn({"params": params}, x), y)

        value, gradient = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradient), value

    def inputs():
        params = model.init(jax.random.key(0), X)["params"]
        return train_state.TrainState.create(apply_fn=model.apply, params=params, tx=tx), X, Y

    state = jax.eval_shape(inputs)[0]
    found = totals(jax.jit(step, donate_argnums=0), inputs)
    assert found["parameters"] == nbytes(state.params)
    # `create` makes the step the Python number 0, which jax.jit traces.
    assert found["optimizer-state"] == nbytes((state.opt_state, state.step))
    assert found["batch"] == nbytes((X, Y))


def test_gradients_accumulated_in_a_scan():
    def step(params, state, xs, ys):
        def body(total, batch):
            x, y = batch
            return jax.tree.map(jnp.add, total, jax.grad(loss)(params, x, y)), None

        def loss(params, x, y):
            return distance(dense(params, x), y)

        zeros = jax.tree.map(jnp.zeros_like, params)
        gradient, _ = jax.lax.scan(body, zeros, (xs, ys))
        updates, state = ADAM.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    params = dense_parameters()
    state, several = ADAM.init(params), jnp.ones((4, BATCH, WIDTH))
    found = totals(jax.jit(step), lambda: (params, state, several, several))
    assert found == expected(params, state, (several, several))


def scaled(params, state, scale, x, y):
    """Skips what overflows, and counts what does not."""

    def loss(params):
        return distance(dense(params, x), y) * scale["scale"]

    gradient = jax.tree.map(lambda g: g / scale["scale"], jax.grad(loss)(params))
    fine = jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(gradient)]).all()
    updates, after = ADAM.update(gradient, state, params)
    kept = (optax.apply_updates(params, updates), after)
    params, state = jax.tree.map(lambda a, b: jnp.where(fine, a, b), kept, (params, state))
    good = jnp.where(fine, scale["good"] + 1, 0)
    grown = jnp.where(good >= 100, scale["scale"] * 2, scale["scale"])
    return params, state, {"scale": jnp.where(fine, grown, scale["scale"] / 2), "good": good}


def test_dynamic_loss_scaling():
    params = dense_parameters()
    state, scale = ADAM.init(params), {"scale": jnp.float32(2**15), "good": jnp.int32(0)}
    found = totals(jax.jit(scaled), lambda: (params, state, scale, X, Y))
    assert found == expected(params, state, rest=scale)


def test_jmp():
    jmp = pytest.importorskip("jmp")
    params = dense_parameters()
    state, scale = ADAM.init(params), jmp.DynamicLossScale(jnp.float32(2**15))

    def step(params, state, scale, x, y):
        def loss(params):
            return scale.scale(distance(dense(params, x), y))

        gradient = scale.unscale(jax.grad(loss)(params))
        fine = jmp.all_finite(gradient)
        updates, after = ADAM.update(gradient, state, params)
        kept = (optax.apply_updates(params, updates), after)
        params, state = jmp.select_tree(fine, kept, (params, state))
        return params, state, scale.adjust(fine)

    found = totals(jax.jit(step), lambda: (params, state, scale, X, Y))
    assert found == expected(params, state, rest=scale)


@pytest.mark.integration
@pytest.mark.parametrize("make", [from_function, from_concrete])
def test_equinox_state(make):
    eqx = pytest.importorskip("equinox")

    class Model(eqx.Module):
        up: eqx.nn.Linear
        norm: eqx.nn.BatchNorm
        down: eqx.nn.Linear

        def __init__(self, key):
            self.up = eqx.nn.Linear(WIDTH, HIDDEN, key=key)
            self.norm = eqx.nn.BatchNorm(HIDDEN, axis_name="batch", mode="batch")
            self.down = eqx.nn.Linear(HIDDEN, WIDTH, key=key)

        def __call__(self, x, state):
            x, state = self.norm(self.up(x), state)
            return self.down(jax.nn.relu(x)), state

    def loss(model, state, x, y):
        mapped = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        predicted, state = mapped(x, state)
        return distance(predicted, y), state

    @eqx.filter_jit
    def step(model, state, kept, x, y):
        taken = eqx.filter_value_and_grad(loss, has_aux=True)
        (value, state), gradient = taken(model, state, x, y)
        updates, kept = ADAM.update(gradient, kept, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, kept, value

    def inputs():
        model, state = eqx.nn.make_with_state(Model)(jax.random.key(0))
        return model, state, ADAM.init(eqx.filter(model, eqx.is_inexact_array)), X, Y

    model, state, kept, *_ = inputs()
    parameters = eqx.filter(model, eqx.is_inexact_array)
    assert totals(step, inputs, make) == expected(parameters, kept, rest=state)


@pytest.mark.parametrize(
    "make", [from_function, pytest.param(from_concrete, marks=pytest.mark.integration)]
)
def test_nnx_layers_in_a_scan(make):
    nnx = pytest.importorskip("flax.nnx")

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
            self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
            self.drop = nnx.Dropout(0.1, rngs=rngs)

        def __call__(self, x):
            return x + self.drop(self.norm(jnp.tanh(self.linear(x))))

    class Net(nnx.Module):
        def __init__(self, rngs):
            @nnx.split_rngs(splits=4)
            @nnx.vmap(in_axes=(0,), out_axes=0)
            def create(rngs):
                return Block(rngs)

            self.layers = create(rngs)

        def __call__(self, x):
            @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            @nnx.remat
            def forward(x, layer):
                return layer(x)

            return forward(x, self.layers)

    @nnx.jit
    def step(model, optimizer, metrics, x, y):
        value, gradient = nnx.value_and_grad(lambda model: distance(model(x), y))(model)
        metrics.update(loss=value)
        optimizer.update(model, gradient)
        return value

    def inputs():
        model = Net(nnx.Rngs(0))
        metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
        return model, nnx.Optimizer(model, ADAM, wrt=nnx.Param), metrics, X, Y

    model, optimizer, *_ = jax.eval_shape(inputs)
    found = totals(step, inputs, make)
    assert found["parameters"] == nbytes(nnx.state(model, nnx.Param))
    assert found["optimizer-state"] == nbytes(nnx.state(optimizer, nnx.optimizer.OptState))
    assert found["batch"] == nbytes((X, Y))


def test_haiku():
    hk = pytest.importorskip("haiku")

    def forward(x):
        x = hk.BatchNorm(True, True, 0.9)(hk.Linear(HIDDEN)(x), is_training=True)
        return hk.Linear(WIDTH)(hk.dropout(hk.next_rng_key(), 0.1, jnp.tanh(x)))

    model = hk.transform_with_state(forward)

    def loss(params, state, key, x, y):
        predicted, state = model.apply(params, state, key, x)
        return distance(predicted, y), state

    def step(params, state, kept, key, x, y):
        taken = jax.value_and_grad(loss, has_aux=True)
        (value, state), gradient = taken(params, state, key, x, y)
        updates, kept = ADAM.update(gradient, kept, params)
        return optax.apply_updates(params, updates), state, kept, value

    def inputs():
        params, state = model.init(jax.random.key(0), X)
        return params, state, ADAM.init(params), jax.random.key(1), X, Y

    params, state, kept, key, *_ = jax.eval_shape(inputs)
    found = totals(jax.jit(step), inputs)
    assert found == expected(params, kept, (X, Y, key), rest=state)


def test_keras_stateless_call(monkeypatch):
    monkeypatch.setitem(os.environ, "KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras")
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Dense(HIDDEN),
            layers.BatchNormalization(),
            layers.Dropout(0.1),
            layers.Dense(WIDTH),
        ]
    )
    model.build((BATCH, WIDTH))
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    def loss(trained, rest, x, y):
        predicted, rest = model.stateless_call(trained, rest, x, training=True)
        return distance(predicted, y), rest

    def step(state, x, y):
        trained, rest, kept = state
        (value, rest), gradient = jax.value_and_grad(loss, has_aux=True)(trained, rest, x, y)
        trained, kept = optimizer.stateless_apply(kept, gradient, trained)
        return value, (trained, rest, kept)

    owners = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    state = tuple([variable.value for variable in each] for each in owners)
    found = totals(jax.jit(step), lambda: (state, X, Y), from_concrete)
    assert found["parameters"] == nbytes(state[0])
    moments = [v for v in state[2] if v.ndim]
    assert nbytes(moments) <= found["optimizer-state"] <= nbytes(state[2])
    assert found["batch"] == nbytes((X, Y))
