"""Programs of second order to judge with alone: written, and none compiled or estimated, before the
last change of the rules and of the ranges.

What trains on gradients of gradients: physics-informed losses, gradient penalties, force fields,
inner loops; and products with Hessians and Fisher matrices, influence functions, Laplace
approximations. Half of them are around released libraries.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.benchmarks.accuracy import forward_programs
from tests.benchmarks.accuracy.forward_programs import Build, _attend, array, ids, key

PROGRAMS: dict[str, Build] = {}
LIBRARY_PROGRAMS: dict[str, tuple[str, Build]] = {}


program = functools.partial(forward_programs.program, programs=PROGRAMS)
library = functools.partial(forward_programs.library, programs=LIBRARY_PROGRAMS)


def _network(weights: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    for w, b in weights[:-1]:
        x = jax.nn.gelu(x @ w + b)
    w, b = weights[-1]
    return x @ w + b


def _layers(*widths: int) -> list[tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]]:
    return [(array(a, b), array(b)) for a, b in itertools.pairwise(widths)]


def _logistic(weights: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
    logs = jax.nn.log_softmax(_network(weights, x))
    return -jnp.take_along_axis(logs, labels[:, None], 1).mean()


def _descended(weights: Any, gradients: Any, rate: Any = 1e-2) -> Any:
    return jax.tree.map(lambda w, g: w - rate * g, weights, gradients)


@program("trust-region/fisher-product")
def trust_region():
    """Ten conjugate gradients with products of a policy's Fisher matrix, by its divergence."""

    def step(weights, states, actions, advantages):
        def divergence(other):
            old = jax.nn.log_softmax(lax.stop_gradient(_network(weights, states)))
            new = jax.nn.log_softmax(_network(other, states))
            return jnp.sum(jnp.exp(old) * (old - new), -1).mean()

        def surrogate(weights):
            logs = jax.nn.log_softmax(_network(weights, states))
            return (jnp.take_along_axis(logs, actions[:, None], 1)[:, 0] * advantages).mean()

        slopes = jax.grad(surrogate)(weights)
        product = lambda v: jax.jvp(jax.grad(divergence), (weights,), (v,))[1]

        def one(_, state):
            x, r, p, rr = state
            ap = product(p)
            dot = sum(jnp.vdot(a, b) for a, b in zip(*map(jax.tree.leaves, (p, ap)), strict=True))
            alpha = rr / dot
            x = jax.tree.map(lambda a, b: a + alpha * b, x, p)
            r = jax.tree.map(lambda a, b: a - alpha * b, r, ap)
            new = sum(jnp.vdot(a, a) for a in jax.tree.leaves(r))
            return x, r, jax.tree.map(lambda a, b: a + new / rr * b, r, p), new

        zeros = jax.tree.map(jnp.zeros_like, slopes)
        first = sum(jnp.vdot(a, a) for a in jax.tree.leaves(slopes))
        direction = lax.fori_loop(0, 10, one, (zeros, slopes, slopes, first))[0]
        return _descended(weights, direction, -0.1)

    states = array(131_072, 256)
    return step, (_layers(256, 768, 768, 64), states, ids(131_072), array(131_072))


@program("influence/inverse-products")
def influence():
    """The influence of each example of a batch on a loss, by a series of products."""

    def influences(weights, x, labels, held_x, held_labels):
        held = jax.grad(_logistic)(weights, held_x, held_labels)

        def one(estimate, _):
            gradient = lambda w: jax.grad(_logistic)(w, x, labels)
            product = jax.jvp(gradient, (weights,), (estimate,))[1]
            return jax.tree.map(lambda h, e, p: h + 0.99 * e - 0.1 * p, held, estimate, product), 0

        inverse, _ = lax.scan(one, held, None, 20)

        def of_one(x, label):
            own = jax.grad(_logistic)(weights, x[None], label[None])
            parts = jax.tree.map(jnp.vdot, own, inverse)
            return jax.tree.reduce(jnp.add, parts)

        return jax.vmap(of_one)(x[:256], labels[:256])

    x = array(65_536, 512)
    return influences, (_layers(512, 1024, 1024, 100), x, ids(65_536), x, ids(65_536))


