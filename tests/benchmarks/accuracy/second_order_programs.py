"""Programs of second order: Hessians and their products, Jacobians, gradients of each example,
gradients of gradients.

`PROGRAMS` are written here, `LIBRARY_PROGRAMS` are around released libraries. Each takes gigabytes.
They were written, and parted by `split.py`, before any was compiled. A program returns a function
and its abstract arguments.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from tests.benchmarks.accuracy import forward_programs
from tests.benchmarks.accuracy.forward_programs import Build, _conv, array, ids, key

PROGRAMS: dict[str, Build] = {}
LIBRARY_PROGRAMS: dict[str, tuple[str, Build]] = {}


program = functools.partial(forward_programs.program, programs=PROGRAMS)
library = functools.partial(forward_programs.library, programs=LIBRARY_PROGRAMS)


def _dense(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    for w in weights[:-1]:
        x = jnp.tanh(x @ w)
    return x @ weights[-1]


def _squares(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((_dense(weights, x) - y) ** 2)


def _pairs_energy(positions: jax.Array) -> jax.Array:
    offsets = positions[:, None] - positions
    squares = jnp.sum(offsets**2, -1) + jnp.eye(len(positions))
    return 0.5 * jnp.sum(squares**-6 - squares**-3)


_WIDE = [array(1024, 1024)] * 4
_BATCH = array(131_072, 1024), array(131_072, 1024)


@program("hessian-of-energy/whole")
def hessian_of_energy():
    return jax.hessian(_pairs_energy), (array(512, 3),)


@program("hessian-of-network/looped")
def hessian_of_network():
    """Each column of the Hessian by a product of its own."""

    def columns(w, x, y):
        def loss(w):
            return jnp.mean((jnp.tanh(x @ w.reshape(-1, 128)) @ jnp.ones(128) - y) ** 2)

        gradient = jax.grad(loss)
        product = lambda v: jax.jvp(gradient, (w,), (v,))[1]
        return lax.map(product, jnp.eye(w.size), batch_size=64)

    return columns, (array(64 * 128), array(65536, 64), array(65536))


@program("jacfwd-of-jacrev/vmapped")
def jacfwd_of_jacrev():
    def curvatures(weights, points):
        field = lambda x: _dense(weights, x)[0]
        return jax.vmap(jax.jacfwd(jax.jacrev(field)))(points)

    return curvatures, ([array(16, 256), array(256, 256), array(256, 1)], array(65536, 16))


@program("forward-over-reverse/product")
def forward_over_reverse():
    def product(weights, directions, x, y):
        return jax.jvp(lambda w: jax.grad(_squares)(w, x, y), (weights,), (directions,))[1]

    return product, (_WIDE, _WIDE, *_BATCH)


@program("reverse-over-forward/product")
def reverse_over_forward():
    def product(weights, directions, x, y):
        along = lambda w: jax.jvp(lambda w: _squares(w, x, y), (w,), (directions,))[1]
        return jax.grad(along)(weights)

    return product, (_WIDE, _WIDE, *_BATCH)


@program("reverse-over-reverse/product")
def reverse_over_reverse():
    def product(weights, directions, x, y):
        def along(w):
            gradients = jax.grad(_squares)(w, x, y)
            parts = jax.tree.map(jnp.vdot, gradients, directions)
            return jax.tree.reduce(jnp.add, parts)

        return jax.grad(along)(weights)

    return product, (_WIDE, _WIDE, *_BATCH)


@program("gauss-newton/product")
def gauss_newton():
    def product(weights, directions, x):
        outputs, along = jax.jvp(lambda w: _dense(w, x), (weights,), (directions,))
        _, pull = jax.vjp(lambda w: _dense(w, x), weights)
        p = jax.nn.softmax(outputs)
        return pull(p * along - p * jnp.sum(p * along, -1, keepdims=True))[0]

    return product, (_WIDE, _WIDE, _BATCH[0])


@program("private-gradients/clipped")
def private_gradients():
    def step(weights, xs, ys):
        def of_one(x, y):
            return jax.grad(_squares)(weights, x[None], y[None])

        each = jax.vmap(of_one)(xs, ys)
        squares = sum(jnp.sum(g**2, (1, 2)) for g in each)
        scale = jnp.minimum(1.0, lax.rsqrt(squares))
        return [jnp.tensordot(scale, g, 1) for g in each]

    return step, ([array(1024, 1024)] * 3, array(512, 1024), array(512, 1024))


@program("convolutional-gradients/each")
def convolutional_gradients():
    def each(ws, images, labels):
        def loss(ws, image, label):
            x = image[None]
            for w in ws[:-1]:
                x = jax.nn.relu(_conv(x, w))
            return -jax.nn.log_softmax(x.mean((1, 2)) @ ws[-1])[0, label]

        return jax.vmap(jax.grad(loss), (None, 0, 0))(ws, images, labels)

    ws = [array(3, 3, 3, 64), array(3, 3, 64, 128), array(3, 3, 128, 128), array(128, 10)]
    return each, (ws, array(1024, 32, 32, 3), ids(1024))


@program("jacobian-of-outputs/reverse")
def jacobian_of_outputs():
    def jacobian(weights, x):
        return jax.vmap(jax.jacrev(lambda x: _dense(weights, x)))(x)

    return jacobian, ([array(256, 1024), array(1024, 1024), array(1024, 256)], array(4096, 256))


@program("jacobian-of-outputs/forward")
def jacobian_of_outputs_forward():
    def jacobian(weights, x):
        return jax.vmap(jax.jacfwd(lambda x: _dense(weights, x)))(x)

    return jacobian, ([array(256, 1024), array(1024, 1024), array(1024, 256)], array(4096, 256))


@program("jacobian-of-phases/reverse")
def jacobian_of_phases():
    def phases(lm, uvw, frequency):
        a, b = lm[:, 0, None, None], lm[:, 1, None, None]
        u, v, w = (uvw[None, :, i, None] for i in range(3))
        return (u * a + v * b + w * (jnp.sqrt(1.0 - a**2 - b**2) - 1.0)) * frequency

    return jax.jacrev(phases), (array(10, 2), array(256, 3), array(16))


@program("tangent-kernel/contracted")
def tangent_kernel():
    def kernel(weights, x):
        def outputs(w):
            return _dense(w, x)[:, 0]

        jacobian = jax.jacrev(outputs)(weights)
        return sum(j.reshape(len(x), -1) @ j.reshape(len(x), -1).T for j in jacobian)

    return kernel, ([array(512, 1024), array(1024, 1024), array(1024, 1)], array(512, 512))


@program("meta-learning/maml")
def meta_learning():
    def step(weights, support, queries):
        def of_task(weights, task, query):
            for _ in range(3):
                gradients = jax.grad(_squares)(weights, *task)
                weights = jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients)
            return _squares(weights, *query)

        def loss(weights):
            return jax.vmap(of_task, (None, 0, 0))(weights, support, queries).mean()

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients)

    weights = [array(64, 512), array(512, 512), array(512, 64)]
    batch = array(64, 4096, 64), array(64, 4096, 64)
    return step, (weights, batch, batch)


@program("gradient-penalty/critic")
def gradient_penalty():
    def step(ws, real, fake, mix):
        def critic(ws, x):
            for w in ws[:-1]:
                x = jax.nn.leaky_relu(_conv(x, w, 2), 0.2)
            return x.reshape(len(x), -1) @ ws[-1]

        def loss(ws):
            between = mix * real + (1 - mix) * fake
            slopes = jax.grad(lambda x: critic(ws, x).sum())(between)
            norms = jnp.sqrt(jnp.sum(slopes**2, (1, 2, 3)) + 1e-8)
            wasserstein = critic(ws, fake).mean() - critic(ws, real).mean()
            return wasserstein + 10 * jnp.mean((norms - 1) ** 2)

        value, gradients = jax.value_and_grad(loss)(ws)
        return value, jax.tree.map(lambda w, g: w - 1e-4 * g, ws, gradients)

    ws = [array(4, 4, 3, 64), array(4, 4, 64, 128), array(4, 4, 128, 256), array(64 * 256, 1)]
    images = array(1024, 64, 64, 3)
    return step, (ws, images, images, array(1024, 1, 1, 1))


@program("force-field/trained")
def force_field():
    def energy(weights, positions):
        offsets = positions[:, None] - positions
        distances = jnp.sqrt(jnp.sum(offsets**2, -1) + 1e-6)
        features = jnp.exp(-((distances[..., None] - jnp.linspace(0, 5, 32)) ** 2))
        return _dense(weights, features).sum()

    def step(weights, positions, energies, forces):
        def loss(weights):
            e, slopes = jax.vmap(jax.value_and_grad(energy, 1), (None, 0))(weights, positions)
            return jnp.mean((e - energies) ** 2) + jnp.mean((slopes + forces) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients)

    weights = [array(32, 128), array(128, 128), array(128, 1)]
    positions = array(64, 128, 3)
    return step, (weights, positions, array(64), positions)


@program("force-field/scanned")
def force_field_scanned():
    """Messages along given edges, in a scan over layers."""

    def energy(weights, positions, edges):
        nodes = jnp.ones((len(positions), 64))
        offsets = positions[edges[0]] - positions[edges[1]]
        distances = jnp.sqrt(jnp.sum(offsets**2, -1, keepdims=True) + 1e-6)

        def layer(nodes, w):
            features = jnp.concatenate([nodes[edges[0]], distances], -1)
            sent = jax.nn.silu(features @ w["edge"])
            return nodes + jax.ops.segment_sum(sent, edges[1], len(nodes)) @ w["node"], None

        return lax.scan(layer, nodes, weights)[0].sum()

    def step(weights, positions, edges, forces):
        def loss(weights):
            return jnp.mean((jax.grad(energy, 1)(weights, positions, edges) + forces) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients)

    weights = {"edge": array(3, 65, 64), "node": array(3, 64, 64)}
    return step, (weights, array(20_000, 3), ids(2, 1_000_000), array(20_000, 3))


@program("differential-equation/laplacian")
def differential_equation():
    def step(weights, points, boundary):
        def field(weights, x):
            return _dense(weights, x)[0]

        def residual(weights, x):
            second = lambda v: jax.jvp(
                lambda x: jax.jvp(lambda x: field(weights, x), (x,), (v,))[1], (x,), (v,)
            )[1]
            return jax.vmap(second)(jnp.eye(3)).sum() + jnp.sin(field(weights, x))

        def loss(weights):
            inside = jax.vmap(residual, (None, 0))(weights, points)
            at_boundary = jax.vmap(field, (None, 0))(weights, boundary)
            return jnp.mean(inside**2) + jnp.mean(at_boundary**2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients)

    weights = [array(3, 256), array(256, 256), array(256, 256), array(256, 1)]
    return step, (weights, array(65536, 3), array(65536, 3))


@program("local-energy/forward-laplacian")
def local_energy():
    def energies(weights, walkers):
        def log_psi(x):
            return _dense(weights, x).sum() - 0.5 * jnp.sum(x**2)

        def of_one(x):
            gradient = jax.grad(log_psi)

            def one(i, total):
                basis = jnp.zeros_like(x).at[i].set(1.0)
                return total + jax.jvp(gradient, (x,), (basis,))[1][i]

            trace = lax.fori_loop(0, x.size, one, 0.0)
            return -0.5 * (trace + jnp.sum(gradient(x) ** 2))

        return jax.vmap(of_one)(walkers)

    return energies, ([array(96, 1024), array(1024, 1024), array(1024, 8)], array(65536, 96))


@program("local-energy/whole-hessian")
def local_energy_hessian():
    def energies(weights, walkers):
        def log_psi(x):
            return _dense(weights, x).sum() - 0.5 * jnp.sum(x**2)

        def of_one(x):
            slopes = jax.grad(log_psi)(x)
            return -0.5 * (jnp.trace(jax.hessian(log_psi)(x)) + jnp.sum(slopes**2))

        return jax.vmap(of_one)(walkers)

    return energies, ([array(48, 256), array(256, 256), array(256, 8)], array(16384, 48))


@program("newton-step/conjugate-gradient")
def newton_step():
    def step(weights, x, y):
        gradient = lambda w: jax.grad(_squares)(w, x, y)
        g = gradient(weights)

        def damped(v):
            product = jax.jvp(gradient, (weights,), (v,))[1]
            return jax.tree.map(lambda a, b: a + 0.1 * b, product, v)

        direction, _ = jax.scipy.sparse.linalg.cg(damped, g, maxiter=10)
        return jax.tree.map(lambda w, d: w - d, weights, direction)

    return step, ([array(1024, 1024)] * 4, array(65536, 1024), array(65536, 1024))


@program("curvature-trace/probes")
def curvature_trace():
    def trace(weights, x, y, rng):
        gradient = lambda w: jax.grad(_squares)(w, x, y)

        def probe(own):
            keys = jax.random.split(own, len(weights))
            vs = [
                jax.random.rademacher(k, w.shape, w.dtype)
                for k, w in zip(keys, weights, strict=True)
            ]
            products = jax.jvp(gradient, (weights,), (vs,))[1]
            return sum(map(jnp.vdot, vs, products))

        return jax.vmap(probe)(jax.random.split(rng, 16)).mean()

    return trace, ([array(512, 512)] * 3, array(16384, 512), array(16384, 512), key())


@program("score-matching/divergence")
def score_matching():
    def step(weights, xs):
        def of_one(weights, x):
            score = lambda x: _dense(weights, x)
            jacobian = jax.jacfwd(score)(x)
            return jnp.trace(jacobian) + 0.5 * jnp.sum(score(x) ** 2)

        def loss(weights):
            return jax.vmap(of_one, (None, 0))(weights, xs).mean()

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients)

    return step, ([array(32, 512), array(512, 512), array(512, 32)], array(8192, 32))


@program("sharpness-aware/twice")
def sharpness_aware():
    def step(weights, x, y):
        first = jax.grad(_squares)(weights, x, y)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in first))
        moved = jax.tree.map(lambda w, g: w + 0.05 * g / norm, weights, first)
        value, gradients = jax.value_and_grad(_squares)(moved, x, y)
        return value, jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients)

    return step, ([array(2048, 2048)] * 6, array(65536, 2048), array(65536, 2048))


@program("continuous-flow/trace")
def continuous_flow():
    def step(weights, xs, rng):
        noise = jax.random.normal(rng, xs.shape)

        def loss(weights):
            def one(state, _):
                x, log = state
                moved, along = jax.jvp(lambda x: _dense(weights, x), (x,), (noise,))
                return (x + 0.05 * moved, log + 0.05 * jnp.sum(along * noise, -1)), None

            (x, log), _ = lax.scan(one, (xs, jnp.zeros(len(xs))), None, 20)
            return jnp.mean(0.5 * jnp.sum(x**2, -1) - log)

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients)

    return step, ([array(64, 256), array(256, 256), array(256, 64)], array(65536, 64), key())


@program("unrolled-optimizer/differentiated")
def unrolled_optimizer():
    """The gradient of a validation loss by the learning rates of the steps before it."""

    def step(rates, weights, x, y):
        def loss(rates):
            def one(weights, rate):
                gradients = jax.grad(_squares)(weights, x, y)
                return jax.tree.map(lambda w, g: w - rate * g, weights, gradients), None

            return _squares(lax.scan(one, weights, rates)[0], x, y)

        return jax.value_and_grad(loss)(rates)

    return step, (array(10), [array(512, 512)] * 3, array(32768, 512), array(32768, 512))


# --- around libraries ------------------------------------------------------------------------


@library("linen-private/clipped", "optax")
def linen_private():
    import optax
    from flax import linen as nn

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            for width in (64, 128):
                x = nn.relu(nn.Conv(width, (3, 3), (2, 2))(x))
            return nn.Dense(100)(x.reshape(-1))

    def step(params, state, images, labels):
        def loss(params, image, label):
            logits = Network().apply(params, image)
            return optax.softmax_cross_entropy_with_integer_labels(logits, label)

        each = jax.vmap(jax.grad(loss), (None, 0, 0))(params, images, labels)
        changes, state = optimizer.update(each, state, params)
        return optax.apply_updates(params, changes), state

    optimizer = optax.contrib.differentially_private_aggregate(1.0, 0.5, key=0)
    params = jax.eval_shape(Network().init, key(), array(32, 32, 3))
    return step, (
        params,
        jax.eval_shape(optimizer.init, params),
        array(2048, 32, 32, 3),
        ids(2048),
    )


@library("equinox-hessian/product", "equinox")
def equinox_hessian():
    import equinox as eqx

    arrays, rest = eqx.partition(
        eqx.filter_eval_shape(lambda: eqx.nn.MLP(512, 512, 2048, 3, key=jax.random.key(0))),
        lambda x: isinstance(x, jax.ShapeDtypeStruct),
    )

    def product(arrays, directions, x, y):
        def loss(arrays):
            return jnp.mean((jax.vmap(eqx.combine(arrays, rest))(x) - y) ** 2)

        return eqx.filter_jvp(eqx.filter_grad(loss), (arrays,), (directions,))[1]

    return product, (arrays, arrays, array(65536, 512), array(65536, 512))


@library("jaxopt-implicit/ridge", "jaxopt")
def jaxopt_implicit():
    """The gradient of a validation loss by a penalty, through the solution of a fit."""
    import jaxopt

    def step(penalty, x, y, x_held, y_held):
        def inner(w, penalty):
            return jnp.mean((x @ w - y) ** 2) + penalty * jnp.sum(w**2)

        solver = jaxopt.GradientDescent(inner, stepsize=1e-2, maxiter=50)

        def outer(penalty):
            w = solver.run(jnp.zeros((x.shape[1], y.shape[1])), penalty).params
            return jnp.mean((x_held @ w - y_held) ** 2)

        return jax.value_and_grad(outer)(penalty)

    rows = array(131_072, 1024), array(131_072, 512)
    return step, (array(), *rows, *rows)


@library("optimistix-least-squares/levenberg", "optimistix")
def optimistix_least_squares():
    import optimistix

    def fit(start, x, y):
        def residual(w, args):
            x, y = args
            return jnp.tanh(x @ w[:-1] + w[-1]) - y

        solver = optimistix.LevenbergMarquardt(rtol=1e-4, atol=1e-4)
        return optimistix.least_squares(
            residual, solver, start, args=(x, y), max_steps=20, throw=False
        ).value

    return fit, (array(65), array(1_000_000, 64), array(1_000_000))


@library("jax-md-forces/trained", "jax_md")
def jax_md_forces():
    from jax_md import energy, space

    displacement, _ = space.periodic(20.0)

    def step(params, positions, forces):
        def loss(params):
            def of_one(positions):
                total = energy.lennard_jones_pair(displacement, **params)
                return -jax.grad(total)(positions)

            return jnp.mean((jax.vmap(of_one)(positions) - forces) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients)

    params = {"sigma": array(), "epsilon": array()}
    return step, (params, array(16, 2048, 3), array(16, 2048, 3))
