"""JXR848: what an optimizer keeps for weights whose gradient is zero for every input."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxresid
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.program.zero_gradients import needless_moments
from jaxresid.inspector.report import subject

optax = pytest.importorskip("optax")

WIDTH, RANK, ROWS = 256, 4, 32


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


FROZEN = {"a": f32(WIDTH, WIDTH), "b": f32(WIDTH, WIDTH)}
PARAMS = {"frozen": FROZEN, "head": f32(WIDTH, RANK)}
X = f32(ROWS, WIDTH)


def loss(params, x):
    for w in params["frozen"].values():
        x = jnp.tanh(x @ lax.stop_gradient(w))
    return jnp.mean((x @ params["head"]) ** 2)


def step_of(tx, fun=loss):
    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, x):
        value, grads = jax.value_and_grad(fun)(params, x)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


def found(tx, fun=loss, params=PARAMS, x=X):
    made = subject(Question(step_of(tx, fun), (params, jax.eval_shape(tx.init, params), x), {}))
    return needless_moments(made.trace, made.program)


ALL = ("params['frozen']['a']", "params['frozen']['b']")


@pytest.mark.parametrize(
    ("tx", "kept"),
    [
        (optax.adam(1e-3), 2),
        (optax.sgd(1e-3, momentum=0.9), 1),
        (optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), 2),
        (optax.adam(optax.cosine_decay_schedule(1e-3, 100)), 2),
        (optax.lion(1e-3), 1),
        (optax.rmsprop(1e-3), 1),
    ],
)
def test_moments_of_weights_behind_a_stop_gradient(tx, kept):
    needless = found(tx)
    assert needless.weights == ALL
    assert needless.weights_nbytes == 2 * WIDTH * WIDTH * 4
    assert needless.moments_nbytes == kept * needless.weights_nbytes


def test_moments_of_factored_weights():
    needless = found(optax.adafactor(1e-3, min_dim_size_to_factor=8))
    assert needless.weights == ALL
    assert 0 < needless.moments_nbytes < needless.weights_nbytes / 10


def test_moments_of_weights_that_no_loss_reads():
    def only_head(params, x):
        return jnp.mean((x @ params["head"]) ** 2)

    assert found(optax.adam(1e-3), only_head).weights == ALL


def test_moments_of_weights_in_a_scan():
    def scanned(params, x):
        def layer(x, w):
            return jnp.tanh(x @ lax.stop_gradient(w["frozen"]) + x @ w["a"] @ w["b"]), None

        return jnp.mean(lax.scan(layer, x, params)[0] ** 2)

    params = {"frozen": f32(6, WIDTH, WIDTH), "a": f32(6, WIDTH, RANK), "b": f32(6, RANK, WIDTH)}
    assert found(optax.adam(1e-3), scanned, params).weights == ("params['frozen']",)


def test_a_step_that_accumulates_in_a_scan():
    tx = optax.adam(1e-3)

    @jax.jit
    def step(params, state, xs):
        def add(total, x):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(params, x)), None

        grads, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, params), xs)
        updates, state = tx.update(grads, state)
        return optax.apply_updates(params, updates), state

    args = PARAMS, jax.eval_shape(tx.init, PARAMS), f32(4, ROWS, WIDTH)
    made = subject(Question(step, args, {}))
    assert needless_moments(made.trace, made.program).weights == ALL


def embedding(params, x):
    return jnp.mean((params["frozen"]["a"][x] @ params["frozen"]["b"] @ params["head"]) ** 2)


def experts(params, x):
    """Route each row to an expert, of which any may get none."""
    hidden = [x @ w for w in params["frozen"].values()]
    which = jnp.argmax(x, axis=1)[:, None] % 2
    return jnp.mean((jnp.where(which == 0, *hidden) @ params["head"]) ** 2)


def sometimes(params, x):
    """Read the weights in one branch alone."""
    w = params["frozen"]["a"] @ params["frozen"]["b"]
    return jnp.mean((lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: x) @ params["head"]) ** 2)


def linear(params, x):
    """Have a gradient that no input is part of, and that is not zero."""
    every = params["frozen"]["a"].sum() + params["frozen"]["b"].sum()
    return every + jnp.mean((x @ params["head"]) ** 2)


def part(params, x):
    """Read some rows, as of a table of positions."""
    rows = params["frozen"]["a"][:ROWS] + params["frozen"]["b"][:ROWS]
    return jnp.mean(((x + rows) @ params["head"]) ** 2)


def one_row(params, x):
    """Have a softmax over one value, whose gradient is zero but not written so."""
    scores = x @ params["frozen"]["a"] @ params["frozen"]["b"]
    return jnp.mean((jax.nn.softmax(scores[:, :1]) * x @ params["head"]) ** 2)


@pytest.mark.parametrize("fun", [embedding, experts, sometimes, linear, part, one_row])
def test_weights_whose_gradient_depends_on_the_batch_are_none(fun):
    x = jax.ShapeDtypeStruct((ROWS,), jnp.int32) if fun is embedding else X
    assert found(optax.adam(1e-3), fun, x=x) is None


def test_weights_without_state_are_none():
    assert found(optax.sgd(1e-3)) is None
    labels = {"frozen": "freeze", "head": "train"}
    parts = {"train": optax.adam(1e-3), "freeze": optax.set_to_zero()}
    assert found(optax.multi_transform(parts, labels)) is None


def test_running_means_and_an_average_of_weights_are_none():
    tx = optax.adam(1e-3)

    def step(params, state, mean, x):
        grads = jax.grad(lambda p: jnp.mean(((x - mean["of_x"]) @ p) ** 2))(params)
        updates, state = tx.update(grads, state)
        params = optax.apply_updates(params, updates)
        of_x = 0.9 * mean["of_x"] + 0.1 * x.mean(0)
        return params, state, {"of_x": of_x, "decayed": 0.9 * mean["decayed"]}

    params = f32(WIDTH, RANK)
    mean = {"of_x": f32(WIDTH), "decayed": f32(WIDTH)}
    made = subject(Question(step, (params, jax.eval_shape(tx.init, params), mean, X), {}))
    assert needless_moments(made.trace, made.program) is None


def test_what_is_kept_beside_no_optimizer_is_none():
    labels = {"frozen": "freeze", "head": "train"}
    tx = optax.multi_transform({"train": optax.adam(1e-3), "freeze": optax.set_to_zero()}, labels)

    def step(params, state, kept, x):
        updates, state = tx.update(jax.grad(loss)(params, x), state, params)
        return optax.apply_updates(params, updates), state, {"decayed": 0.9 * kept["decayed"]}

    kept = {"decayed": f32(WIDTH, WIDTH)}
    made = subject(Question(step, (PARAMS, jax.eval_shape(tx.init, PARAMS), kept, X), {}))
    assert needless_moments(made.trace, made.program) is None


def test_the_effect_is_that_of_an_optimizer_of_the_trained_weights():
    tx, on = optax.adam(1e-3), "gpu:h100"
    args = PARAMS, jax.eval_shape(tx.init, PARAMS), X
    report = jaxresid.inspect(step_of(tx), on=on)(*args)
    (finding,) = report.findings
    assert finding.name == "moments-without-gradient"
    parts = {"train": tx, "freeze": optax.set_to_zero()}
    written = optax.multi_transform(parts, {"frozen": "freeze", "head": "train"})
    other = jaxresid.inspect(step_of(written), on=on)
    peak = other(PARAMS, jax.eval_shape(written.init, PARAMS), X).peak.nbytes
    assert finding.measured["peak_nbytes"] == pytest.approx(peak, rel=0.01)
    assert finding.measured["peak_before_nbytes"] == report.peak.nbytes
    (violation,) = jaxresid.check(step_of(tx), on=on)(*args)
    assert violation.code == "JXR848"
