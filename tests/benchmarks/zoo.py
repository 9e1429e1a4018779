"""Models, with checkpoints placed in several ways, that the peak estimate is judged by.

`CASES` is the whole collection; a case builds a loss and the abstract arguments that it takes, at
one of two scales:

- `cpu`: tens to hundreds of MiB of temporaries in float32, quick to compile for XLA:CPU;
- `tpu`: gigabytes of temporaries, because at small shapes a TPU keeps temporaries on the chip.

Nothing here knows of the estimate. A model is a builder `(form, policy, scale) -> (fun, args)`:

- form: `scan` over stacked weights, or `unroll`, a loop over a list of them;
- policy: where checkpoints are and what they save. One of `POLICIES` stands at each layer, block,
  time step or group; with `+cse` after its name the checkpoint has `prevent_cse=False`. `none`: no
  checkpoint. `whole`: one around the loss, saving nothing.

Values that the policy `names` saves are named `kept`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

POLICIES = {
    "everything": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "names": jax.checkpoint_policies.save_only_these_names("kept"),
}
F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32


@dataclass(frozen=True, slots=True)
class Case:
    """One model in one form with one placement of checkpoints.

    Attributes:
      model: the builder's name.
      form: `scan` or `unroll`.
      policy: see the module.
      build: `cpu` or `tpu` to a function that returns a real scalar, and its abstract arguments:
        pytrees whose leaves are either all floating, to be differentiated, or all integers.
      core: one of the quickest that together cover every model, form and policy.
    """

    model: str
    form: str
    policy: str
    build: Callable[[str], tuple[Callable, tuple]]
    core: bool

    @property
    def name(self):
        return f"{self.model}/{self.form}/{self.policy}"


# --- placing checkpoints and repeating layers ------------------------------------------------


def checkpointed(body, policy):
    """`body` with the checkpoint that stands at each layer, if this placement has one."""
    if policy in {"none", "whole"}:
        return body
    name, _, cse = policy.partition("+")
    return jax.checkpoint(body, policy=POLICIES[name], prevent_cse=not cse)


def placed(loss, policy):
    """`loss` with the checkpoint that stands around all of it, if this placement has one."""
    return jax.checkpoint(loss) if policy == "whole" else loss


def through(body, x, layers):
    """`x` after every layer: a scan over stacked weights, or a loop over a list of them."""
    if isinstance(layers, list):
        for p in layers:
            x = body(x, p)
        return x
    return lax.scan(lambda x, p: (body(x, p), None), x, layers)[0]


def array(shape, dtype):
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def weights(dtype, **shapes):
    return {name: array(shape, dtype) for name, shape in shapes.items()}


def layers(form, count, dtype, **shapes):
    if form == "scan":
        return weights(dtype, **{name: (count, *shape) for name, shape in shapes.items()})
    return [weights(dtype, **shapes) for _ in range(count)]


# --- pieces ----------------------------------------------------------------------------------


def mean_square(x):
    return jnp.mean(jnp.square(x.astype(F32)))


def layer_norm(x, gain):
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * gain


def rms_norm(x, gain):
    """Normalised in float32, as is usual for bfloat16 activations."""
    wide = x.astype(F32)
    scale = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x.dtype) * gain


def batch_norm(x, gain, bias):
    """Over batch and space; training statistics only."""
    mean = jnp.mean(x, axis=(0, 1, 2))
    variance = jnp.mean(jnp.square(x), axis=(0, 1, 2)) - jnp.square(mean)
    return (x - mean) * (gain * lax.rsqrt(variance + 1e-5)) + bias


def group_norm(x, gain, groups):
    batch, height, width, channels = x.shape
    split = x.reshape(batch, height * width, groups, channels // groups)
    mean = jnp.mean(split, axis=(1, 3), keepdims=True)
    variance = jnp.var(split, axis=(1, 3), keepdims=True)
    return ((split - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape) * gain


def convolution(x, kernel, stride=1):
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def cross_entropy(logits, labels):
    """Mean over all labels, in float32."""
    logits = logits.astype(F32)
    right = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - right)


def heads_first(x, heads):
    batch, sequence, width = x.shape
    return x.reshape(batch, sequence, heads, width // heads).transpose(0, 2, 1, 3)


def heads_last(x):
    batch, heads, sequence, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, sequence, heads * size)


def self_attention(x, qkv, out, heads, causal=False):
    """Fused projections, softmax in the type of `x`."""
    q, k, v = (heads_first(a, heads) for a in jnp.split(x @ qkv, 3, axis=-1))
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
    if causal:
        sequence = x.shape[1]
        seen = jnp.tril(jnp.ones((sequence, sequence), bool))
        scores = jnp.where(seen, scores, jnp.asarray(-1e9, scores.dtype))
    mixed = checkpoint_name(jax.nn.softmax(scores, axis=-1) @ v, "kept")
    return heads_last(mixed) @ out


def transformer_shapes(width, wide=4):
    return {
        "g1": (width,),
        "wqkv": (width, 3 * width),
        "wo": (width, width),
        "g2": (width,),
        "w1": (width, wide * width),
        "w2": (wide * width, width),
    }


def transformer_layer(x, p, heads, causal=False):
    x = x + self_attention(layer_norm(x, p["g1"]), p["wqkv"], p["wo"], heads, causal)
    hidden = checkpoint_name(layer_norm(x, p["g2"]) @ p["w1"], "kept")
    return x + jax.nn.gelu(hidden) @ p["w2"]


# --- the models ------------------------------------------------------------------------------


def mlp(form, policy, scale):
    """Dense layers with a bias and gelu: the values kept are elementwise ones around the dots."""
    batch, width, depth, dtype = {"cpu": (1024, 1024, 10, F32), "tpu": (32768, 4096, 8, BF16)}[
        scale
    ]

    def layer(x, p):
        return jax.nn.gelu(checkpoint_name(x @ p["w"] + p["b"], "kept"))

    body = checkpointed(layer, policy)

    def loss(params, x, y):
        return mean_square(through(body, x, params) - y)

    x = array((batch, width), dtype)
    params = layers(form, depth, dtype, w=(width, width), b=(width,))
    return placed(loss, policy), (params, x, x)


def sine(form, policy, scale):
    """Residual branches through a sine, whose derivative no compiler recomputes for free."""
    batch, width, wide, depth = {"cpu": (1024, 256, 1024, 8), "tpu": (32768, 1024, 4096, 8)}[scale]

    def layer(x, p):
        hidden = checkpoint_name(x @ p["up"], "kept")
        return x + jnp.sin(hidden) @ p["down"]

    body = checkpointed(layer, policy)

    def loss(params, x):
        return mean_square(through(body, x, params))

    params = layers(form, depth, F32, up=(width, wide), down=(wide, width))
    return placed(loss, policy), (params, array((batch, width), F32))


def mha(form, policy, scale):
    """The eight-layer stack of pre-norm transformer layers."""
    batch, sequence, width, heads = {"cpu": (2, 512, 512, 8), "tpu": (8, 1024, 1024, 16)}[scale]
    body = checkpointed(functools.partial(transformer_layer, heads=heads), policy)

    def loss(params, x):
        return jnp.sum(through(body, x, params) ** 2)

    x = array((batch, sequence, width), F32)
    return placed(loss, policy), (layers(form, 8, F32, **transformer_shapes(width)), x)


def rotated(x, angles):
    """Rotary positions: halves of the last axis turned by `angles`, [sequence, size / 2]."""
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def gqa(form, policy, scale):
    """Rotary grouped-query attention, RMS norms, a gated MLP; einsums, softmax in float32."""
    batch, sequence, width, groups, each, size, wide, depth, dtype = {
        "cpu": (2, 256, 512, 2, 4, 64, 1024, 6, F32),
        "tpu": (8, 2048, 2048, 4, 4, 128, 5632, 6, BF16),
    }[scale]

    def attention(x, p):
        q = jnp.einsum("bsd,dgrk->bgrsk", x, p["q"])
        k = jnp.einsum("bsd,dgk->bgsk", x, p["k"])
        v = jnp.einsum("bsd,dgk->bgsk", x, p["v"])
        position = jnp.arange(sequence, dtype=F32)
        frequency = 10000.0 ** (-jnp.arange(0, size, 2, dtype=F32) / size)
        angles = position[:, None] * frequency
        q, k = rotated(q, angles), rotated(k, angles)
        scores = jnp.einsum("bgrsk,bgtk->bgrst", q, k) / math.sqrt(size)
        seen = position[:, None] >= position
        shares = jax.nn.softmax(jnp.where(seen, scores.astype(F32), -1e30), axis=-1)
        mixed = jnp.einsum("bgrst,bgtk->bsgrk", shares.astype(dtype), v)
        return jnp.einsum("bsgrk,grkd->bsd", checkpoint_name(mixed, "kept"), p["o"])

    def layer(x, p):
        x = x + attention(rms_norm(x, p["g1"]), p)
        h = rms_norm(x, p["g2"])
        gated = jax.nn.silu(h @ p["gate"]) * (h @ p["up"])
        return x + gated @ p["down"]

    body = checkpointed(layer, policy)

    def loss(params, x):
        return mean_square(through(body, x, params))

    params = layers(
        form,
        depth,
        dtype,
        g1=(width,),
        q=(width, groups, each, size),
        k=(width, groups, size),
        v=(width, groups, size),
        o=(groups, each, size, width),
        g2=(width,),
        gate=(width, wide),
        up=(width, wide),
        down=(wide, width),
    )
    return placed(loss, policy), (params, array((batch, sequence, width), dtype))


def decoder(form, policy, scale):
    """A language model: tied embedding, causal layers, cross-entropy over the vocabulary."""
    batch, sequence, width, heads, depth, words, dtype = {
        "cpu": (2, 256, 256, 4, 4, 8192, F32),
        "tpu": (16, 1024, 1024, 8, 8, 32768, BF16),
    }[scale]
    body = checkpointed(functools.partial(transformer_layer, heads=heads, causal=True), policy)

    def loss(params, tokens):
        x = params["words"][tokens[:, :-1]] + params["places"]
        x = layer_norm(through(body, x, params["layers"]), params["gain"])
        return cross_entropy(x @ params["words"].T, tokens[:, 1:])

    params = weights(dtype, words=(words, width), places=(sequence, width), gain=(width,))
    params["layers"] = layers(form, depth, dtype, **transformer_shapes(width))
    return placed(loss, policy), (params, array((batch, sequence + 1), I32))


def vit(form, policy, scale):
    """Patches of images, a class token before them, transformer layers, a linear head."""
    batch, pixels, patch, width, heads, depth, dtype = {
        "cpu": (8, 96, 8, 256, 4, 6, F32),
        "tpu": (64, 256, 16, 1024, 16, 8, F32),
    }[scale]
    side, classes = pixels // patch, 1000
    body = checkpointed(functools.partial(transformer_layer, heads=heads), policy)

    def loss(params, images, labels):
        x = images.reshape(batch, side, patch, side, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(batch, side * side, patch * patch * 3) @ params["embed"]
        first = jnp.broadcast_to(params["token"], (batch, 1, width))
        x = jnp.concatenate([first, x], axis=1) + params["places"]
        x = through(body, x, params["layers"])[:, 0]
        return cross_entropy(layer_norm(x, params["gain"]) @ params["head"], labels)

    params = weights(
        dtype,
        embed=(patch * patch * 3, width),
        token=(width,),
        places=(side * side + 1, width),
        gain=(width,),
        head=(width, classes),
    )
    params["layers"] = layers(form, depth, dtype, **transformer_shapes(width))
    images = array((batch, pixels, pixels, 3), dtype)
    return placed(loss, policy), (params, images, array((batch,), I32))


def convnet(form, policy, scale):
    """Residual blocks of two convolutions with batch norm; three stages, each at half the size."""
    batch, pixels, width, depth, dtype = {
        "cpu": (16, 48, 32, 3, F32),
        "tpu": (256, 128, 128, 3, BF16),
    }[scale]
    stages = (width, 2 * width, 4 * width)

    def block(x, p):
        h = jax.nn.relu(batch_norm(convolution(x, p["k1"]), p["g1"], p["b1"]))
        h = checkpoint_name(convolution(h, p["k2"]), "kept")
        return jax.nn.relu(x + batch_norm(h, p["g2"], p["b2"]))

    body = checkpointed(block, policy)

    def loss(params, images, labels):
        x = images
        for stage in params["stages"]:
            x = jax.nn.relu(convolution(x, stage["enter"], stride=2))
            x = through(body, x, stage["blocks"])
        return cross_entropy(jnp.mean(x, axis=(1, 2)) @ params["head"], labels)

    params = {
        "stages": [
            {
                "enter": array((3, 3, before, after), dtype),
                "blocks": layers(
                    form,
                    depth,
                    dtype,
                    k1=(3, 3, after, after),
                    g1=(after,),
                    b1=(after,),
                    k2=(3, 3, after, after),
                    g2=(after,),
                    b2=(after,),
                ),
            }
            for before, after in itertools.pairwise((3, *stages))
        ],
        "head": array((stages[-1], 1000), dtype),
    }
    images = array((batch, pixels, pixels, 3), dtype)
    return placed(loss, policy), (params, images, array((batch,), I32))


def unet(form, policy, scale):
    """Down and up again with skips between equal sizes; every block its own shape, so no scan."""
    batch, pixels, width, dtype = {"cpu": (4, 64, 32, F32), "tpu": (16, 256, 64, BF16)}[scale]
    widths = (width, 2 * width, 4 * width)

    def block(x, p):
        h = jax.nn.silu(group_norm(convolution(x, p["k1"]), p["g1"], 8))
        h = checkpoint_name(convolution(h, p["k2"]), "kept")
        return jax.nn.silu(group_norm(h, p["g2"], 8))

    body = checkpointed(block, policy)

    def halved(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def doubled(x):
        return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)

    def loss(params, noisy, clean):
        x, skips = noisy, []
        for p in params["down"]:
            x = body(x, p)
            skips.append(x)
            x = halved(x)
        x = body(x, params["middle"])
        for p, skip in zip(params["up"], reversed(skips), strict=True):
            x = body(jnp.concatenate([doubled(x), skip], axis=-1), p)
        return mean_square(convolution(x, params["last"]) - clean)

    def kernels(before, after):
        return weights(
            dtype, k1=(3, 3, before, after), g1=(after,), k2=(3, 3, after, after), g2=(after,)
        )

    middle = 2 * widths[-1]
    params = {
        "down": [kernels(a, b) for a, b in itertools.pairwise((3, *widths))],
        "middle": kernels(widths[-1], middle),
        "up": [
            kernels(below + here, here)
            for below, here in zip((middle, *widths[:0:-1]), widths[::-1], strict=True)
        ],
        "last": array((1, 1, width, 3), dtype),
    }
    images = array((batch, pixels, pixels, 3), dtype)
    return placed(loss, policy), (params, images, images)


def lstm(form, policy, scale):
    """Layers of a recurrence over time; a checkpoint stands at each step, within two scans."""
    batch, time, width, depth, dtype = {
        "cpu": (64, 64, 256, 3, F32),
        "tpu": (256, 512, 1024, 4, F32),
    }[scale]

    def step(state, x, p):
        carried, out = state
        gates = checkpoint_name(x @ p["input"] + out @ p["recurrent"] + p["bias"], "kept")
        enter, forget, candidate, leave = jnp.split(gates, 4, axis=-1)
        carried = jax.nn.sigmoid(forget) * carried + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
        return carried, jax.nn.sigmoid(leave) * jnp.tanh(carried)

    body = checkpointed(step, policy)

    def layer(xs, p):
        def at(state, x):
            state = body(state, x, p)
            return state, state[1]

        zero = jnp.zeros((batch, width), dtype)
        return lax.scan(at, (zero, zero), xs)[1]

    def loss(params, xs, y):
        return mean_square(through(layer, xs, params)[-1] - y)

    params = layers(
        form,
        depth,
        dtype,
        input=(width, 4 * width),
        recurrent=(width, 4 * width),
        bias=(4 * width,),
    )
    xs, y = array((time, batch, width), dtype), array((batch, width), dtype)
    return placed(loss, policy), (params, xs, y)


def chunked(form, policy, scale):
    """A gated recurrence whose time is cut in chunks: checkpoints around scans, not in them."""
    batch, chunks, length, width, dtype = {
        "cpu": (64, 16, 16, 256, F32),
        "tpu": (2048, 16, 32, 1024, BF16),
    }[scale]

    def step(h, x, p):
        both = jax.nn.sigmoid(x @ p["xg"] + h @ p["hg"])
        reset, update = jnp.split(both, 2, axis=-1)
        fresh = jnp.tanh(x @ p["xc"] + (reset * h) @ p["hc"])
        return update * h + (1 - update) * fresh

    def chunk(h, xs, p):
        h, _ = lax.scan(lambda h, x: (step(h, x, p), None), h, xs)
        return checkpoint_name(h, "kept")

    body = checkpointed(chunk, policy)

    def loss(params, xs):
        h = jnp.zeros((batch, width), dtype)
        if form == "unroll":
            for part in range(chunks):
                h = body(h, xs[part], params)
        else:
            h, _ = lax.scan(lambda h, part: (body(h, part, params), None), h, xs)
        return mean_square(h)

    params = weights(
        dtype,
        xg=(width, 2 * width),
        hg=(width, 2 * width),
        xc=(width, width),
        hc=(width, width),
    )
    return placed(loss, policy), (params, array((chunks, length, batch, width), dtype))


def moe(form, policy, scale):
    """Each token to one of several experts of limited capacity, dispatched by one-hot einsums."""
    groups, tokens, width, wide, experts, depth, dtype = {
        "cpu": (4, 256, 256, 512, 8, 4, F32),
        "tpu": (16, 1024, 1024, 4096, 16, 6, BF16),
    }[scale]
    capacity = 2 * tokens // experts

    def layer(x, p):
        h = rms_norm(x, p["g"])
        shares = jax.nn.softmax((h @ p["route"]).astype(F32), axis=-1)
        chosen = jax.nn.one_hot(jnp.argmax(shares, axis=-1), experts, dtype=F32)
        place = jnp.cumsum(chosen, axis=1) * chosen - 1.0
        slots = jax.nn.one_hot(place.astype(I32), capacity, dtype=dtype)
        weight = jnp.max(shares, axis=-1).astype(dtype)
        entered = jnp.einsum("gtec,gtd->egcd", slots, h)
        hidden = checkpoint_name(jnp.einsum("egcd,edf->egcf", entered, p["up"]), "kept")
        left = jnp.einsum("egcf,efd->egcd", jax.nn.relu(hidden), p["down"])
        return x + weight[..., None] * jnp.einsum("gtec,egcd->gtd", slots, left)

    body = checkpointed(layer, policy)

    def loss(params, x):
        return mean_square(through(body, x, params))

    params = layers(
        form,
        depth,
        dtype,
        g=(width,),
        route=(width, experts),
        up=(experts, width, wide),
        down=(experts, wide, width),
    )
    return placed(loss, policy), (params, array((groups, tokens, width), dtype))


def soft_moe(form, policy, scale):
    """Every expert for every token, weighted: batched dots whose outputs dwarf the rest."""
    tokens, width, wide, experts, depth, dtype = {
        "cpu": (1024, 256, 256, 4, 4, F32),
        "tpu": (32768, 1024, 1024, 8, 4, F32),
    }[scale]

    def layer(x, p):
        shares = jax.nn.softmax(x @ p["route"], axis=-1)
        hidden = checkpoint_name(jnp.einsum("td,edf->etf", x, p["up"]), "kept")
        out = jnp.einsum("etf,efd->etd", jnp.tanh(hidden), p["down"])
        return x + jnp.einsum("te,etd->td", shares, out)

    body = checkpointed(layer, policy)

    def loss(params, x):
        return mean_square(through(body, x, params))

    params = layers(
        form,
        depth,
        dtype,
        route=(width, experts),
        up=(experts, width, wide),
        down=(experts, wide, width),
    )
    return placed(loss, policy), (params, array((tokens, width), dtype))


def mixer(form, policy, scale):
    """MLPs over positions and over channels in turn: transposed operands, no attention."""
    batch, places, width, depth, dtype = {
        "cpu": (16, 128, 256, 6, F32),
        "tpu": (64, 1024, 1024, 8, BF16),
    }[scale]

    def layer(x, p):
        across = layer_norm(x, p["g1"]).transpose(0, 2, 1)
        across = jax.nn.gelu(across @ p["p1"] + p["c1"]) @ p["p2"] + p["c2"]
        x = x + checkpoint_name(across.transpose(0, 2, 1), "kept")
        return x + jax.nn.gelu(layer_norm(x, p["g2"]) @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]

    body = checkpointed(layer, policy)

    def loss(params, x, y):
        return mean_square(jnp.mean(through(body, x, params), axis=1) - y)

    params = layers(
        form,
        depth,
        dtype,
        g1=(width,),
        p1=(places, 2 * places),
        c1=(2 * places,),
        p2=(2 * places, places),
        c2=(places,),
        g2=(width,),
        w1=(width, 4 * width),
        b1=(4 * width,),
        w2=(4 * width, width),
        b2=(width,),
    )
    x, y = array((batch, places, width), dtype), array((batch, width), dtype)
    return placed(loss, policy), (params, x, y)


def groups(form, policy, scale):
    """Groups of layers: always a scan within a group; a checkpoint stands around each group."""
    batch, sequence, width, heads, count, depth, dtype = {
        "cpu": (2, 256, 256, 4, 3, 3, F32),
        "tpu": (8, 1024, 1024, 8, 4, 3, F32),
    }[scale]
    layer = functools.partial(transformer_layer, heads=heads)

    def group(x, stacked):
        return checkpoint_name(through(layer, x, stacked), "kept")

    body = checkpointed(group, policy)

    def loss(params, x):
        return mean_square(through(body, x, params))

    shapes = {name: (depth, *shape) for name, shape in transformer_shapes(width).items()}
    params = layers(form, count, dtype, **shapes)
    return placed(loss, policy), (params, array((batch, sequence, width), dtype))


def nested(form, policy, scale):
    """Groups of layers with a checkpoint around each layer and one, saving nothing, around each
    group."""
    batch, width, count, depth, dtype = {
        "cpu": (1024, 512, 4, 4, F32),
        "tpu": (32768, 2048, 4, 4, F32),
    }[scale]

    def layer(x, p):
        return x + jnp.tanh(checkpoint_name(x @ p["w1"], "kept")) @ p["w2"]

    body = checkpointed(layer, policy)
    group = functools.partial(through, body)
    outer = group if policy in {"none", "whole"} else jax.checkpoint(group)

    def loss(params, x):
        return mean_square(through(outer, x, params))

    params = layers(form, count, dtype, w1=(depth, width, width), w2=(depth, width, width))
    return placed(loss, policy), (params, array((batch, width), dtype))


def denoiser(form, policy, scale):
    """Blocks of a convolution and of attention over the pixels, modulated by a time embedding."""
    batch, pixels, width, heads, depth, dtype = {
        "cpu": (2, 16, 128, 4, 4, F32),
        "tpu": (16, 32, 512, 8, 6, F32),
    }[scale]

    def block(x, p, when):
        scale, shift = jnp.split(when @ p["time"], 2, axis=-1)
        h = group_norm(x, p["g1"], 8) * (1 + scale[:, None, None]) + shift[:, None, None]
        x = x + checkpoint_name(convolution(jax.nn.silu(h), p["k"]), "kept")
        flat = group_norm(x, p["g2"], 8).reshape(batch, pixels * pixels, width)
        return x + self_attention(flat, p["qkv"], p["out"], heads).reshape(x.shape)

    body = checkpointed(block, policy)

    def loss(params, noisy, noise, time):
        frequency = jnp.exp(-jnp.arange(width // 2, dtype=dtype) / width)
        angle = time[:, None] * frequency
        when = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
        x = convolution(noisy, params["enter"])
        x = through(lambda x, p: body(x, p, when), x, params["blocks"])
        return mean_square(convolution(x, params["leave"]) - noise)

    params = weights(dtype, enter=(3, 3, 4, width), leave=(3, 3, width, 4))
    params["blocks"] = layers(
        form,
        depth,
        dtype,
        time=(width, 2 * width),
        g1=(width,),
        k=(3, 3, width, width),
        g2=(width,),
        qkv=(width, 3 * width),
        out=(width, width),
    )
    images = array((batch, pixels, pixels, 4), dtype)
    return placed(loss, policy), (params, images, images, array((batch,), dtype))


def autoencoder(form, policy, scale):
    """Linear layers and relu, narrowing and widening; no two of one shape, so no scan."""
    batch, widths, dtype = {
        "cpu": (2048, (784, 1024, 512, 256, 64), F32),
        "tpu": (131072, (2048, 4096, 2048, 1024, 256), BF16),
    }[scale]
    sizes = (*widths, *widths[-2::-1])

    def layer(x, p):
        return jax.nn.relu(checkpoint_name(x @ p["w"], "kept") + p["b"])

    body = checkpointed(layer, policy)

    def loss(params, x):
        *inner, last = params
        return mean_square(through(body, x, inner) @ last["w"] + last["b"] - x)

    params = [weights(dtype, w=(a, b), b=(b,)) for a, b in itertools.pairwise(sizes)]
    return placed(loss, policy), (params, array((batch, widths[0]), dtype))


def towers(form, policy, scale):
    """Two towers, one of features and one of tokens, drawn together by a contrastive loss."""
    batch, features, words, length, width, depth, dtype = {
        "cpu": (1024, 512, 4096, 16, 512, 5, F32),
        "tpu": (16384, 4096, 65536, 32, 2048, 6, F32),
    }[scale]

    def layer(x, p):
        h = checkpoint_name(layer_norm(x, p["g"]) @ p["up"], "kept")
        return x + jnp.tanh(h) @ p["down"]

    body = checkpointed(layer, policy)

    def normalised(x):
        return x * lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)

    def loss(params, seen, tokens):
        a = normalised(through(body, seen @ params["enter"], params["first"]))
        read = jnp.mean(params["words"][tokens], axis=1)
        b = normalised(through(body, read, params["second"]))
        logits = (a @ b.T) * jnp.exp(params["warmth"])
        labels = jnp.arange(batch)
        return (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2

    params = weights(dtype, enter=(features, width), words=(words, width), warmth=())
    for tower in ("first", "second"):
        params[tower] = layers(
            form, depth, dtype, g=(width,), up=(width, 2 * width), down=(2 * width, width)
        )
    args = params, array((batch, features), dtype), array((batch, length), I32)
    return placed(loss, policy), args


def graph(form, policy, scale):
    """Messages along the edges of a graph: gathers, scatters and a value per edge."""
    nodes, edges, width, depth, dtype = {
        "cpu": (2048, 16384, 128, 4, F32),
        "tpu": (65536, 1048576, 256, 4, F32),
    }[scale]

    def layer(x, p, ends):
        both = jnp.concatenate([x[ends[0]], x[ends[1]]], axis=-1)
        message = jnp.tanh(checkpoint_name(both @ p["message"], "kept"))
        received = jax.ops.segment_sum(message, ends[1], nodes)
        return x + jax.nn.relu(received @ p["update"])

    body = checkpointed(layer, policy)

    def loss(params, x, ends):
        return mean_square(through(lambda x, p: body(x, p, ends), x, params))

    params = layers(form, depth, dtype, message=(2 * width, width), update=(width, width))
    args = params, array((nodes, width), dtype), array((2, edges), I32)
    return placed(loss, policy), args


# --- the collection --------------------------------------------------------------------------

BOTH, UNROLLED = ("scan", "unroll"), ("unroll",)
USUAL = ("none", "dots", "dots_no_batch", "nothing", "names", "whole")
WITHOUT_BATCH = ("none", "dots", "nothing", "names", "whole")  # no dot has batch dimensions
AROUND_SCANS = ("none", "dots", "nothing", "names", "whole")
CONVOLVED = ("none", "nothing", "names", "whole")  # no dot in a block

PLACEMENTS = (
    (mlp, BOTH, WITHOUT_BATCH),
    (sine, BOTH, WITHOUT_BATCH),
    (mha, BOTH, (*USUAL, "everything")),
    (gqa, BOTH, USUAL),
    (decoder, BOTH, USUAL),
    (vit, BOTH, USUAL),
    (convnet, BOTH, CONVOLVED),
    (unet, UNROLLED, CONVOLVED),
    (lstm, BOTH, WITHOUT_BATCH),
    (chunked, BOTH, AROUND_SCANS),
    (moe, BOTH, USUAL),
    (soft_moe, BOTH, USUAL),
    (mixer, BOTH, USUAL),
    (groups, BOTH, (*AROUND_SCANS, "dots_no_batch")),
    (nested, BOTH, WITHOUT_BATCH),
    (denoiser, BOTH, USUAL),
    (autoencoder, UNROLLED, WITHOUT_BATCH),
    (towers, BOTH, WITHOUT_BATCH),
    (graph, BOTH, WITHOUT_BATCH),
)
WITHOUT_BARRIER = (
    (mha, "scan", "nothing+cse"),
    (mha, "unroll", "nothing+cse"),
    (mlp, "unroll", "nothing+cse"),
    (gqa, "scan", "dots_no_batch+cse"),
    (lstm, "scan", "nothing+cse"),
)
CORE = frozenset(
    """
    mlp/scan/none mlp/scan/nothing mlp/unroll/none mlp/unroll/dots mlp/unroll/nothing+cse
    sine/unroll/none sine/unroll/whole sine/scan/dots
    mha/scan/none mha/scan/dots mha/scan/dots_no_batch mha/scan/nothing mha/scan/everything
    mha/unroll/none mha/unroll/dots_no_batch mha/unroll/nothing
    gqa/scan/none gqa/scan/dots_no_batch gqa/scan/names gqa/unroll/nothing
    decoder/scan/none decoder/scan/dots decoder/scan/whole
    vit/scan/nothing vit/unroll/names
    convnet/unroll/none convnet/unroll/nothing convnet/scan/names
    unet/unroll/none unet/unroll/nothing
    lstm/scan/none lstm/unroll/nothing lstm/unroll/dots
    chunked/scan/nothing
    moe/scan/none moe/scan/dots moe/unroll/nothing
    soft_moe/scan/dots_no_batch
    mixer/scan/none mixer/unroll/dots
    groups/scan/none groups/scan/nothing groups/unroll/dots
    nested/scan/nothing
    denoiser/scan/none denoiser/unroll/nothing
    autoencoder/unroll/none autoencoder/unroll/dots
    towers/scan/none towers/unroll/nothing
    graph/scan/none graph/scan/nothing
    """.split()
)


def case(builder, form, policy):
    model = builder.__name__
    name = f"{model}/{form}/{policy}"
    return Case(model, form, policy, functools.partial(builder, form, policy), name in CORE)


CASES: tuple[Case, ...] = (
    *(
        case(builder, form, policy)
        for builder, forms, policies in PLACEMENTS
        for form, policy in itertools.product(forms, policies)
    ),
    *(case(*placement) for placement in WITHOUT_BARRIER),
)
