"""JXR830 against compilers: XLA's peak falls where the loss is really computed in chunks."""

import jax
import jax.numpy as jnp
import pytest
from peaks_by_xla import cases, peaks

N, D, V, LAYERS = 4096, 512, 16384, 2
BF16 = jnp.bfloat16


def integers(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def by_logsumexp(logits, labels):
    logits = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - picked


def by_one_hot(logits, labels):
    targets = jax.nn.one_hot(labels, V, dtype=logits.dtype)
    return -jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1)


def capped(logits, labels):
    return by_logsumexp(30 * jnp.tanh(logits / 30), labels)


def trunk(params, x):
    for up, down in params["layers"]:
        x = x + jax.nn.gelu(x @ up) @ down
    return x


def in_chunks(loss_of_tokens, x, labels, chunks):
    if chunks is None:
        return jnp.mean(loss_of_tokens((x, labels)))
    parts = x.reshape(chunks, -1, x.shape[-1]), labels.reshape(chunks, -1)
    return jnp.mean(jax.lax.map(jax.checkpoint(loss_of_tokens, prevent_cse=False), parts))


def plain(cross_entropy, chunks):
    def loss(params, x, labels):
        x = trunk(params, x)
        one = lambda part: cross_entropy(part[0] @ params["head"], part[1])
        return in_chunks(one, x, labels, chunks)

    array = lambda *shape: jax.ShapeDtypeStruct(shape, BF16)
    layers = [(array(D, 4 * D), array(4 * D, D))] * LAYERS
    return loss, ({"layers": layers, "head": array(D, V)}, array(N, D), integers(N))


def from_logsumexp(chunks):
    return plain(by_logsumexp, chunks)


def from_one_hot(chunks):
    return plain(by_one_hot, chunks)


def from_capped(chunks):
    return plain(capped, chunks)


def linen(chunks):
    nn = pytest.importorskip("flax.linen")

    class Model(nn.Module):
        def setup(self):
            self.embed = nn.Embed(V, D, dtype=BF16)
            self.attention = nn.SelfAttention(8, dtype=BF16)
            self.norm = nn.LayerNorm(dtype=BF16)

        def hidden(self, tokens):
            x = self.embed(tokens)
            return self.norm(x + self.attention(x, mask=nn.make_causal_mask(tokens)))

        def logits(self, hidden):
            return self.embed.attend(hidden)

        def __call__(self, tokens):
            return self.logits(self.hidden(tokens))

    model, rows = Model(), 16

    def loss(params, tokens, labels):
        x = model.apply(params, tokens, method=Model.hidden)
        one = lambda part: by_logsumexp(model.apply(params, part[0], method=Model.logits), part[1])
        if chunks is None:
            return jnp.mean(one((x, labels)))
        return in_chunks(one, x.reshape(-1, D), labels.reshape(-1), chunks)

    tokens = integers(rows, N // rows)
    return loss, (jax.eval_shape(model.init, jax.random.key(0), tokens), tokens, tokens)


def equinox(chunks):
    eqx = pytest.importorskip("equinox")

    class Model(eqx.Module):
        mlp: eqx.nn.MLP
        head: eqx.nn.Linear

    def model():
        keys = jax.random.split(jax.random.key(0), 2)
        return Model(eqx.nn.MLP(D, D, 4 * D, 1, key=keys[0]), eqx.nn.Linear(D, V, key=keys[1]))

    def loss(model, x, labels):
        x = x + jax.vmap(model.mlp)(x)
        one = lambda part: by_logsumexp(jax.vmap(model.head)(part[0]), part[1])
        return in_chunks(one, x, labels, chunks)

    x = jax.ShapeDtypeStruct((N, D), jnp.float32)
    return loss, (eqx.filter_eval_shape(model), x, integers(N))


PROGRAMS = (from_logsumexp, from_one_hot, from_capped, linen, equinox)
# What the gate has time for.
GATE = {
    (from_one_hot, "gpu:h100"),
    (equinox, "gpu:h100"),
    (from_capped, "tpu:v5e"),
    (linen, "tpu:v5e"),
}


@pytest.mark.parametrize(("program", "on"), cases(PROGRAMS, GATE))
def test_the_peak_of_xla_falls_as_well(program, on):
    found = peaks(program, "JXR830", on, None, lambda measured: measured["chunks"])
    assert found.fall > 0.7 * found.estimated_fall
