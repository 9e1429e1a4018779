"""Losses over meshes of eight devices, that JXR844 is judged by.

`KEPT_BACK` are around layers of Flax, split by the names of their parameters as people do, and were
written before anything was said of them; `TESTS` are those that the rule was written with. Each
returns a function, differentiated by its first argument, and its abstract arguments. Set
JAX_NUM_CPU_DEVICES=8 before jax is imported.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

BF16 = jnp.bfloat16


@functools.cache
def mesh_of(**axes):
    types = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=types)


def both():
    return mesh_of(data=4, model=2)


def array(mesh, shape, *split, dtype=BF16):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*split)))


def split_by(rule, mesh, tree):
    """Return a tree of arrays, each split as a rule says of its path and shape."""

    def one(path, x):
        return array(mesh, x.shape, *rule(jax.tree_util.keystr(path), x), dtype=x.dtype)

    return jax.tree_util.tree_map_with_path(one, tree)


# -- those that the rule was written with -------------------------------------------------------

B, T, D, F, L, V = 32, 2048, 2048, 8192, 6, 32768


def norm(x):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def layer(x, w):
    return x + jax.nn.gelu(norm(x) @ w[0]) @ w[1]


def plain(x):
    return jnp.mean(x.astype(jnp.float32) ** 2)


def scanned(wrap=lambda f: f):
    def loss(weights, x):
        x, _ = jax.lax.scan(wrap(lambda x, w: (layer(x, w), None)), x, weights)
        return plain(x)

    return loss


def unrolled(wrap=lambda f: f):
    def loss(weights, x):
        for w in weights:
            x = wrap(layer)(x, w)
        return plain(x)

    return loss


def language_model(params, tokens):
    x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), params["table"][tokens], params["layers"])
    found = jax.nn.log_softmax((norm(x) @ params["head"]).astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(found, tokens[..., None], -1))


def stacked(mesh, up, down):
    return array(mesh, (L, D, F), None, *up), array(mesh, (L, F, D), None, *down)


def each(mesh, up, down):
    return tuple((array(mesh, (D, F), *up), array(mesh, (F, D), *down)) for _ in range(L))


def words(mesh, layers, table, tokens):
    params = {
        "table": array(mesh, (V, D), table),
        "layers": layers,
        "head": array(mesh, (D, V), table),
    }
    return params, array(mesh, (B, T // 4), *tokens, dtype=jnp.int32)


TENSOR, FSDP = ((None, "model"), ("model",)), ((None, "data"), ("data",))


def tests_scan():
    return scanned(), (stacked(both(), *TENSOR), array(both(), (B, T, D), "data"))


def tests_scan_checkpointed():
    args = stacked(both(), *TENSOR), array(both(), (B, T, D), "data")
    return scanned(jax.checkpoint), args


def tests_loop():
    return unrolled(), (each(both(), *TENSOR), array(both(), (B, T, D), "data"))


def tests_loop_checkpointed():
    args = each(both(), *TENSOR), array(both(), (B, T, D), "data")
    return unrolled(jax.checkpoint), args


def tests_whole_batch():
    mesh = mesh_of(data=8)
    return scanned(), (stacked(mesh, *FSDP), array(mesh, (B, T, D)))


def tests_words():
    return language_model, words(both(), stacked(both(), *TENSOR), "model", ("data",))


def tests_whole_words():
    return language_model, words(both(), stacked(both(), *TENSOR), "model", ())


def tests_fsdp_words():
    mesh = mesh_of(data=8)
    return language_model, words(mesh, stacked(mesh, *FSDP), "data", ("data",))


# -- those kept back ----------------------------------------------------------------------------


def largest(axis, size):
    """Split the largest dim of each large array, as FSDP does."""

    def rule(path, x):
        dims = [d for d in range(x.ndim) if x.shape[d] % size == 0]
        if x.size < 2**16 or not dims:
            return ()
        largest = max(dims, key=lambda d: x.shape[d])
        return (None,) * largest + (axis,)

    return rule


def tensor(axis):
    """Split heads, hidden features and words."""

    def rule(path, x):
        lead = (None,) * ("scan_layers" in path)
        rank = x.ndim - len(lead)
        if rank < 2:
            return ()
        if any(name in path for name in ("'query'", "'key'", "'value'")):
            return (*lead, None, axis, None) if rank == 3 else ()
        if "'out'" in path:
            return (*lead, axis, None, None)
        if "'up'" in path or "'head'" in path:
            return (*lead, None, axis)
        return (*lead, axis, None) if "'down'" in path or "'embed'" in path else ()

    return rule


def nothing(path, x):
    return ()


def flax_lm(mesh, rule, batch, *, scan=True, remat=False):
    import flax.linen as nn
    import optax

    width, words, depth = 1024, 32_000, 8
    dense = functools.partial(nn.Dense, dtype=BF16, param_dtype=BF16)

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _=None):
            y = nn.LayerNorm(dtype=BF16)(x)
            attend = nn.MultiHeadDotProductAttention(16, dtype=BF16, param_dtype=BF16, name="attn")
            x = x + attend(y, y)
            y = nn.LayerNorm(dtype=BF16)(x)
            y = dense(4 * width, name="up")(y)
            y = nn.gelu(y)
            y = dense(width, name="down")(y)
            x = x + y
            return x, None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(words, width, dtype=BF16, param_dtype=BF16, name="embed")(tokens)
            block = nn.remat(Block, prevent_cse=not scan) if remat else Block
            if scan:
                axes = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
                x, _ = nn.scan(block, length=depth, **axes)(name="scan_layers")(x, None)
            else:
                for i in range(depth):
                    x, _ = block(name=f"layer{i}")(x)
            x = nn.LayerNorm(dtype=BF16)(x)
            return dense(words, use_bias=False, name="head")(x)

    model = Model()
    tokens = array(mesh, (32, 1024), *batch, dtype=jnp.int32)
    whole = jnp.zeros(tokens.shape, jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), whole)

    def loss(params, tokens):
        logits = model.apply(params, tokens)[:, :-1].astype(jnp.float32)
        of_each = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return jnp.mean(of_each)

    return loss, (split_by(rule, mesh, params), tokens)


def flax_convolutions(mesh, rule, batch):
    import flax.linen as nn
    import optax

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            for features in (128, 256, 512):
                for i in range(2):
                    before = x
                    if x.shape[-1] > 3:
                        x = nn.GroupNorm(32, dtype=BF16)(x)
                    conv = functools.partial(nn.Conv, dtype=BF16, param_dtype=BF16)
                    x = nn.relu(conv(features, (3, 3), name=f"up{features}_{i}")(x))
                    x = conv(features, (3, 3), name=f"down{features}_{i}")(x)
                    if before.shape == x.shape:
                        x = x + before
                x = nn.max_pool(x, (2, 2), (2, 2))
            return nn.Dense(1000, dtype=BF16, param_dtype=BF16)(x.mean((1, 2)))

    model, images = Model(), array(mesh, (64, 128, 128, 3), *batch)
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros(images.shape, BF16))

    def loss(params, images, labels):
        logits = model.apply(params, images).astype(jnp.float32)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))

    labels = array(mesh, (64,), *batch, dtype=jnp.int32)
    return loss, (split_by(rule, mesh, params), images, labels)


def channels(axis):
    """Split the channels between two convolutions."""

    def rule(path, x):
        if x.ndim != 4:
            return ()
        if "up" in path:
            return None, None, None, axis
        return (None, None, axis, None) if x.shape[2] % 8 == 0 else ()

    return rule


def flax_rnn(mesh, rule, batch):
    import flax.linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            for i in range(2):
                cell = nn.OptimizedLSTMCell(1024, dtype=BF16, param_dtype=BF16)
                x = nn.RNN(cell, name=f"rnn{i}")(x)
            return nn.Dense(256, dtype=BF16, param_dtype=BF16)(x)

    return regression(Model(), mesh, rule, (64, 512, 1024), batch)


def flax_mixer(mesh, rule, batch):
    import flax.linen as nn

    dense = functools.partial(nn.Dense, dtype=BF16, param_dtype=BF16)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            for i in range(8):
                y = nn.LayerNorm(dtype=BF16)(x).swapaxes(1, 2)
                y = nn.gelu(dense(4 * x.shape[1], name=f"up_tokens{i}")(y))
                x = x + dense(x.shape[1], name=f"down_tokens{i}")(y).swapaxes(1, 2)
                y = nn.LayerNorm(dtype=BF16)(x)
                y = nn.gelu(dense(4 * x.shape[2], name=f"up_channels{i}")(y))
                x = x + dense(x.shape[2], name=f"down_channels{i}")(y)
            return x

    return regression(Model(), mesh, rule, (64, 256, 1024), batch)


def regression(model, mesh, rule, shape, batch):
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros(shape, BF16))

    def loss(params, x):
        return plain(model.apply(params, x))

    return loss, (split_by(rule, mesh, params), array(mesh, shape, *batch))


def hidden(axis):
    """Split the features between two matmuls."""

    def rule(path, x):
        if x.ndim != 2:
            return ()
        return (None, axis) if "up" in path else (axis,)

    return rule


def experts():
    """Each token goes through all experts, which devices share."""
    count, width, wide, depth = 8, 1024, 4096, 4
    mesh = both()

    def loss(weights, x):
        def layer(x, w):
            gate, up, down = w
            chances = jax.nn.softmax((x @ gate).astype(jnp.float32))
            _, chosen = jax.lax.top_k(chances, 2)
            mask = jnp.sum(jax.nn.one_hot(chosen, count, dtype=BF16), 2)
            each = jnp.einsum("btd,bte->ebtd", x, mask)
            each = jax.nn.silu(jnp.einsum("ebtd,edf->ebtf", each, up))
            each = jnp.einsum("ebtf,efd->ebtd", each, down)
            return x + jnp.einsum("ebtd,bte->btd", each, mask * chances.astype(BF16)), None

        x, _ = jax.lax.scan(layer, x, weights)
        return plain(x)

    weights = (
        array(mesh, (depth, width, count)),
        array(mesh, (depth, count, width, wide), None, "model"),
        array(mesh, (depth, count, wide, width), None, "model"),
    )
    return loss, (weights, array(mesh, (16, 512, width), "data"))


def _fsdp():
    return mesh_of(fsdp=8), largest("fsdp", 8)


_D, _F = ("data",), ("fsdp",)
KEPT_BACK = {
    "tensor_scan": lambda: flax_lm(both(), tensor("model"), _D),
    "tensor_scan_remat": lambda: flax_lm(both(), tensor("model"), _D, remat=True),
    "tensor_loop": lambda: flax_lm(mesh_of(dp=2, tp=4), tensor("tp"), ("dp",), scan=False),
    "tensor_loop_remat": lambda: flax_lm(
        mesh_of(dp=2, tp=4), tensor("tp"), ("dp",), scan=False, remat=True
    ),
    "fsdp_scan": lambda: flax_lm(*_fsdp(), _F),
    "fsdp_scan_remat": lambda: flax_lm(*_fsdp(), _F, remat=True),
    "fsdp_loop": lambda: flax_lm(*_fsdp(), _F, scan=False),
    "fsdp_whole_batch": lambda: flax_lm(*_fsdp(), (), remat=True),
    "data_of_two_axes": lambda: flax_lm(both(), nothing, _D),
    "convolutions": lambda: flax_convolutions(both(), channels("model"), _D),
    "convolutions_fsdp": lambda: flax_convolutions(*_fsdp(), _F),
    "rnn_data": lambda: flax_rnn(both(), nothing, _D),
    "rnn_tensor": lambda: flax_rnn(both(), largest("model", 2), _D),
    "experts": experts,
    "mixer": lambda: flax_mixer(both(), hidden("model"), _D),
    "mixer_fsdp": lambda: flax_mixer(*_fsdp(), _F),
}
TESTS = {
    "scan": tests_scan,
    "scan_checkpointed": tests_scan_checkpointed,
    "loop": tests_loop,
    "loop_checkpointed": tests_loop_checkpointed,
    "whole_batch": tests_whole_batch,
    "words": tests_words,
    "whole_words": tests_whole_words,
    "fsdp_words": tests_fsdp_words,
}
