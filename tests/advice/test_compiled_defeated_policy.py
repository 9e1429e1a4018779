"""JXR840 against compilers: XLA's peak moves as estimated where the matmuls are really saved."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from peaks_by_xla import cases, peaks

S, L, N, D = 4, 3, 4096, 512
NO_BATCH = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
NAMES = jax.checkpoint_policies.save_only_these_names("up", "down")


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def mlp(x, up, down):
    return x + jnp.tanh(checkpoint_name(jax.nn.gelu(checkpoint_name(x @ up, "up")) @ down, "down"))


def stage(weights, x, policy):
    one = jax.checkpoint(lambda x, w: (mlp(x, *w), None), policy=policy)
    return jax.lax.scan(one, x, weights)[0]


WEIGHTS = f32(S, L, D, 4 * D), f32(S, L, 4 * D, D)


def pipeline(policy):
    """Shift activations from stage to stage, as MaxText's pipelines do."""

    def loss(weights, x):
        def trip(state, _):
            made = jax.vmap(lambda ws, x: stage(ws, x, policy))(weights, state)
            return jnp.roll(made, 1, axis=0), None

        return jnp.sum(jax.lax.scan(trip, x, None, length=S)[0] ** 2)

    return loss, (WEIGHTS, f32(S, N // 2, D))


def linen(policy):
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = checkpoint_name(nn.Dense(4 * D)(nn.LayerNorm()(x)), "up")
            return x + jnp.tanh(checkpoint_name(nn.Dense(D)(nn.gelu(h)), "down"))

    class Stage(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(L):
                x = nn.remat(Block, policy=policy)()(x)
            return x

    model = nn.vmap(Stage, variable_axes={"params": 0}, split_rngs={"params": True})()
    x = f32(S, N, D)
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    return lambda params, x: jnp.sum(model.apply(params, x) ** 2), (params, x)


def nnx(policy):
    nnx = pytest.importorskip("flax.nnx")

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.up = nnx.Linear(D, 4 * D, rngs=rngs)
            self.down = nnx.Linear(4 * D, D, rngs=rngs)

        def __call__(self, x):
            h = nnx.gelu(checkpoint_name(self.up(x), "up"))
            return x + jnp.tanh(checkpoint_name(self.down(h), "down"))

    @nnx.vmap(in_axes=(0, 0))
    def run(model, x):
        for _ in range(L):
            x = nnx.remat(lambda m, x: m(x), policy=policy)(model, x)
        return x

    graph, params = nnx.split(nnx.eval_shape(lambda: nnx.vmap(Block)(nnx.Rngs(0).fork(split=S))))
    return lambda params, x: jnp.sum(run(nnx.merge(graph, params), x) ** 2), (params, f32(S, N, D))


def equinox(policy):
    eqx = pytest.importorskip("equinox")

    class Block(eqx.Module):
        up: eqx.nn.Linear
        down: eqx.nn.Linear

        def __init__(self, key):
            keys = jax.random.split(key)
            self.up = eqx.nn.Linear(D, 4 * D, key=keys[0])
            self.down = eqx.nn.Linear(4 * D, D, key=keys[1])

        def __call__(self, x):
            h = checkpoint_name(jax.vmap(self.up)(x), "up")
            return x + jnp.tanh(checkpoint_name(jax.vmap(self.down)(jax.nn.gelu(h)), "down"))

    def loss(blocks, x):
        def run(blocks, x):
            for block in blocks:
                x = eqx.filter_checkpoint(block, policy=policy)(x)
            return x

        return jnp.sum(eqx.filter_vmap(run)(blocks, x) ** 2)

    keys = jax.random.split(jax.random.key(0), S)
    blocks = eqx.filter_eval_shape(lambda: [eqx.filter_vmap(Block)(keys) for _ in range(L)])
    return loss, (blocks, f32(S, N, D))


GATE = {(equinox, "gpu:h100"), (pipeline, "gpu:h100"), (linen, "tpu:v5e"), (nnx, "tpu:v5e")}


@pytest.mark.parametrize(("program", "on"), cases((pipeline, linen, nnx, equinox), GATE))
def test_the_peak_of_xla_moves_as_well(program, on):
    found = peaks(program, "JXR840", on, NO_BATCH, lambda measured: NAMES)
    expected = found.estimated_after - found.estimated_before
    assert expected > 0
    assert found.after - found.before == pytest.approx(expected, abs=0.2 * found.after)