@program("laplace/diagonal-gauss-newton")
def laplace():
    """The diagonal of the generalised Gauss-Newton matrix, a few hundred examples at a time."""

    def diagonal(weights, x):
        def of_one(x):
            outputs = lambda w: _network(w, x)
            p = jax.nn.softmax(outputs(weights))
            jacobian = jax.jacrev(outputs)(weights)
            curvature = jnp.diag(p) - jnp.outer(p, p)
            return jax.tree.map(
                lambda j: jnp.einsum("a...,ab,b...->...", j, curvature, j), jacobian
            )

        def one(total, x):
            each = jax.vmap(of_one)(x)
            return jax.tree.map(lambda t, e: t + e.sum(0), total, each), None

        zeros = jax.tree.map(jnp.zeros_like, weights)
        return lax.scan(one, zeros, x)[0]

    return diagonal, (_layers(256, 512, 512, 10), array(32, 128, 256))


@program("example-hessians/inputs")
def example_hessians():
    """The largest curvature of a loss by its input, for each example."""

    def curvatures(weights, x, labels):
        def of_one(x, label):
            loss = lambda x: _logistic(weights, x[None], label[None])
            matrix = jax.hessian(loss)(x)
            v = jnp.ones(len(x)) / len(x)
            for _ in range(4):
                v = matrix @ v
                v = v / jnp.linalg.norm(v)
            return v @ matrix @ v

        return jax.vmap(of_one)(x, labels)

    return curvatures, (_layers(128, 512, 512, 10), array(4096, 128), ids(4096))


@program("bilevel/example-weights")
def bilevel():
    """The gradient of a validation loss by the weights of examples, through steps of SGD."""

    def step(ratings, weights, x, labels, held_x, held_labels):
        def loss(ratings):
            def inner(weights, x, labels, ratings):
                logs = jax.nn.log_softmax(_network(weights, x))
                each = -jnp.take_along_axis(logs, labels[:, None], 1)[:, 0]
                return (jax.nn.sigmoid(ratings) * each).mean()

            def one(weights, batch):
                return _descended(weights, jax.grad(inner)(weights, *batch)), None

            trained = lax.scan(one, weights, (x, labels, ratings))[0]
            return _logistic(trained, held_x, held_labels)

        value, gradient = jax.value_and_grad(loss)(ratings)
        return value, ratings - 0.1 * gradient

    weights = _layers(784, 1024, 1024, 10)
    batches = array(8, 8192, 784), ids(8, 8192)
    return step, (array(8, 8192), weights, *batches, array(8192, 784), ids(8192))


@program("learned-optimizer/unrolled")
def learned_optimizer():
    """A small network makes each parameter's update; its own gradient goes through the steps."""

    def step(rule, weights, x, labels):
        def loss(rule):
            def one(state, batch):
                weights, momenta = state
                value, gradients = jax.value_and_grad(_logistic)(weights, *batch)
                momenta = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, momenta, gradients)

                def updated(w, g, m):
                    features = jnp.stack([w, g, m, jnp.sign(g)], -1)
                    return w - 1e-3 * _network(rule, features)[..., 0]

                return (jax.tree.map(updated, weights, gradients, momenta), momenta), value

            zeros = jax.tree.map(jnp.zeros_like, weights)
            return lax.scan(one, (weights, zeros), (x, labels))[1].mean()

        value, gradients = jax.value_and_grad(loss)(rule)
        return value, _descended(rule, gradients)

    return step, (
        _layers(4, 32, 1),
        _layers(784, 256, 10),
        array(10, 4096, 784),
        ids(10, 4096),
    )


