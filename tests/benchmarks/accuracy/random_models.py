"""Random models of realistic layers: dense, attention, convolution, recurrent, gather, normalised.

`model(seed)` is the same for a seed in every run: a loss, or a training step, with abstract inputs
of some GiB. It is drawn without any knowledge of what a compiler makes of it. What is drawn: the
kind of data (sequences, images, rows), the blocks of a layer, their widths, activations,
normalisation and residual connections; how many layers, in a scan or one after the other; the
dtype (`mixed`: parameters in float32, activations in bfloat16); the loss; whether it is a step
with an optimizer that is given its state, over micro-batches or not; and two ways to place
checkpoints, which are two programs.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from tests.benchmarks import zoo
from tests.benchmarks.zoo import BF16, F32, I32, array

MIB = 1 << 20
# What a model without checkpoints may roughly keep.
_BUDGET = 9 << 30

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "exact gelu": functools.partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
    "softplus": jax.nn.softplus,
    "squared relu": lambda h: jnp.square(jax.nn.relu(h)),
    "sigmoid": jax.nn.sigmoid,
    "elu": jax.nn.elu,
}
# Where a checkpoint is and what it saves; those of `zoo.POLICIES` stand at each layer.
PLACEMENTS = (
    *("none", "nothing", "dots", "dots_no_batch", "names", "everything"),
    *("whole", "each block", "pairs"),
)


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a layer, from activations to activations of the same shape.

    Attributes:
      text: what it is.
      shapes: its parameters.
      apply: maps the activations, its parameters and what a layer is given besides (`key`,
        `neighbours`).
      units: how many values of the size of its input it roughly keeps.
    """

    text: str
    shapes: dict[str, tuple[int, ...]]
    apply: Callable[..., Any]
    units: float


@dataclass(frozen=True, slots=True)
class Model:
    """A random model.

    Attributes:
      text: what was drawn.
      placements: the two placements of checkpoints.
      is_step: whether it is a whole training step, else a loss.
      build: from a placement to the function and its abstract inputs.
    """

    text: str
    placements: tuple[str, str]
    is_step: bool
    build: Callable[[str], tuple[Callable[..., Any], tuple[Any, ...]]]


def _activation(rng: random.Random) -> tuple[str, Callable[[Any], Any]]:
    return rng.choice(list(ACTIVATIONS.items()))


# --- blocks: of any data ---------------------------------------------------------------------


def dense(rng, width, shape):
    wide = rng.choice((1, 2, 4)) * width
    name, act = _activation(rng)
    bias = rng.random() < 0.5
    shapes = {"up": (width, wide), "down": (wide, width)}
    if bias:
        shapes["b1"], shapes["b2"] = (wide,), (width,)

    def apply(x, p, extra):
        h = x @ p["up"]
        h = checkpoint_name(h + p["b1"] if bias else h, "kept")
        h = act(h) @ p["down"]
        return h + p["b2"] if bias else h

    return Block(f"dense {wide} {name}", shapes, apply, 1 + 2.5 * wide / width)


def gated(rng, width, shape):
    wide = rng.choice((1, 2, 3)) * width
    name, act = _activation(rng)
    together = rng.random() < 0.5
    shapes = {"down": (wide, width)}
    shapes |= {"in": (width, 2 * wide)} if together else {"a": (width, wide), "b": (width, wide)}

    def apply(x, p, extra):
        a, b = jnp.split(x @ p["in"], 2, axis=-1) if together else (x @ p["a"], x @ p["b"])
        return checkpoint_name(act(a) * b, "kept") @ p["down"]

    return Block(f"gated {wide} {name}", shapes, apply, 1 + 4 * wide / width)


def dropped(rng, width, shape):
    rate = rng.choice((0.1, 0.5))
    name, act = _activation(rng)

    def apply(x, p, extra):
        h = act(x @ p["w"] + p["b"])
        keep = jax.random.bernoulli(extra["key"], 1 - rate, h.shape)
        return checkpoint_name(jnp.where(keep, h / (1 - rate), 0), "kept")

    return Block(f"dropout {rate} {name}", {"w": (width, width), "b": (width,)}, apply, 3)


