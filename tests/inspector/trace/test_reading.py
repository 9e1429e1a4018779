"""What a target is taken for where no mode is chosen: a loss to differentiate, or a program."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import inspection, subject
from tests.small import f32, i32

PARAMS, X = [f32(4, 4)] * 2, f32(3, 4)


def mlp(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return x


def loss(params, x):
    return jnp.sum(mlp(params, x) ** 2)


def updated(params, gradient):
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradient)


def sgd(params, x):
    return updated(params, jax.grad(loss)(params, x))


def sgd_with_its_loss(params, x):
    value, gradient = jax.value_and_grad(loss)(params, x)
    return value, updated(params, gradient)


def accumulating(params, xs):
    def add(total, x):
        value, gradient = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(jnp.add, total, gradient), value

    total, values = lax.scan(add, jax.tree.map(jnp.zeros_like, params), xs)
    return updated(params, total), values


def many_steps(params, xs):
    """Returns the last loss first, which the steps before have made."""

    def step(params, x):
        value, params = sgd_with_its_loss(params, x)
        return params, value

    params, values = lax.scan(step, params, xs)
    return values[-1], params


def in_a_branch(params, x, on):
    return lax.cond(on > 0, lambda: sgd(params, x), lambda: params)


def counting(params, x, count):
    return sgd(params, x), count + 1


# -- losses with gradients inside


def force_matching(params, x):
    return jnp.sum(jax.grad(loss, argnums=1)(params, x) ** 2)


def energy_and_forces(params, x):
    energy, gradient = jax.value_and_grad(loss, argnums=1)(params, x)
    return energy**2 + jnp.sum(gradient**2), {"energy": energy, "forces": -gradient}


def gradient_as_aux(params, x):
    gradient = jax.grad(loss, argnums=1)(params, x)
    return jnp.mean(gradient**2), gradient


def gradient_penalty(params, x):
    norms = jax.vmap(lambda x: jnp.sum(jax.grad(loss, argnums=1)(params, x) ** 2))(x)
    return loss(params, x) + jnp.mean((jnp.sqrt(norms + 1e-6) - 1) ** 2)


def physics_informed(params, points):
    def value(x):
        return jnp.sum(mlp(params, x))

    def laplacian(x):
        return jnp.trace(jax.hessian(value)(x))

    return jnp.mean(jax.vmap(laplacian)(points) ** 2)


def meta(params, tasks):
    def adapted(x):
        return loss(sgd(params, x), x)

    return jnp.mean(jax.vmap(adapted)(tasks))


# -- auxiliary data


def with_metrics(params, x):
    out = mlp(params, x)
    return jnp.mean(out**2), {"mean": jnp.mean(out), "out": out}


def with_running_means(params, means, x):
    x = x - means["mean"]
    return loss(params, x), {"mean": 0.9 * means["mean"] + 0.1 * jnp.mean(x, 0)}


def variables_with_running_means(variables, x):
    value, means = with_running_means(variables["params"], variables["batch_stats"], x)
    return value, {"batch_stats": means}


def with_activations(x):
    """Has the shape of its argument, in another tree."""
    out = jnp.sin(x)
    return jnp.sum(out**2), {"out": out}


def with_what_it_is_of(params, x):
    return loss(params, x), params


# -- programs without a gradient


def energy_state_and_metrics(state, dt):
    energy, state = energy_and_state(state, dt)
    return energy, ({"energy": energy}, state)


def energy_and_state(state, dt):
    position, velocity = state
    velocity = velocity - dt * position
    position = position + dt * velocity
    return 0.5 * jnp.sum(velocity**2 + position**2), (position, velocity)


def decoding(params, cache, token):
    cache = lax.dynamic_update_slice(cache, token, (0, 0))
    return jnp.argmax(mlp(params, cache), -1), cache


def init(key):
    return {"w": jax.random.normal(key, (4, 4))}


def looping(x, length):
    return lax.while_loop(lambda s: s[0] < length, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))[1]


LOSSES = [
    (loss, (PARAMS, X)),
    (force_matching, (PARAMS, X)),
    (energy_and_forces, (PARAMS, X)),
    (gradient_as_aux, (PARAMS, X)),
    (gradient_penalty, (PARAMS, X)),
    (physics_informed, (PARAMS, X)),
    (meta, (PARAMS, f32(5, 3, 4))),
    (with_metrics, (PARAMS, X)),
    (with_activations, (X,)),
    (with_what_it_is_of, (PARAMS, X)),
    (with_running_means, (PARAMS, {"mean": f32(4)}, X)),
    (variables_with_running_means, ({"params": PARAMS, "batch_stats": {"mean": f32(4)}}, X)),
]
PROGRAMS = [
    (sgd, (PARAMS, X)),
    (sgd_with_its_loss, (PARAMS, X)),
    (accumulating, (PARAMS, f32(5, 3, 4))),
    (many_steps, (PARAMS, f32(5, 3, 4))),
    (in_a_branch, (PARAMS, X, f32())),
    (counting, (PARAMS, X, i32())),
    (jax.grad(loss), (PARAMS, X)),
    (jax.value_and_grad(loss), (PARAMS, X)),
    (jax.value_and_grad(with_metrics, has_aux=True), (PARAMS, X)),
    (jax.value_and_grad(force_matching), (PARAMS, X)),
    (jax.value_and_grad(physics_informed), (PARAMS, X)),
    (jax.vmap(jax.grad(loss), (None, 0)), (PARAMS, f32(5, 3, 4))),
    (lambda p, x: jax.tree.map(jnp.int8, sgd(p, x)), (PARAMS, X)),
    (lambda p, x: {"loss": loss(p, x)}, (PARAMS, X)),
    (mlp, (PARAMS, X)),
    (lambda p, x: jax.jvp(lambda x: mlp(p, x), (x,), (x,)), (PARAMS, X)),
    (lambda p, x: jax.linear_transpose(lambda y: y @ p[0], x)(x), (PARAMS, X)),
    (energy_and_state, ((f32(8), f32(8)), f32())),
    (energy_state_and_metrics, ((f32(8), f32(8)), f32())),
    (decoding, (PARAMS, f32(8, 4), f32(1, 4))),
    (init, (jax.ShapeDtypeStruct((2,), jnp.uint32),)),
    (looping, (X, i32())),
    (jnp.sum, (i32(4),)),
    (lambda n: jnp.sum(jnp.sqrt(n)), (i32(4),)),
    (jnp.argmax, (f32(4),)),
    (lambda x: jnp.sum(jnp.fft.fft(x)), (f32(4),)),
]


@pytest.mark.parametrize("jitted", [False, True], ids=["plain", "jitted"])
@pytest.mark.parametrize(
    ("fun", "args", "mode"),
    [(*case, "loss") for case in LOSSES] + [(*case, "program") for case in PROGRAMS],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_reading(fun, args, mode, jitted):
    fun = jax.jit(fun) if jitted else fun
    assert subject(Question(fun, args)).target.mode == mode


def test_a_loss_without_checkpoints_is_traced_once():
    calls = []

    def loss(w):
        calls.append(1)
        return jnp.sum(jnp.tanh(w) ** 2)

    inspection(Question(loss, (f32(4096),)))
    assert len(calls) == 1
