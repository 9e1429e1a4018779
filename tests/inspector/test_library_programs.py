"""Programs without a gradient around released libraries."""

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from tests.programs_without_gradient import f32, i32

pytestmark = pytest.mark.integration


def of(fun, *args, **options):
    result = jaxresid.inspect(fun, on="gpu:h100", **options)(*args)
    assert (result.target.mode, result.target.has_gradient) == ("program", False)
    assert result.residuals == ()
    return result


def updated(result):
    """The names of the arguments that come back updated."""
    back = (a.path for a in result.arguments if a.counterpart is not None)
    return {path.partition("[")[0].partition(".")[0] for path in back}


def test_flax_linen_decodes_with_a_mutable_cache():
    nn = pytest.importorskip("flax.linen")
    layer = nn.MultiHeadDotProductAttention(num_heads=2, decode=True, deterministic=True)

    def init(key, x):
        return layer.init(key, x, x)

    def decode(params, cache, x):
        y, new = layer.apply({"params": params, "cache": cache}, x, x, mutable=["cache"])
        return y, new["cache"]

    inputs = jax.eval_shape(lambda: jax.random.key(0)), f32((2, 64, 8))
    variables = jax.eval_shape(init, *inputs)
    args = variables["params"], variables["cache"], f32((2, 1, 8))
    assert updated(of(init, *inputs)) == set()
    kept, given = of(decode, *args), of(jax.jit(decode, donate_argnums=1), *args)
    assert updated(kept) == updated(given) == {"cache"}
    nbytes = sum(a.nbytes for a in given.arguments if a.is_donated)
    assert kept.peak.nbytes - given.peak.nbytes == nbytes


def test_flax_linen_evaluates():
    nn = pytest.importorskip("flax.linen")
    model = nn.Sequential([nn.Dense(8), nn.Dropout(0.5, deterministic=True), nn.Dense(8)])
    variables = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((4, 8)))
    assert updated(of(model.apply, variables, f32((4, 8)))) == set()


def test_nnx_evaluates_and_updates_its_metrics():
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(8, 8, rngs=rngs)
            self.norm = nnx.BatchNorm(8, rngs=rngs, use_running_average=True)

        def __call__(self, x):
            return self.norm(self.linear(x))

    @nnx.jit
    def evaluate(model, metrics, x, labels):
        metrics.update(values=(model(x).argmax(-1) == labels).mean())

    model = nnx.eval_shape(lambda: Model(nnx.Rngs(0)))
    metrics = nnx.eval_shape(nnx.metrics.Average)
    assert updated(of(evaluate, model, metrics, f32((4, 8)), i32((4,)))) == {"metrics"}


def test_equinox_samples():
    eqx = pytest.importorskip("equinox")

    @eqx.filter_jit
    def sample(net, key, x):
        def step(x, key):
            return x - 0.1 * jax.vmap(net)(x) + jax.random.normal(key, x.shape), None

        return jax.lax.scan(step, x, jax.random.split(key, 5))[0]

    net = eqx.filter_eval_shape(lambda: eqx.nn.MLP(8, 8, 16, 2, key=jax.random.key(0)))
    assert updated(of(sample, net, jax.random.key(0), f32((4, 8)))) == {"x"}


def test_haiku_applies():
    hk = pytest.importorskip("haiku")

    def model(x):
        return hk.nets.MLP([16, 8])(x)

    net = hk.without_apply_rng(hk.transform(model))
    params = jax.eval_shape(net.init, jax.random.key(0), f32((4, 8)))
    assert updated(of(net.apply, params, f32((4, 8)))) == set()