def bottleneck(rng, width, shape):
    """A dense layer through few channels and a gate of the mean over all positions."""
    few = max(width // rng.choice((4, 8, 16)), 16)
    name, act = _activation(rng)

    def apply(x, p, extra):
        pooled = x.mean(axis=tuple(range(1, x.ndim - 1)), keepdims=True)
        gate = jax.nn.sigmoid(act(pooled @ p["a"]) @ p["b"])
        return checkpoint_name(x * gate, "kept") @ p["w"]

    shapes = {"a": (width, few), "b": (few, width), "w": (width, width)}
    return Block(f"bottleneck {few} {name}", shapes, apply, 3)


# --- of sequences ----------------------------------------------------------------------------


def attention(rng, width, shape):
    size = rng.choice((64, 128))
    heads = width // size
    groups = rng.choice((1, 1, 2, 4))
    causal, wide = rng.random() < 0.6, rng.random() < 0.5
    few = max(heads // groups, 1)
    shapes = {"q": (width, width), "k": (width, few * size), "v": (width, few * size)}
    shapes["o"] = (width, width)

    def apply(x, p, extra):
        batch, length, _ = x.shape
        q = (x @ p["q"]).reshape(batch, length, heads, size)
        k = (x @ p["k"]).reshape(batch, length, few, size)
        v = (x @ p["v"]).reshape(batch, length, few, size)
        if few < heads:
            k, v = (jnp.repeat(a, heads // few, axis=2) for a in (k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(size)
        scores = scores.astype(F32) if wide else scores
        if causal:
            seen = jnp.tril(jnp.ones((length, length), bool))
            scores = jnp.where(seen, scores, jnp.finfo(scores.dtype).min)
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        mixed = checkpoint_name(jnp.einsum("bhqk,bkhd->bqhd", weights, v), "kept")
        return mixed.reshape(x.shape) @ p["o"]

    how = ("causal " if causal else "") + ("in float32" if wide else "")
    units = 4 + 3 * heads * shape[1] / width
    return Block(f"attention {heads}x{size} of {few} {how}".strip(), shapes, apply, units)


def recurrent(rng, width, shape):
    """A gated recurrence over time, with a dot in each step or without."""
    has_dot = rng.random() < 0.5
    shapes = {"in": (width, 2 * width), "out": (width, width)}
    if has_dot:
        shapes["h"] = (width, width)

    def apply(x, p, extra):
        values = jnp.moveaxis(x @ p["in"], 1, 0)

        def step(h, u):
            z, c = jnp.split(u, 2, axis=-1)
            z = jax.nn.sigmoid(z + h @ p["h"] if has_dot else z)
            h = z * h + (1 - z) * jnp.tanh(c)
            return h, h

        _, hs = lax.scan(step, jnp.zeros(values.shape[1:2] + x.shape[2:], x.dtype), values)
        return checkpoint_name(jnp.moveaxis(hs, 0, 1), "kept") @ p["out"]

    return Block("recurrence" + " with dots" * has_dot, shapes, apply, 8)


def depthwise(rng, width, shape):
    """A causal convolution over time, one filter a channel."""
    taps = rng.choice((3, 4, 7))
    name, act = _activation(rng)

    def apply(x, p, extra):
        h = lax.conv_general_dilated(
            x,
            p["k"],
            (1,),
            [(taps - 1, 0)],
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=width,
        )
        return checkpoint_name(act(h), "kept") @ p["w"]

    shapes = {"k": (taps, 1, width), "w": (width, width)}
    return Block(f"depthwise {taps} {name}", shapes, apply, 3)


def shifted(rng, width, shape):
    """Mixes each position with the one before it, as in RWKV, and gates."""
    name, act = _activation(rng)

    def apply(x, p, extra):
        before = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        mixed = x * p["m"] + before * (1 - p["m"])
        return jax.nn.sigmoid(mixed @ p["r"]) * (act(checkpoint_name(mixed @ p["k"], "kept")))

    shapes = {"m": (width,), "r": (width, width), "k": (width, width)}
    return Block(f"shifted {name}", shapes, apply, 5)


# --- of images -------------------------------------------------------------------------------


def convolved(rng, width, shape):
    name, act = _activation(rng)
    norm = rng.choice(("batch", "group"))

    def apply(x, p, extra):
        h = checkpoint_name(zoo.convolution(x, p["k1"]), "kept")
        h = zoo.batch_norm(h, p["g"], p["b"]) if norm == "batch" else zoo.group_norm(h, p["g"], 8)
        return zoo.convolution(act(h), p["k2"])

    kernel = (3, 3, width, width)
    shapes = {"k1": kernel, "k2": kernel, "g": (width,), "b": (width,)}
    return Block(f"convolutions {norm} norm {name}", shapes, apply, 5)


def separable(rng, width, shape):
    name, act = _activation(rng)
    side, wide = rng.choice((3, 5, 7)), rng.choice((2, 4)) * width

    def apply(x, p, extra):
        h = lax.conv_general_dilated(
            x,
            p["k"],
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=width,
        )
        h = checkpoint_name(zoo.layer_norm(h, p["g"]) @ p["up"], "kept")
        return act(h) @ p["down"]

    shapes = {"k": (side, side, 1, width), "g": (width,)}
    shapes |= {"up": (width, wide), "down": (wide, width)}
    return Block(f"separable {side} {wide} {name}", shapes, apply, 3 + 2.5 * wide / width)


# --- of rows ---------------------------------------------------------------------------------


def messages(rng, width, shape):
    """Gathers rows of neighbours and adds up what comes of them."""
    name, act = _activation(rng)

    def apply(x, p, extra):
        sent = act(jnp.concatenate([x, x[extra["neighbours"]]], axis=-1) @ p["w"])
        found = jax.ops.segment_sum(sent, extra["neighbours"], x.shape[0])
        return checkpoint_name(found, "kept") @ p["o"]

    return Block(f"messages {name}", {"w": (2 * width, width), "o": (width, width)}, apply, 6)


def experts(rng, width, shape):
    """A softmax over few experts, each a part of the channels."""
    count = rng.choice((4, 8))
    name, act = _activation(rng)

    def apply(x, p, extra):
        gates = jax.nn.softmax(x @ p["g"], axis=-1)
        h = checkpoint_name(jnp.einsum("...d,edh->...eh", x, p["up"]), "kept")
        return jnp.einsum("...eh,...e,ehd->...d", act(h), gates, p["down"])

    each = width // 2
    shapes = {"g": (width, count), "up": (count, width, each), "down": (count, each, width)}
    return Block(f"experts {count} {name}", shapes, apply, 2 + 1.5 * count)


# --- layers ----------------------------------------------------------------------------------

BLOCKS = {
    "sequence": (dense, dense, gated, attention, attention, recurrent, depthwise, shifted, dropped),
    "image": (convolved, convolved, separable, bottleneck, dense),
    "rows": (dense, dense, gated, dropped, messages, experts, bottleneck),
}
NORMS = {
    "layer norm": zoo.layer_norm,
    "rms norm": zoo.rms_norm,
    "layer norm in float32": lambda x, g: zoo.layer_norm(x.astype(F32), g).astype(x.dtype),
    "none": lambda x, g: x,
}
CONNECTIONS = {
    "before": lambda f, norm, x: x + f(norm(x)),
    "after": lambda f, norm, x: norm(x + f(x)),
    "scaled": lambda f, norm, x: (x + 0.5 * f(norm(x))).astype(x.dtype),
    "no residual": lambda f, norm, x: f(norm(x)),
}


@dataclass(frozen=True, slots=True)
class _Stack:
    """What was drawn of a model's layers."""

    blocks: tuple[Block, ...]
    norm: str
    connection: str
    depth: int
    is_scan: bool
    prevent_cse: bool

    def shapes(self, width: int) -> dict[str, dict[str, tuple[int, ...]]]:
        return {f"b{i}": {**b.shapes, "gain": (width,)} for i, b in enumerate(self.blocks)}

    def layer(self, x, p, extra, placement, cast):
        for i, block in enumerate(self.blocks):

            def one(x, q, key, i=i, block=block):
                q = jax.tree.map(cast, q)
                given = {**extra, "key": jax.random.fold_in(key, i)}
                norm = lambda y: NORMS[self.norm](y, q["gain"])
                f = functools.partial(block.apply, p=q, extra=given)
                return CONNECTIONS[self.connection](f, norm, x).astype(x.dtype)

            if placement == "each block":
                one = jax.checkpoint(one, prevent_cse=self.prevent_cse)
            x = one(x, p[f"b{i}"], extra["key"])
        return x

    def through(self, x, layers, keys, extra, placement, cast):
        def body(x, p, key):
            return self.layer(x, p, {**extra, "key": key}, placement, cast)

        if placement in zoo.POLICIES:
            policy = zoo.POLICIES[placement]
            body = jax.checkpoint(body, policy=policy, prevent_cse=self.prevent_cse)
        if placement == "pairs":
            return self._in_pairs(body, x, layers, keys)
        if self.is_scan:
            return lax.scan(lambda x, pk: (body(x, *pk), None), x, (layers, keys))[0]
        for i, p in enumerate(layers):
            x = body(x, p, keys[i])
        return x

    def _in_pairs(self, body, x, layers, keys):
        def two(x, p, q, key):
            return body(body(x, p, key[0]), q, key[1])

        two = jax.checkpoint(two, prevent_cse=self.prevent_cse)
        keys = keys.reshape(-1, 2)
        if self.is_scan:
            pairs = jax.tree.map(lambda a: a.reshape(-1, 2, *a.shape[1:]), layers)
            first, second = (jax.tree.map(lambda a, i=i: a[:, i], pairs) for i in (0, 1))
            scanned = (first, second, keys)
            return lax.scan(lambda x, each: (two(x, *each), None), x, scanned)[0]
        for i in range(0, self.depth, 2):
            x = two(x, layers[i], layers[i + 1], keys[i // 2])
        return x


# --- models ----------------------------------------------------------------------------------


def model(seed: int) -> Model:
    """Return the random model of a seed."""
    rng = random.Random(f"accuracy {seed}")
    data = rng.choice(("sequence", "sequence", "sequence", "image", "rows"))
    dtype = rng.choice(("float32", "bfloat16", "mixed"))
    itemsize = 4 if dtype == "float32" else 2
    unit = rng.choice((16, 32, 64)) * MIB
    if data == "sequence":
        width, length = rng.choice((512, 1024, 2048)), rng.choice((256, 512, 1024))
        shape = (max(unit // (width * length * itemsize), 1), length, width)
    elif data == "image":
        width, side = rng.choice((64, 128, 256)), rng.choice((28, 32, 56))
        shape = (max(unit // (width * side * side * itemsize), 1), side, side, width)
    else:
        width = rng.choice((256, 512, 1024, 2048))
        shape = (unit // (width * itemsize), width)
    blocks = tuple(
        rng.choice(BLOCKS[data])(rng, width, shape) for _ in range(rng.choice((1, 2, 2, 3)))
    )
    is_scan = rng.random() < 0.5
    depth = rng.choice((4, 6, 8, 12, 16)) if is_scan else rng.choice((2, 4, 4, 6))
    each = math.prod(shape) * itemsize * sum(block.units + 2 for block in blocks)
    depth = max(2, 2 * min(depth // 2, int(_BUDGET / each / 2)))
    norm = rng.choice(tuple(NORMS))
    connection = rng.choice(("before", "before", "before", "after", "scaled", "no residual"))
    stack = _Stack(blocks, norm, connection, depth, is_scan, not (is_scan and rng.random() < 0.7))
    head = rng.choice(("mean square", "cross entropy"))
    classes = rng.choice((8192, 32768)) if data == "sequence" else 1024
    kind = rng.choice(("loss", "loss", "loss", "step", "step", "accumulated"))
    optimizer = rng.choice(("momentum", "adam", "adam", "clipped adam"))
    placements = tuple(rng.sample(PLACEMENTS, 2))
    if rng.random() < 0.6 and "none" not in placements:
        placements = (placements[0], "none")
    parts = (
        f"{data} {shape} {dtype}",
        " + ".join(block.text for block in blocks),
        f"{norm}, {connection}",
        f"{depth} layers {'in a scan' if is_scan else 'unrolled'}",
        f"{head} {classes}" if head == "cross entropy" else head,
        kind if kind == "loss" else f"{kind} {optimizer}",
    )
    build = functools.partial(_built, stack, data, shape, dtype, head, classes, kind, optimizer)
    return Model("; ".join(parts), placements, kind != "loss", build)


def _built(stack, data, shape, dtype, head, classes, kind, optimizer, placement):
    width = shape[-1]
    kept = F32 if dtype in ("float32", "mixed") else BF16
    used = F32 if dtype == "float32" else BF16

    def cast(a):
        return a.astype(used)

    shapes = stack.shapes(width)
    leading = (stack.depth,) if stack.is_scan else ()
    layer = jax.tree.map(
        lambda s: array((*leading, *s), kept), shapes, is_leaf=lambda s: isinstance(s, tuple)
    )
    has_ids = data == "sequence" and head == "cross entropy"
    params = {"layers": layer if stack.is_scan else [layer] * stack.depth}
    params["gain"] = array((width,), kept)
    batch = {"x": array(shape[:2], I32) if has_ids else array((*shape[:-1], width), used)}
    if has_ids:
        params["embedding"] = array((classes, width), kept)
    if head == "cross entropy":
        labels = shape[:2] if data == "sequence" else shape[:1]
        params["head"] = array((width, classes), kept)
        batch["y"] = array(labels, I32)
    else:
        batch["y"] = array(shape, used)
    if data == "rows":
        batch["neighbours"] = array(shape[:1], I32)
    key = jax.eval_shape(lambda: jax.random.key(0))

    def loss(params, batch, key):
        x = batch["x"]
        x = cast(params["embedding"])[x] if has_ids else x
        extra = {"neighbours": batch.get("neighbours")}
        keys = jax.random.split(key, stack.depth)
        x = stack.through(x, params["layers"], keys, extra, placement, cast)
        x = zoo.layer_norm(x, cast(params["gain"]))
        if head == "mean square":
            return zoo.mean_square(x - batch["y"])
        if data == "image":
            x = x.mean(axis=(1, 2))
        return zoo.cross_entropy(x @ cast(params["head"]), batch["y"])

    loss = zoo.placed(loss, placement)
    if kind == "loss":
        return loss, (params, batch, key)
    state = {"mu": params, "count": array((), I32)}
    if optimizer != "momentum":
        state["nu"] = params
    if kind == "accumulated":
        batch = jax.tree.map(lambda a: array((4, *a.shape), a.dtype), batch)
    return _step(loss, kind, optimizer), (params, state, batch, key)


def _step(loss, kind, optimizer):
    """Return a training step that is given its parameters and the optimizer's state."""

    def gradients(params, batch, key):
        if kind == "step":
            return jax.value_and_grad(loss)(params, batch, key)

        def add(total, each):
            value, found = jax.value_and_grad(loss)(params, each, key)
            return jax.tree.map(jnp.add, total, found), value

        total, values = lax.scan(add, jax.tree.map(jnp.zeros_like, params), batch)
        return values.mean(), jax.tree.map(lambda g: g / 4, total)

    def step(params, state, batch, key):
        value, found = gradients(params, batch, key)
        if optimizer == "clipped adam":
            norm = jnp.sqrt(sum(jnp.sum(jnp.square(g.astype(F32))) for g in jax.tree.leaves(found)))
            scale = jnp.minimum(1.0, 1.0 / (norm + 1e-6))
            found = jax.tree.map(lambda g: (g * scale).astype(g.dtype), found)
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mu"], found)
        count = state["count"] + 1
        if optimizer == "momentum":
            new = {"mu": mu, "count": count}
            params = jax.tree.map(lambda p, m: p - 1e-3 * m, params, mu)
        else:
            nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["nu"], found)
            new = {"mu": mu, "nu": nu, "count": count}
            rate = (1e-3 * jnp.sqrt(1 - 0.999 ** count.astype(F32))).astype(F32)
            params = jax.tree.map(
                lambda p, m, v: (p - rate * m / (jnp.sqrt(v) + 1e-8)).astype(p.dtype),
                params,
                mu,
                nu,
            )
        return params, new, value

    return jax.jit(step, donate_argnums=(0, 1))
