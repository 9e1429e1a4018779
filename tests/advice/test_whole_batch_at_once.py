"""JXR842: a batch that does not fit at once, and what the program takes in microbatches."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxresid
from tests.small import f32

W, B = 64, 4096
WS, X = [f32(W, W)] * 2, f32(B, W)
# Less than the program takes; with parameters and gradients alone in memory there is some left.
BUDGET = "3MiB"


def trunk(ws, x):
    for w in ws:
        x = x + jnp.sin(x @ w)
    return x


def loss(ws, x):
    return jnp.mean(trunk(ws, x) ** 2)


def step(ws, momenta, x):
    value, gradients = jax.value_and_grad(loss)(ws, x)
    momenta = [0.9 * m + g for m, g in zip(momenta, gradients, strict=True)]
    return [w - 0.1 * m for w, m in zip(ws, momenta, strict=True)], momenta, value


def by_hand(count):
    """Return the value and gradients of the loss over microbatches, added up."""

    def both(ws, x):
        def add(total, part):
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(ws, part)), None

        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (f32(), ws))
        value, gradients = lax.scan(add, zeros, x.reshape(count, -1, W))[0]
        return value / count, [g / count for g in gradients]

    return both


def step_by_hand(count):
    def step(ws, momenta, x):
        value, gradients = by_hand(count)(ws, x)
        momenta = [0.9 * m + g for m, g in zip(momenta, gradients, strict=True)]
        return [w - 0.1 * m for w, m in zip(ws, momenta, strict=True)], momenta, value

    return step


def found(fun, *args, limit=BUDGET, **options):
    argnums = None if fun in (step, running_mean_step, step_of_each_item) else 0
    options = {"on": "gpu:h100", "argnums": argnums, "max_peak": limit, **options}
    violations = jaxresid.check(fun, **options)(*args)
    return [v for v in violations if v.code == "JXR842"]


@pytest.mark.parametrize(
    ("fun", "args", "same"),
    [
        (loss, (WS, X), by_hand),
        pytest.param(step, (WS, WS, X), step_by_hand, marks=pytest.mark.integration),
    ],
)
def test_the_figures_are_those_of_the_same_code_by_hand(fun, args, same):
    (violation,) = found(fun, *args)
    measured = violation.measured
    for tried in measured["tried"]:
        report = jaxresid.inspect(same(tried["microbatches"]), mode="program", on="gpu:h100")(*args)
        assert tried["peak_nbytes"] == pytest.approx(report.peak.nbytes, rel=0.03)
    assert measured["fits"] == "fits" and measured["peak_nbytes"] < measured["limit_nbytes"]
    assert measured["tried"][0]["microbatches"] == 2
    assert measured["tried"][-1]["microbatches"] == measured["microbatches"]
    assert violation.span.row == fun.__code__.co_firstlineno


@pytest.mark.integration
def test_the_fewest_that_fit_are_told():
    (violation,) = found(loss, WS, X)
    count = violation.measured["microbatches"]
    fewer = jaxresid.inspect(by_hand(count // 2), mode="program", on="gpu:h100")(WS, X)
    assert fewer.peak.high_nbytes > violation.measured["limit_nbytes"]


@pytest.mark.integration
def test_where_none_fit_it_is_the_fewest_that_gain_nearly_all():
    (violation,) = found(loss, WS, X, limit="1KiB")
    assert violation.measured["fits"] == "does not fit"
    assert 2 < violation.measured["microbatches"] < B


@pytest.mark.integration
def test_parts_of_a_batch_on_a_mesh_are_no_smaller_than_its_devices():
    mesh = AbstractMesh((256,), ("data",), axis_types=(AxisType.Explicit,))
    x = jax.ShapeDtypeStruct((B, W), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    (violation,) = found(loss, WS, x, limit="1KiB", mesh=mesh)
    assert violation.measured["tried"][-1]["microbatches"] <= B // 256


def contrastive(ws, x):
    x = trunk(ws, x)
    return jnp.mean(jax.nn.logsumexp(x @ x.T, axis=1))


def per_item(ws, x):
    return jnp.mean(trunk(ws, x) ** 2, axis=1)


def big_weights(w, x):
    return jnp.sum(w**2) + jnp.mean(x**2)


def running_mean_step(ws, mean, x):
    def loss_and_mean(ws, x):
        y = trunk(ws, x)
        return jnp.mean(y**2), 0.9 * mean + 0.1 * y.mean(0)

    (_, new), gradients = jax.value_and_grad(loss_and_mean, has_aux=True)(ws, x)
    return [w - g for w, g in zip(ws, gradients, strict=True)], new


def step_of_each_item(ws, x):
    each = jax.vmap(jax.grad(loss), in_axes=(None, 0))(ws, x[:, None])
    return [w - jnp.clip(g, -1, 1).mean(0) for w, g in zip(ws, each, strict=True)]


def accumulating(ws, x):
    return by_hand(B)(ws, x)


def with_fixed_batch(ws, x):
    return jnp.mean(trunk(ws, x.reshape(64, 64, W)) ** 2)


def all_differentiated(ws):
    return jnp.mean(trunk(ws[1:], ws[0]) ** 2)


SILENT = {
    "it fits": (loss, (WS, X), "1GiB"),
    "contrastive": (contrastive, (WS, f32(1024, W)), BUDGET),
    "a value per item": (per_item, (WS, X), BUDGET),
    "parameters take all": (big_weights, (f32(2048, 2048), f32(64, W)), BUDGET),
    "running mean": (running_mean_step, (WS, f32(W), X), BUDGET),
    "gradients of each item": (step_of_each_item, (WS, f32(256, W)), BUDGET),
    "in microbatches already": (accumulating, (WS, X), "1KiB"),
    "a size that is written": (with_fixed_batch, (WS, X), BUDGET),
    "no batch": (all_differentiated, ([X, *WS],), BUDGET),
    "a prime size": (loss, (WS, f32(4099, W)), BUDGET),
    "one item": (loss, (WS, f32(1, W)), "1KiB"),
}


@pytest.mark.parametrize(
    "name",
    [n if n == "it fits" else pytest.param(n, marks=pytest.mark.integration) for n in SILENT],
)
def test_it_is_silent(name):
    fun, args, limit = SILENT[name]
    assert not found(fun, *args, limit=limit)
