"""JXR841 against compilers: XLA's peak falls where queries are really attended in parts."""

import jax
import jax.numpy as jnp
import pytest
from peaks_by_xla import cases, peaks

B, H, N, D, L = 2, 8, 1024, 64, 3
W = H * D
BF16 = jnp.bfloat16


def array(*shape):
    return jax.ShapeDtypeStruct(shape, BF16)


def in_parts(attend, q, chunks):
    """Attend with parts of the queries, [batch, queries, ...]."""
    if chunks is None:
        return attend(q, jnp.arange(q.shape[1]))
    parts = jnp.moveaxis(q.reshape(q.shape[0], chunks, -1, *q.shape[2:]), 1, 0)
    numbers = jnp.arange(q.shape[1]).reshape(chunks, -1)
    run = jax.checkpoint(lambda each: attend(*each), prevent_cse=False)
    made = jnp.moveaxis(jax.lax.map(run, (parts, numbers)), 0, 1)
    return made.reshape(made.shape[0], -1, *made.shape[3:])


def block(x, w, attend, chunks):
    qkv = (x @ w[0]).reshape(B, N, 3, H, D)
    x = x + attend(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], chunks).reshape(B, N, W)
    return x + jax.nn.gelu(x @ w[1]) @ w[2]


def weights(*lead):
    return array(*lead, W, 3 * W), array(*lead, W, 4 * W), array(*lead, 4 * W, W)


def dot_product(q, k, v, chunks):
    """Attend by JAX's own function, which on TPUs and by default makes all scores."""

    def attend(q, numbers):
        mask = numbers[:, None] >= jnp.arange(N)
        return jax.nn.dot_product_attention(q, k, v, mask=mask[None, None])

    return in_parts(attend, q, chunks)


def jax_nn(chunks):
    def loss(ws, x):
        x, _ = jax.lax.scan(lambda x, w: (block(x, w, dot_product, chunks), None), x, ws)
        return jnp.sum(x.astype(jnp.float32) ** 2)

    return loss, (weights(L), array(B, N, W))


def linen(chunks):
    nn = pytest.importorskip("flax.linen")

    def attention(q, k, v, **options):
        attend = lambda q, _: nn.dot_product_attention(q, k, v, dtype=BF16)
        return in_parts(attend, q, chunks)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(L):
                made = nn.SelfAttention(H, dtype=BF16, attention_fn=attention)(nn.LayerNorm()(x))
                x = x + made
                x = x + nn.Dense(W, dtype=BF16)(nn.gelu(nn.Dense(4 * W, dtype=BF16)(x)))
            return x

    model, x = Model(), array(B, N, W)
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    return lambda params, x: jnp.sum(model.apply(params, x).astype(jnp.float32) ** 2), (params, x)


def nnx(chunks):
    nnx = pytest.importorskip("flax.nnx")

    def attention(q, k, v, **options):
        attend = lambda q, _: nnx.dot_product_attention(q, k, v, dtype=BF16)
        return in_parts(attend, q, chunks)

    class Model(nnx.Module):
        def __init__(self, rngs):
            made = lambda: nnx.MultiHeadAttention(
                H, W, dtype=BF16, decode=False, attention_fn=attention, rngs=rngs
            )
            self.layers = nnx.List([made() for _ in range(L)])

        def __call__(self, x):
            for layer in self.layers:
                x = x + layer(x)
            return x

    graph, params = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))))

    def loss(params, x):
        return jnp.sum(nnx.merge(graph, params)(x).astype(jnp.float32) ** 2)

    return loss, (params, array(B, N, W))


def equinox(chunks):
    eqx = pytest.importorskip("equinox")

    def attending(layer, x):
        return lambda q, _: jax.vmap(lambda q, x: layer(q, x, x))(q, x)

    def loss(layers, x):
        for layer in layers:
            x = x + in_parts(attending(layer, x), x, chunks)
        return jnp.sum(x**2)

    key = jax.random.key(0)
    layers = eqx.filter_eval_shape(lambda: [eqx.nn.MultiheadAttention(H, W, key=key)] * L)
    return loss, (layers, jax.ShapeDtypeStruct((B, N, W), jnp.float32))


GATE = {(jax_nn, "gpu:h100"), (linen, "tpu:v5e"), (nnx, "tpu:v5e"), (equinox, "tpu:v5e")}


@pytest.mark.parametrize(("program", "on"), cases((jax_nn, linen, nnx, equinox), GATE))
def test_the_peak_of_xla_falls_as_well(program, on):
    found = peaks(program, "JXR841", on, None, lambda measured: measured["chunks"])
    assert found.fall > 0.6 * found.estimated_fall
