"""Programs around released libraries, with and without a gradient, as their users write them."""

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from jaxresid.base.errors import TraceError
from tests.inspector.residuals.test_gradients import leaves_of, rows_of
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


# Gradients: what they keep is what `jax.vjp` of the same function returns


W, X = f32((8, 8)), f32((8,))


def energy(w, x):
    return jnp.sum(jnp.tanh(w @ x) ** 2) + jnp.sum(x**2)


def residual(x, w):
    return jnp.tanh(w @ x) + x - 1.0


def check_loss(fun, *args):
    report = jaxresid.inspect(fun, on="gpu:h100")(*args)
    leaves = leaves_of(fun, *args)
    own = [r for r in report.residuals if r.origin.kind in ("argument", "computed")]
    assert report.target.mode == "loss"
    assert not report.warnings
    assert not rows_of(own) - leaves
    assert not leaves - rows_of(report.residuals)


def kept_by(fun, *args):
    report = jaxresid.inspect(fun, on="gpu:h100")(*args)
    assert report.target.mode == "program"
    assert not report.warnings
    return [g.kept_nbytes + g.arguments_nbytes for g in report.gradients]


def nbytes_of(leaves):
    return sum(nbytes * number for (_, _, nbytes), number in leaves.items())


def test_optax_takes_gradients_in_its_line_search():
    optax = pytest.importorskip("optax")
    solver = optax.lbfgs()

    def step(x, state, w):
        def fun(x):
            return energy(w, x)

        value, grad = optax.value_and_grad_from_state(fun)(x, state=state)
        updates, state = solver.update(grad, state, x, value=value, grad=grad, value_fn=fun)
        return optax.apply_updates(x, updates), state

    def of_x(x):
        return energy(jnp.zeros(W.shape), x)

    kept = kept_by(step, X, jax.eval_shape(solver.init, X), W)
    assert kept[0] == nbytes_of(leaves_of(of_x, X))
    assert len(kept) == 2


def test_equinox_and_nnx_take_gradients():
    eqx, nnx = pytest.importorskip("equinox"), pytest.importorskip("flax.nnx")
    kept = kept_by(eqx.filter_value_and_grad(energy), W, X)
    assert kept == [nbytes_of(leaves_of(lambda w: energy(w, jnp.zeros(X.shape)), W))]

    def squares(model, x):
        return jnp.sum(jnp.tanh(model(x)) ** 2)

    model = nnx.eval_shape(lambda: nnx.Linear(8, 8, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(model)
    leaves = leaves_of(lambda state: squares(nnx.merge(graph, state), jnp.zeros((4, 8))), state)
    assert kept_by(nnx.grad(squares), model, f32((4, 8))) == [nbytes_of(leaves)]


def test_optimistix_differentiates_implicitly():
    optx = pytest.importorskip("optimistix")

    def root(w, x):
        return jnp.sum(optx.root_find(residual, optx.Newton(1e-3, 1e-3), x, w).value ** 2)

    def least_squares(w, x):
        solver = optx.LevenbergMarquardt(1e-3, 1e-3)
        return jnp.sum(optx.least_squares(residual, solver, x, w).value ** 2)

    check_loss(root, W, X)
    check_loss(least_squares, W, X)


def test_jaxopt_differentiates_implicitly():
    jaxopt = pytest.importorskip("jaxopt")

    def solved(w, x):
        solver = jaxopt.LBFGS(lambda x, w: energy(w, x), maxiter=5)
        return jnp.sum(solver.run(x, w).params ** 2)

    check_loss(solved, W, X)


@pytest.mark.parametrize("adjoint", ["RecursiveCheckpointAdjoint", "BacksolveAdjoint"])
def test_diffrax_differentiates_a_solution(adjoint):
    diffrax = pytest.importorskip("diffrax")

    def solved(adjoint, w, x):
        term = diffrax.ODETerm(lambda t, x, w: jnp.tanh(w @ x))
        return diffrax.diffeqsolve(
            term, diffrax.Tsit5(), 0.0, 1.0, 0.1, x, w, adjoint=adjoint, max_steps=16
        ).ys

    def loss(w, x):
        return jnp.sum(solved(getattr(diffrax, adjoint)(), w, x) ** 2)

    def forward(w, x):
        return jnp.sum(solved(diffrax.ForwardMode(), w, x) ** 2)

    check_loss(loss, W, X)
    with pytest.raises(TraceError, match="Reverse-mode differentiation does not work"):
        jaxresid.inspect(forward)(W, X)