@program("curvature-probe/transformer")
def curvature_probe():
    """One probe of the Hessian's trace of a language model with its layers in a scan."""

    def trace(weights, tokens, rng):
        def loss(weights):
            x = weights["table"][tokens]

            def layer(x, w):
                h = x - x.mean(-1, keepdims=True)
                q, k, v = (
                    (h @ w[n]).reshape(*x.shape[:2], 8, x.shape[-1] // 8) for n in ("q", "k", "v")
                )
                x = x + _attend(q, k, v).reshape(x.shape) @ w["o"]
                return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

            x, _ = lax.scan(layer, x, weights["layers"])
            logs = jax.nn.log_softmax(x[:, :-1] @ weights["table"].T)
            return -jnp.take_along_axis(logs, tokens[:, 1:, None], -1).mean()

        leaves, tree = jax.tree.flatten(weights)
        keys = jax.random.split(rng, len(leaves))
        probe = tree.unflatten(
            [jax.random.rademacher(k, w.shape, w.dtype) for k, w in zip(keys, leaves, strict=True)]
        )
        product = jax.jvp(jax.grad(loss), (weights,), (probe,))[1]
        return sum(map(jnp.vdot, jax.tree.leaves(probe), jax.tree.leaves(product)))

    square = {n: array(4, 512, 512) for n in ("q", "k", "v", "o")}
    layers = square | {"up": array(4, 512, 2048), "down": array(4, 2048, 512)}
    return trace, ({"table": array(8192, 512), "layers": layers}, ids(8, 512), key())


@program("hamiltonian-network/rollout")
def hamiltonian_network():
    """The slopes of a learned energy move a system; the gradient goes through its path."""

    def step(weights, q, p, seen):
        def loss(weights):
            energy = lambda q, p: _network(weights, jnp.concatenate([q, p], -1)).sum()

            def one(state, target):
                q, p = state
                p = p - 0.05 * jax.grad(energy, 0)(q, p)
                q = q + 0.1 * jax.grad(energy, 1)(q, p)
                p = p - 0.05 * jax.grad(energy, 0)(q, p)
                return (q, p), jnp.mean((q - target) ** 2)

            return lax.scan(one, (q, p), seen)[1].mean()

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, _descended(weights, gradients)

    return step, (
        _layers(32, 256, 256, 1),
        array(8192, 16),
        array(8192, 16),
        array(20, 8192, 16),
    )


@program("smoothness/input-slopes")
def smoothness():
    """A classifier whose loss has to change little with its input."""

    def step(weights, x, labels):
        def loss(weights):
            value, slopes = jax.value_and_grad(_logistic, 1)(weights, x, labels)
            return value + 0.1 * jnp.sum(slopes**2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, _descended(weights, gradients)

    return step, (_layers(1024, 2048, 2048, 2048, 1000), array(16_384, 1024), ids(16_384))


# --- around libraries ------------------------------------------------------------------------


@library("linen-critic/penalty", "flax")
def linen_critic():
    import optax
    from flax import linen as nn

    class Critic(nn.Module):
        @nn.compact
        def __call__(self, x):
            for width in (64, 128, 256):
                x = nn.LayerNorm()(nn.leaky_relu(nn.Conv(width, (5, 5), (2, 2))(x), 0.2))
            return nn.Dense(1)(x.reshape(len(x), -1))[:, 0]

    def step(params, state, real, fake, mix):
        def loss(params):
            critic = lambda x: Critic().apply(params, x)
            slopes = jax.grad(lambda x: critic(x).sum())(mix * real + (1 - mix) * fake)
            norms = jnp.sqrt(jnp.sum(slopes**2, (1, 2, 3)) + 1e-12)
            return critic(fake).mean() - critic(real).mean() + 10 * jnp.mean((norms - 1) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        changes, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, changes), state, value

    optimizer = optax.adam(1e-4, 0.0, 0.9)
    images = array(256, 64, 64, 3)
    params = jax.eval_shape(Critic().init, key(), images)
    return step, (
        params,
        jax.eval_shape(optimizer.init, params),
        images,
        images,
        array(256, 1, 1, 1),
    )


@library("equinox-discriminator/slopes", "equinox")
def equinox_discriminator():
    import equinox as eqx

    def make(rng):
        keys = jax.random.split(rng, 4)
        convolutions = [
            eqx.nn.Conv2d(a, b, 3, 2, 1, key=k)
            for a, b, k in zip((3, 64, 128), (64, 128, 256), keys, strict=False)
        ]
        return convolutions, eqx.nn.Linear(256 * 64, 1, key=keys[3])

    model = eqx.filter_eval_shape(make, key())
    arrays, rest = eqx.partition(model, lambda x: isinstance(x, jax.ShapeDtypeStruct))

    def step(arrays, real, fake):
        def loss(arrays):
            convolutions, last = eqx.combine(arrays, rest)

            def score(x):
                for layer in convolutions:
                    x = jax.nn.silu(layer(x))
                return last(x.reshape(-1))[0]

            scores, slopes = jax.vmap(jax.value_and_grad(score))(real)
            fakes = jax.vmap(score)(fake)
            penalty = jnp.mean(jnp.sum(slopes**2, (1, 2, 3)))
            return jax.nn.softplus(fakes).mean() + jax.nn.softplus(-scores).mean() + 5 * penalty

        value, gradients = eqx.filter_value_and_grad(loss)(arrays)
        return value, eqx.apply_updates(arrays, jax.tree.map(lambda g: -1e-4 * g, gradients))

    images = array(256, 3, 64, 64)
    return step, (arrays, images, images)


@library("linen-heat/residual", "flax")
def linen_heat():
    import optax
    from flax import linen as nn

    class Field(nn.Module):
        @nn.compact
        def __call__(self, t, x):
            h = jnp.stack([t, x])
            for _ in range(4):
                h = nn.tanh(nn.Dense(256)(h))
            return nn.Dense(1)(h)[0]

    def step(params, state, t, x, start):
        def loss(params):
            u = functools.partial(Field().apply, params)
            by_time = jax.grad(u, 0)
            by_place = jax.grad(jax.grad(u, 1), 1)
            residual = jax.vmap(lambda t, x: by_time(t, x) - 0.1 * by_place(t, x))(t, x)
            at_start = jax.vmap(lambda x: u(0.0, x))(x)
            return jnp.mean(residual**2) + jnp.mean((at_start - start) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        changes, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, changes), state, value

    optimizer = optax.adam(1e-3)
    params = jax.eval_shape(Field().init, key(), array(), array())
    points = array(131_072)
    return step, (params, jax.eval_shape(optimizer.init, params), points, points, points)


@library("equinox-flow-field/stream-function", "equinox")
def equinox_flow_field():
    """A stationary flow by the third derivatives of its stream function."""
    import equinox as eqx

    model = eqx.filter_eval_shape(
        lambda rng: eqx.nn.MLP(2, "scalar", 128, 4, jnp.tanh, key=rng), key()
    )
    arrays, rest = eqx.partition(model, lambda x: isinstance(x, jax.ShapeDtypeStruct))

    def step(arrays, points):
        def loss(arrays):
            psi = eqx.combine(arrays, rest)

            def velocity(x):
                slopes = jax.grad(psi)(x)
                return jnp.stack([slopes[1], -slopes[0]])

            def residual(x):
                v, along = velocity(x), jax.jacfwd(velocity)(x)
                second = jax.jacfwd(jax.jacfwd(velocity))(x)
                return along @ v - 0.01 * jnp.trace(second, axis1=1, axis2=2)

            return jnp.mean(jax.vmap(residual)(points) ** 2)

        value, gradients = eqx.filter_value_and_grad(loss)(arrays)
        return value, eqx.apply_updates(arrays, jax.tree.map(lambda g: -1e-3 * g, gradients))

    return step, (arrays, array(65_536, 2))


@library("equinox-force-field/filters", "equinox")
def equinox_force_field():
    """Continuous filters along given edges, trained on energies and forces."""
    import equinox as eqx

    def make(rng):
        keys = jax.random.split(rng, 7)
        filters = [eqx.nn.MLP(32, 64, 64, 1, jax.nn.softplus, key=k) for k in keys[:3]]
        return filters, [eqx.nn.Linear(64, 64, key=k) for k in keys[3:6]]

    model = eqx.filter_eval_shape(make, key())
    arrays, rest = eqx.partition(model, lambda x: isinstance(x, jax.ShapeDtypeStruct))

    def step(arrays, positions, edges, energy, forces):
        def loss(arrays):
            def total(positions):
                offsets = positions[edges[0]] - positions[edges[1]]
                distances = jnp.sqrt(jnp.sum(offsets**2, -1, keepdims=True) + 1e-9)
                basis = jnp.exp(-4.0 * (distances - jnp.linspace(0.0, 6.0, 32)) ** 2)
                nodes = jnp.ones((len(positions), 64))
                for mlp, mix in zip(*eqx.combine(arrays, rest), strict=True):
                    sent = jax.vmap(mlp)(basis) * nodes[edges[0]]
                    pooled = jax.ops.segment_sum(sent, edges[1], len(nodes))
                    nodes = nodes + jax.vmap(mix)(jax.nn.silu(pooled))
                return nodes.sum()

            value, slopes = jax.value_and_grad(total)(positions)
            return (value - energy) ** 2 + jnp.mean((slopes + forces) ** 2)

        value, gradients = eqx.filter_value_and_grad(loss)(arrays)
        return value, eqx.apply_updates(arrays, jax.tree.map(lambda g: -1e-3 * g, gradients))

    return step, (arrays, array(16_384, 3), ids(2, 524_288), array(), array(16_384, 3))


@library("haiku-adaptation/tasks", "haiku")
def haiku_adaptation():
    """Four steps of SGD in a scan for each of many tasks, of a network of Haiku's."""
    import haiku as hk

    def called(x):
        return hk.nets.MLP([256, 256, 1], activation=jnp.sin)(x)

    network = hk.without_apply_rng(hk.transform(called))

    def step(params, support, queries):
        def loss(params):
            def of_task(support, query):
                def squares(params, x, y):
                    return jnp.mean((network.apply(params, x) - y) ** 2)

                def one(params, _):
                    return _descended(params, jax.grad(squares)(params, *support)), None

                return squares(lax.scan(one, params, None, 4)[0], *query)

            return jax.vmap(of_task)(support, queries).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        return value, _descended(params, gradients)

    params = jax.eval_shape(network.init, key(), array(1, 8))
    batch = array(256, 1024, 8), array(256, 1024, 1)
    return step, (params, batch, batch)


@library("optax-curvature/power-iteration", "flax")
def optax_curvature():
    """The largest eigenvalue of the Hessian, by products of Optax, as sharpness is measured."""
    import optax
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([nnx.Linear(1024, 1024, rngs=rngs) for _ in range(4)])

        def __call__(self, x):
            for layer in self.layers:
                x = nnx.silu(layer(x))
            return x

    graph, state = nnx.split(nnx.eval_shape(lambda: Network(nnx.Rngs(0))))
    state = nnx.to_pure_dict(state)

    def sharpness(params, x, y):
        def loss(params):
            merged = nnx.State(jax.tree.map(lambda a: a, params))
            model = nnx.merge(graph, jax.tree.map(nnx.Param, merged))
            return optax.l2_loss(model(x), y).mean()

        gradient = jax.grad(loss)

        def one(_, v):
            product = jax.jvp(gradient, (params,), (v,))[1]
            norm = optax.tree_utils.tree_l2_norm(product)
            return jax.tree.map(lambda p: p / norm, product)

        start = jax.tree.map(jnp.ones_like, params)
        v = lax.fori_loop(0, 16, one, start)
        return optax.tree_utils.tree_vdot(v, jax.jvp(gradient, (params,), (v,))[1])

    return sharpness, (state, array(65_536, 1024), array(65_536, 1024))
