"""Programs without a gradient: what people run to evaluate, decode, sample and simulate.

Some chains and simulations take the gradient of an energy at each step, and return none.

`PROGRAMS` are written here, `LIBRARY_PROGRAMS` are around released libraries, which are imported
when a program is built. Each takes gigabytes. They were written, and parted by `split.py`, before
any was compiled. A program returns a function and its abstract arguments.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32
Build = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
PROGRAMS: dict[str, Build] = {}
LIBRARY_PROGRAMS: dict[str, tuple[str, Build]] = {}


def program(name: str, programs: dict[str, Build] = PROGRAMS) -> Callable[[Build], Build]:
    """Return a decorator that registers a program written here."""

    def register(build: Build) -> Build:
        programs[name] = build
        return build

    return register


def library(
    name: str, package: str, programs: dict[str, tuple[str, Build]] = LIBRARY_PROGRAMS
) -> Callable[[Build], Build]:
    """Return a decorator that registers a program around a package."""

    def register(build: Build) -> Build:
        programs[name] = package, build
        return build

    return register


def array(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def ids(*shape: int) -> jax.ShapeDtypeStruct:
    return array(*shape, dtype=I32)


def key() -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key(0))


def _norm(x: jax.Array) -> jax.Array:
    wide = x.astype(F32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(x.dtype)


# --- language models -------------------------------------------------------------------------


def _block_weights(width: int, hidden: int, *lead: int, dtype: Any = BF16) -> dict[str, Any]:
    square = {name: array(*lead, width, width, dtype=dtype) for name in "qkvo"}
    up = array(*lead, width, hidden, dtype=dtype)
    return square | {"up": up, "down": array(*lead, hidden, width, dtype=dtype)}


def _attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: Any = None) -> jax.Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(v.dtype), v)


def _block(w: dict[str, Any], x: jax.Array, heads: int) -> jax.Array:
    y = _norm(x)
    split = lambda name: (y @ w[name]).reshape(*x.shape[:2], heads, -1)
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    x = x + _attend(split("q"), split("k"), split("v"), mask).reshape(x.shape) @ w["o"]
    return x + jax.nn.gelu(_norm(x) @ w["up"]) @ w["down"]


@program("lm-perplexity/none")
def lm_perplexity():
    def evaluate(params, tokens):
        x = params["embed"][tokens]
        for w in params["blocks"]:
            x = _block(w, x, 16)
        logits = (_norm(x[:, :-1]) @ params["embed"].T).astype(F32)
        picked = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        return jnp.sum(jax.nn.logsumexp(logits, -1) - picked, -1)

    params = {"embed": array(32000, 1024, dtype=BF16), "blocks": [_block_weights(1024, 4096)] * 6}
    return evaluate, (params, ids(16, 1024))


@program("lm-scanned-logits/none")
def lm_scanned_logits():
    def evaluate(params, tokens):
        x = params["embed"][tokens]
        x, _ = lax.scan(lambda x, w: (_block(w, x, 8), None), x, params["blocks"])
        return _norm(x) @ params["embed"].T

    params = {"embed": array(16384, 1024, dtype=BF16), "blocks": _block_weights(1024, 4096, 12)}
    return evaluate, (params, ids(32, 1024))


@program("encoder-pooled/none")
def encoder_pooled():
    def encode(blocks, x):
        for w in blocks:
            y = _norm(x)
            split = lambda name, y=y, w=w: (y @ w[name]).reshape(*y.shape[:2], 12, -1)
            x = x + _attend(split("q"), split("k"), split("v")).reshape(x.shape) @ w["o"]
            x = x + jax.nn.silu(_norm(x) @ w["up"]) @ w["down"]
        pooled = x.mean(1)
        return pooled / jnp.linalg.norm(pooled, axis=-1, keepdims=True)

    return encode, ([_block_weights(768, 3072, dtype=F32)] * 4, array(64, 1024, 768))


def _decode_layer(heads: int) -> Callable[..., Any]:
    def layer(w, keys, values, x, at):
        batch, width = x.shape
        y = _norm(x)
        split = lambda name: (y @ w[name]).reshape(batch, 1, heads, -1)
        keys = lax.dynamic_update_slice(keys, split("k"), (0, at, 0, 0))
        values = lax.dynamic_update_slice(values, split("v"), (0, at, 0, 0))
        mask = (jnp.arange(keys.shape[1]) <= at)[None, None, None]
        x = x + _attend(split("q"), keys, values, mask).reshape(batch, width) @ w["o"]
        return x + jax.nn.gelu(_norm(x) @ w["up"]) @ w["down"], keys, values

    return layer


def _decode_looped(**jitted: Any) -> Any:
    layer = _decode_layer(16)

    @functools.partial(jax.jit, **jitted)
    def decode(params, caches, token, at):
        x = params["embed"][token]
        new = []
        for w, (keys, values) in zip(params["blocks"], caches, strict=True):
            x, keys, values = layer(w, keys, values, x, at)
            new.append((keys, values))
        return (x @ params["embed"].T).argmax(-1), new

    params = {"embed": array(32000, 2048, dtype=BF16), "blocks": [_block_weights(2048, 8192)] * 8}
    cache = array(16, 2048, 16, 128, dtype=BF16)
    return decode, (params, [(cache, cache)] * 8, ids(16), ids())


@program("decode-looped/kept")
def decode_looped():
    return _decode_looped()


@program("decode-looped/donated")
def decode_looped_donated():
    return _decode_looped(donate_argnums=1)


def _decode_scanned(**jitted: Any) -> Any:
    layer = _decode_layer(8)

    @functools.partial(jax.jit, **jitted)
    def decode(params, cache, token, at):
        def one(x, each):
            w, keys, values = each
            x, keys, values = layer(w, keys, values, x, at)
            return x, (keys, values)

        x, cache = lax.scan(one, params["embed"][token], (params["blocks"], *cache))
        return x @ params["embed"].T, cache

    params = {"embed": array(32000, 1024, dtype=BF16), "blocks": _block_weights(1024, 4096, 12)}
    cache = array(12, 16, 4096, 8, 128, dtype=BF16)
    return decode, (params, (cache, cache), ids(16), ids())


@program("decode-scanned/kept")
def decode_scanned():
    return _decode_scanned()


@program("decode-scanned/donated")
def decode_scanned_donated():
    return _decode_scanned(donate_argnums=1)


@program("decode-carried/donated")
def decode_carried():
    """The cache of all layers is the carry of the loop over layers."""
    layer = _decode_layer(8)

    @functools.partial(jax.jit, donate_argnums=1)
    def decode(params, cache, token, at):
        def one(i, state):
            x, keys, values = state
            w = jax.tree.map(lambda a: a[i], params["blocks"])
            x, k, v = layer(w, keys[i], values[i], x, at)
            put = lax.dynamic_update_index_in_dim
            return x, put(keys, k, i, 0), put(values, v, i, 0)

        x, *cache = lax.fori_loop(0, 8, one, (params["embed"][token], *cache))
        return (x @ params["embed"].T).argmax(-1), tuple(cache)

    params = {"embed": array(32000, 1024, dtype=BF16), "blocks": _block_weights(1024, 4096, 8)}
    cache = array(8, 32, 2048, 8, 128, dtype=BF16)
    return decode, (params, (cache, cache), ids(32), ids())


@program("generate-tokens/none")
def generate_tokens():
    """A scan over tokens with the caches in the carry, made inside."""
    layer = _decode_layer(8)

    def generate(params, token, temperature_key):
        empty = jnp.zeros((32, 1024, 8, 128), BF16)

        def one(state, at):
            token, caches, rng = state
            x = params["embed"][token]
            new = []
            for w, (keys, values) in zip(params["blocks"], caches, strict=True):
                x, keys, values = layer(w, keys, values, x, at)
                new.append((keys, values))
            rng, own = jax.random.split(rng)
            logits = (x @ params["embed"].T).astype(F32)
            token = jax.random.categorical(own, logits)
            return (token, new, rng), token

        start = token, [(empty, empty)] * 8, temperature_key
        return lax.scan(one, start, jnp.arange(1024))[1]

    params = {"embed": array(16384, 1024, dtype=BF16), "blocks": [_block_weights(1024, 4096)] * 8}
    return generate, (params, ids(32), key())


@program("generate-until/none")
def generate_until():
    def generate(params, cache, x, length):
        def one(state):
            at, cache, x, total = state
            cache = lax.dynamic_update_slice(cache, x[:, None], (0, at, 0))
            scores = jax.nn.softmax(jnp.einsum("bd,btd->bt", x @ params["q"], cache))
            new = jnp.tanh(jnp.einsum("bt,btd->bd", scores, cache) @ params["o"])
            return at + 1, cache, new, total + jnp.sum(new * x)

        start = 0, cache, x, jnp.zeros(())
        return lax.while_loop(lambda s: (s[0] < length) & (s[3] < 1e6), one, start)[1:]

    params = {"q": array(1024, 1024), "o": array(1024, 1024)}
    return generate, (params, array(128, 4096, 1024), array(128, 1024), ids())


@program("prefill/none")
def prefill():
    def fill(params, tokens):
        x = params["embed"][tokens]

        def one(x, w):
            y = _norm(x)
            split = lambda name: (y @ w[name]).reshape(*x.shape[:2], 16, -1)
            keys, values = split("k"), split("v")
            mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
            x = x + _attend(split("q"), keys, values, mask).reshape(x.shape) @ w["o"]
            return x + jax.nn.gelu(_norm(x) @ w["up"]) @ w["down"], (keys, values)

        x, cache = lax.scan(one, x, params["blocks"])
        return x[:, -1] @ params["embed"].T, cache

    params = {"embed": array(32000, 2048, dtype=BF16), "blocks": _block_weights(2048, 8192, 16)}
    return fill, (params, ids(4, 2048))


@program("beam-search/donated")
def beam_search():
    layer = _decode_layer(8)

    @functools.partial(jax.jit, donate_argnums=1)
    def step(params, caches, tokens, totals, at):
        x = params["embed"][tokens.reshape(-1)]
        new = []
        for w, (keys, values) in zip(params["blocks"], caches, strict=True):
            x, keys, values = layer(w, keys, values, x, at)
            new.append((keys, values))
        scores = jax.nn.log_softmax((x @ params["embed"].T).astype(F32))
        scores = (totals.reshape(-1, 1) + scores).reshape(totals.shape[0], -1)
        totals, best = lax.top_k(scores, totals.shape[1])
        beams, tokens = best // params["embed"].shape[0], best % params["embed"].shape[0]

        def reorder(cache):
            split = cache.reshape(*totals.shape, *cache.shape[1:])
            index = beams[:, :, None, None, None]
            return jnp.take_along_axis(split, index, 1).reshape(cache.shape)

        return jax.tree.map(reorder, new), tokens, totals

    params = {"embed": array(16384, 1024, dtype=BF16), "blocks": [_block_weights(1024, 4096)] * 4}
    cache = array(64, 2048, 8, 128, dtype=BF16)
    return step, (params, [(cache, cache)] * 4, ids(16, 4), array(16, 4), ids())


@program("mixture-of-experts/none")
def mixture_of_experts():
    def apply(params, x):
        for w in params:
            gates, chosen = lax.top_k(jax.nn.softmax(x @ w["router"]), 2)
            one_hot = jax.nn.one_hot(chosen, 16, dtype=x.dtype)
            rank = jnp.cumsum(one_hot.reshape(-1, 16), 0).reshape(one_hot.shape) - 1
            slots = jax.nn.one_hot((rank * one_hot).sum(-1).astype(I32), 2560, dtype=x.dtype)
            send = jnp.einsum("tke,tkc->tec", one_hot, slots)
            inside = jnp.einsum("tec,td->ecd", send, x)
            inside = jnp.einsum("ecd,edh->ech", inside, w["up"])
            inside = jnp.einsum("ech,ehd->ecd", jax.nn.gelu(inside), w["down"])
            back = jnp.einsum("tke,tkc,tk->tec", one_hot, slots, gates)
            x = x + jnp.einsum("tec,ecd->td", back, inside)
        return x

    w = {
        "router": array(1024, 16, dtype=BF16),
        "up": array(16, 1024, 2048, dtype=BF16),
        "down": array(16, 2048, 1024, dtype=BF16),
    }
    return apply, ([w] * 3, array(16384, 1024, dtype=BF16))


@program("int8-weights/none")
def int8_weights():
    def apply(weights, x):
        for w, scale in weights:
            x = jax.nn.relu(x @ (w.astype(BF16) * scale))
        return x

    w = array(8192, 8192, dtype=jnp.int8), array(8192, dtype=BF16)
    return apply, ([w] * 12, array(32768, 8192, dtype=BF16))


# --- images and signals ----------------------------------------------------------------------


def _conv(x: jax.Array, w: jax.Array, stride: int = 1, dilation: int = 1) -> jax.Array:
    letters = "WIO" if w.ndim == 3 else "HWIO"
    spec = "NWC" if w.ndim == 3 else "NHWC"
    spatial = w.ndim - 2
    return lax.conv_general_dilated(
        x,
        w,
        (stride,) * spatial,
        "SAME",
        rhs_dilation=(dilation,) * spatial,
        dimension_numbers=(spec, letters, spec),
    )


@program("residual-network/none")
def residual_network():
    def apply(stages, x):
        for blocks in stages:
            for down, first, second in blocks:
                y = jax.nn.relu(_conv(x, first, 2 if down is not None else 1))
                y = _conv(y, second)
                x = jax.nn.relu(y + (x if down is None else _conv(x, down, 2)))
        return x.mean((1, 2))

    stages, before = [], 64
    for width in (128, 256, 512):
        same = array(3, 3, width, width)
        stages.append(
            [(array(1, 1, before, width), array(3, 3, before, width), same), (None, same, same)]
        )
        before = width
    return apply, (stages, array(256, 112, 112, 64))


@program("image-filters/none")
def image_filters():
    def apply(ws, x):
        for w in ws:
            x = jax.nn.gelu(_conv(x, w))
        return jnp.sum(x, (1, 2))

    ws = [array(3, 3, 3, 32), array(3, 3, 32, 32), array(3, 3, 32, 32)]
    return apply, (ws, array(128, 256, 256, 3))


@program("u-net/none")
def u_net():
    def apply(params, x):
        skips = []
        for first, second in params["down"]:
            x = jax.nn.silu(_conv(jax.nn.silu(_conv(x, first)), second))
            skips.append(x)
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
        for first, second in params["up"]:
            x = jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)
            x = jnp.concatenate([x, skips.pop()], -1)
            x = jax.nn.silu(_conv(jax.nn.silu(_conv(x, first)), second))
        return x

    widths = (32, 64, 128)
    down = [
        (array(3, 3, a, b), array(3, 3, b, b)) for a, b in zip((4, *widths), widths, strict=False)
    ]
    up = [
        (array(3, 3, a + b, b), array(3, 3, b, b))
        for a, b in zip((128, 128, 64), (128, 64, 32), strict=True)
    ]
    return apply, ({"down": down, "up": up}, array(64, 192, 192, 4))


@program("wave-net/none")
def wave_net():
    def apply(layers, x):
        total = 0.0
        for i, (gate, out) in enumerate(layers):
            a, b = jnp.split(_conv(x, gate, dilation=2 ** (i % 8)), 2, -1)
            y = (jnp.tanh(a) * jax.nn.sigmoid(b)) @ out
            x, total = x + y, total + y
        return total

    return apply, ([(array(3, 128, 256), array(128, 128))] * 10, array(64, 32768, 128))


@program("spectral-filter/none")
def spectral_filter():
    def apply(kernel, images):
        spectrum = jnp.fft.rfft2(images)
        return jnp.fft.irfft2(spectrum * jnp.fft.rfft2(kernel), s=images.shape[-2:])

    return apply, (array(1024, 1024), array(256, 1024, 1024))


@program("radiance-field/mapped")
def radiance_field():
    def render(layers, origins, directions):
        def chunk(rays):
            origin, direction = rays
            depths = jnp.linspace(0.1, 4.0, 128)
            x = origin[:, None] + depths[:, None] * direction[:, None]
            bands = x[..., None] * 2.0 ** jnp.arange(10)
            x = jnp.concatenate([jnp.sin(bands), jnp.cos(bands)], -1).reshape(*x.shape[:2], -1)
            for w in layers[:-1]:
                x = jax.nn.relu(x @ w)
            out = x @ layers[-1]
            alpha = 1 - jnp.exp(-jax.nn.softplus(out[..., 3]))
            through = jnp.cumprod(1 - alpha + 1e-6, -1)
            return jnp.sum((alpha * through)[..., None] * jax.nn.sigmoid(out[..., :3]), 1)

        return lax.map(chunk, (origins.reshape(-1, 16384, 3), directions.reshape(-1, 16384, 3)))

    layers = [array(60, 256), *[array(256, 256)] * 6, array(256, 4)]
    return render, (layers, array(1 << 20, 3), array(1 << 20, 3))


# --- other networks --------------------------------------------------------------------------


@program("recurrent-outputs/none")
def recurrent_outputs():
    def apply(w, xs):
        def cell(state, x):
            h, c = state
            i, f, g, o = jnp.split(x @ w["x"] + h @ w["h"] + w["b"], 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((xs.shape[1], 1024))
        return lax.scan(cell, (zeros, zeros), xs)[1] @ w["out"]

    w = {"x": array(512, 4096), "h": array(1024, 4096), "b": array(4096), "out": array(1024, 512)}
    return apply, (w, array(1024, 512, 512))


@program("graph-network/none")
def graph_network():
    def apply(layers, nodes, senders, receivers):
        for w in layers:
            messages = jax.nn.relu(
                jnp.concatenate([nodes[senders], nodes[receivers]], -1) @ w["edge"]
            )
            summed = jax.ops.segment_sum(messages, receivers, nodes.shape[0])
            nodes = nodes + jax.nn.relu(jnp.concatenate([nodes, summed], -1) @ w["node"])
        return nodes

    w = {"edge": array(256, 128), "node": array(256, 128)}
    return apply, ([w] * 3, array(200_000, 128), ids(2_000_000), ids(2_000_000))


@program("ensemble/vmapped")
def ensemble():
    def member(params, x):
        for w, b in params:
            x = jnp.tanh(x @ w + b)
        return x

    def predict(params, x):
        every = jax.vmap(member, (0, None))(params, x)
        return every.mean(0), every.std(0)

    params = [(array(16, 1024, 1024), array(16, 1024))] * 5
    return predict, (params, array(32768, 1024))


@program("switched-experts/vmapped")
def switched_experts():
    def apply(params, xs, which):
        def expert(ws):
            def run(x):
                for w in ws:
                    x = jax.nn.gelu(x @ w)
                return x

            return run

        experts = [expert(ws) for ws in params]
        return jax.vmap(lambda x, i: lax.switch(i, experts, x))(xs, which)

    return apply, ([[array(512, 512)] * 3] * 4, array(262_144, 512), ids(262_144))


@program("ranked-candidates/none")
def ranked_candidates():
    def rank(table, users, history):
        wanted = jnp.mean(table[history], 1) + users
        scores = wanted @ table.T
        return lax.top_k(scores, 100)

    return rank, (array(500_000, 128), array(2048, 128), ids(2048, 200))


@program("nearest-neighbours/none")
def nearest_neighbours():
    def nearest(queries, points):
        squares = jnp.sum(queries**2, 1)[:, None] + jnp.sum(points**2, 1)
        return lax.top_k(-(squares - 2 * queries @ points.T), 10)

    return nearest, (array(4096, 64), array(262_144, 64))


@program("initialised/none")
def initialised():
    def init(rng):
        params = []
        for i in range(12):
            own = jax.random.split(jax.random.fold_in(rng, i), 4)
            width = 2048
            params.append(
                {
                    "qkv": jax.random.normal(own[0], (width, 3 * width)) * 0.02,
                    "out": jax.random.normal(own[1], (width, width)) * 0.02,
                    "up": jax.random.truncated_normal(own[2], -2, 2, (width, 4 * width)) * 0.02,
                    "down": jnp.zeros((4 * width, width)),
                }
            )
        return params

    return init, (key(),)


@program("averaged-weights/donated")
def averaged_weights():
    @functools.partial(jax.jit, donate_argnums=0)
    def update(average, params):
        return jax.tree.map(lambda a, p: 0.999 * a + 0.001 * p.astype(F32), average, params)

    shapes = [(8192, 8192), (8192, 8192), (32000, 8192)]
    return update, (
        [array(*s) for s in shapes],
        [array(*s, dtype=BF16) for s in shapes],
    )


# --- simulations and sampling ----------------------------------------------------------------


@program("bodies/trajectory")
def bodies():
    def simulate(positions, velocities, masses):
        def step(state, _):
            x, v = state
            offsets = x[None] - x[:, None]
            cubes = (jnp.sum(offsets**2, -1) + 1e-3) ** -1.5
            v = v + 1e-3 * jnp.sum(offsets * (cubes * masses)[..., None], 1)
            x = x + 1e-3 * v
            return (x, v), x

        return lax.scan(step, (positions, velocities), None, 1000)

    return simulate, (array(16384, 3), array(16384, 3), array(16384))


@program("heat/fori")
def heat():
    def simulate(grid, conductivity):
        def step(_, u):
            around = sum(jnp.roll(u, s, a) for s in (1, -1) for a in range(3))
            return u + 0.1 * conductivity * (around - 6 * u)

        return lax.fori_loop(0, 500, step, grid)

    return simulate, (array(640, 640, 640), array(640, 640, 640))


@program("wave-equation/history")
def wave_equation():
    def simulate(u, speed):
        def step(state, _):
            u, before = state
            around = sum(jnp.roll(u, s, a) for s in (1, -1) for a in range(2))
            after = 2 * u - before + speed**2 * (around - 4 * u)
            return (after, u), after

        _, history = lax.scan(step, (u, u), None, 256)
        return jnp.max(jnp.abs(history), 0), history[::16]

    return simulate, (array(2048, 2048), array(2048, 2048))


@program("lattice-boltzmann/donated")
def lattice_boltzmann():
    moves = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (1, -1), (-1, 1)]
    weights = [4 / 9, *[1 / 9] * 4, *[1 / 36] * 4]

    @functools.partial(jax.jit, donate_argnums=0)
    def simulate(f):
        def step(f, _):
            density = f.sum(0)
            ux = sum(m[0] * f[i] for i, m in enumerate(moves)) / density
            uy = sum(m[1] * f[i] for i, m in enumerate(moves)) / density
            square = ux**2 + uy**2
            new = []
            for i, ((a, b), w) in enumerate(zip(moves, weights, strict=True)):
                along = a * ux + b * uy
                rest = w * density * (1 + 3 * along + 4.5 * along**2 - 1.5 * square)
                new.append(jnp.roll(f[i] + 0.6 * (rest - f[i]), (a, b), (0, 1)))
            return jnp.stack(new), None

        return lax.scan(step, f, None, 100)[0]

    return simulate, (array(9, 6144, 6144),)


@program("asset-paths/quantiles")
def asset_paths():
    def price(rng, spot, volatility):
        def step(state, own):
            log, highest = state
            noise = jax.random.normal(own, log.shape)
            log = log + volatility * noise * 0.05 - 0.5 * volatility**2 * 0.0025
            return (log, jnp.maximum(highest, log)), log

        start = jnp.zeros((2_000_000,)) + jnp.log(spot)
        (last, highest), paths = lax.scan(step, (start, start), jax.random.split(rng, 252))
        return jnp.quantile(jnp.exp(last), jnp.array([0.05, 0.5, 0.95])), paths.std(1), highest

    return price, (key(), array(), array())


@program("kalman-filter/batched")
def kalman_filter():
    def run(means, covariances, transition, noise, observed):
        def step(state, y):
            m, p = state
            m = m @ transition.T
            p = transition @ p @ transition.T + noise
            gain = p[:, :, :8] @ jnp.linalg.inv(p[:, :8, :8] + 0.1 * jnp.eye(8))
            m = m + jnp.einsum("bij,bj->bi", gain, y - m[:, :8])
            p = p - gain @ p[:, :8, :]
            return (m, p), (m, jnp.diagonal(p, axis1=1, axis2=2))

        return lax.scan(step, (means, covariances), observed)

    return run, (
        array(65536, 32),
        array(65536, 32, 32),
        array(32, 32),
        array(32, 32),
        array(100, 65536, 8),
    )


@program("particle-filter/resampled")
def particle_filter():
    def run(rng, particles, observed):
        def step(state, each):
            x, rng = state
            rng, a, b = jax.random.split(rng, 3)
            x = jnp.tanh(x) + 0.1 * jax.random.normal(a, x.shape)
            weights = jax.nn.softmax(-jnp.sum((x - each) ** 2, -1))
            chosen = jax.random.categorical(b, jnp.log(weights), shape=(x.shape[0],))
            return (x[chosen], rng), jnp.sum(weights[:, None] * x, 0)

        return lax.scan(step, (particles, rng), observed)[1]

    return run, (key(), array(16384, 64), array(200, 64))


@program("ising/checkerboard")
def ising():
    def sample(rng, spins):
        rows = jnp.arange(spins.shape[1])[:, None] + jnp.arange(spins.shape[2])

        def sweep(i, spins):
            for parity in range(2):
                own = jax.random.fold_in(jax.random.fold_in(rng, i), parity)
                around = sum(jnp.roll(spins, s, a) for s in (1, -1) for a in (1, 2))
                flip = jax.random.uniform(own, spins.shape) < jnp.exp(-0.88 * spins * around)
                spins = jnp.where(flip & (rows % 2 == parity), -spins, spins)
            return spins

        return lax.fori_loop(0, 100, sweep, spins)

    return sample, (key(), array(64, 2048, 2048))


@program("clusters/lloyd")
def clusters():
    def fit(points, centres):
        def step(state):
            centres, _, count = state
            distances = jnp.sum(centres**2, 1) - 2 * points @ centres.T
            one_hot = jax.nn.one_hot(distances.argmin(1), centres.shape[0])
            new = (one_hot.T @ points) / (one_hot.sum(0)[:, None] + 1e-6)
            return new, jnp.max(jnp.abs(new - centres)), count + 1

        start = centres, jnp.inf, 0
        return lax.while_loop(lambda s: (s[1] > 1e-4) & (s[2] < 100), step, start)

    return fit, (array(1 << 20, 128), array(1024, 128))


@program("page-rank/scatter")
def page_rank():
    def rank(senders, receivers, degrees):
        nodes = degrees.shape[0]

        def step(_, r):
            sent = (r / degrees)[senders]
            return 0.15 / nodes + 0.85 * jnp.zeros(nodes).at[receivers].add(sent)

        return lax.fori_loop(0, 50, step, jnp.full(nodes, 1 / nodes))

    return rank, (ids(150_000_000), ids(150_000_000), array(5_000_000))


@program("gaussian-process/posterior")
def gaussian_process():
    def posterior(x, y, new):
        def kernel(a, b):
            squares = jnp.sum(a**2, 1)[:, None] + jnp.sum(b**2, 1) - 2 * a @ b.T
            return jnp.exp(-0.5 * squares)

        factor = jnp.linalg.cholesky(kernel(x, x) + 1e-3 * jnp.eye(x.shape[0]))
        across = jax.scipy.linalg.solve_triangular(factor, kernel(x, new), lower=True)
        mean = across.T @ jax.scipy.linalg.solve_triangular(factor, y, lower=True)
        return mean, 1.0 - jnp.sum(across**2, 0)

    return posterior, (array(16384, 8), array(16384), array(16384, 8))


@program("denoised/scanned")
def denoised():
    def sample(params, rng, noise):
        def step(x, each):
            t, own = each
            y = jnp.concatenate([x, jnp.broadcast_to(t, (*x.shape[:-1], 1))], -1)
            for first, second in params:
                y = y + jax.nn.gelu(y @ first) @ second
            x = x - 0.01 * y[..., :-1] + 0.1 * jax.random.normal(own, x.shape)
            return x, None

        times = jnp.linspace(1.0, 0.0, 100)
        return lax.scan(step, noise, (times, jax.random.split(rng, 100)))[0]

    return sample, ([(array(512, 2048), array(2048, 512))] * 4, key(), array(131_072, 511))


# --- around libraries ------------------------------------------------------------------------


def _abstract(fun: Callable[..., Any], *args: Any) -> Any:
    return jax.eval_shape(fun, *args)


@library("linen-encoder/none", "flax")
def linen_encoder():
    from flax import linen as nn

    class Encoder(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(16384, 1024)(tokens)
            for _ in range(4):
                y = nn.LayerNorm()(x)
                x = x + nn.MultiHeadDotProductAttention(16, deterministic=True)(y, y)
                y = nn.Dense(4096)(nn.LayerNorm()(x))
                x = x + nn.Dense(1024)(nn.gelu(y))
            return nn.LayerNorm()(x)

    tokens = ids(32, 512)
    return Encoder().apply, (_abstract(Encoder().init, key(), tokens), tokens)


def _linen_decoder(**jitted):
    from flax import linen as nn

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(16384, 1024, dtype=BF16)(tokens)
            for _ in range(8):
                y = nn.LayerNorm(dtype=BF16)(x)
                attend = nn.MultiHeadDotProductAttention(16, dtype=BF16, decode=True)
                x = x + attend(y, y)
                y = nn.Dense(4096, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x))
                x = x + nn.Dense(1024, dtype=BF16)(nn.gelu(y))
            return nn.Dense(16384, dtype=BF16)(x)

    model = Decoder()

    @functools.partial(jax.jit, **jitted)
    def decode(params, cache, tokens):
        logits, changed = model.apply({"params": params, "cache": cache}, tokens, mutable=["cache"])
        return logits[:, -1].argmax(-1), changed["cache"]

    variables = _abstract(model.init, key(), ids(32, 2048))
    return decode, (variables["params"], variables["cache"], ids(32, 1))


@library("linen-decoder/kept", "flax")
def linen_decoder():
    return _linen_decoder()


@library("linen-decoder/donated", "flax")
def linen_decoder_donated():
    return _linen_decoder(donate_argnums=1)


@library("linen-resnet/eval", "flax")
def linen_resnet():
    from flax import linen as nn

    class Block(nn.Module):
        width: int
        stride: int

        @nn.compact
        def __call__(self, x):
            norm = functools.partial(nn.BatchNorm, use_running_average=True)
            y = nn.relu(norm()(nn.Conv(self.width, (1, 1), use_bias=False)(x)))
            y = nn.Conv(self.width, (3, 3), (self.stride,) * 2, use_bias=False)(y)
            y = norm()(nn.Conv(4 * self.width, (1, 1), use_bias=False)(nn.relu(norm()(y))))
            if x.shape != y.shape:
                x = norm()(nn.Conv(4 * self.width, (1, 1), (self.stride,) * 2)(x))
            return nn.relu(x + y)

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Conv(64, (7, 7), (2, 2))(x))
            x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
            for i, depth in enumerate((3, 4, 6, 3)):
                for j in range(depth):
                    x = Block(64 * 2**i, 2 if i and not j else 1)(x)
            return nn.Dense(1000)(x.mean((1, 2)))

    images = array(256, 224, 224, 3)
    return Network().apply, (_abstract(Network().init, key(), images), images)


@library("linen-lstm/unrolled", "flax")
def linen_lstm():
    from flax import linen as nn

    class Tagger(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(32000, 512)(tokens)
            for _ in range(2):
                x = nn.RNN(nn.OptimizedLSTMCell(1024))(x)
            return nn.Dense(64)(x)

    tokens = ids(512, 512)
    return Tagger().apply, (_abstract(Tagger().init, key(), tokens), tokens)


def _nnx_decoder():
    from flax import nnx

    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.LayerNorm(1024, rngs=rngs)
            self.attend = nnx.MultiHeadAttention(
                8, 1024, decode=True, dtype=BF16, param_dtype=BF16, rngs=rngs
            )
            self.up = nnx.Linear(1024, 4096, dtype=BF16, param_dtype=BF16, rngs=rngs)
            self.down = nnx.Linear(4096, 1024, dtype=BF16, param_dtype=BF16, rngs=rngs)

        def __call__(self, x):
            x = x + self.attend(self.norm(x))
            return x + self.down(nnx.silu(self.up(x)))

    class Decoder(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(16384, 1024, dtype=BF16, param_dtype=BF16, rngs=rngs)
            self.layers = nnx.List([Layer(rngs) for _ in range(6)])
            for layer in self.layers:
                layer.attend.init_cache((64, 2048, 1024), dtype=BF16)

        def __call__(self, tokens):
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.embed.attend(x)

    model = nnx.eval_shape(lambda: Decoder(nnx.Rngs(0)))
    graph, cache, rest = nnx.split(model, nnx.Cache, ...)
    return graph, cache, rest


@library("nnx-decoder/donated", "flax")
def nnx_decoder():
    from flax import nnx

    graph, cache, rest = _nnx_decoder()

    @functools.partial(jax.jit, donate_argnums=1)
    def decode(rest, cache, tokens):
        model = nnx.merge(graph, cache, rest)
        logits = model(tokens)
        return logits.argmax(-1), nnx.split(model, nnx.Cache, ...)[1]

    return decode, (rest, cache, ids(64, 1))


@library("nnx-images/eval", "flax")
def nnx_images():
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs):
            widths = (3, 64, 64, 128, 128)
            self.convs = nnx.List(
                [nnx.Conv(a, b, (3, 3), rngs=rngs) for a, b in itertools.pairwise(widths)]
            )
            self.norms = nnx.List([nnx.BatchNorm(b, rngs=rngs) for b in widths[1:]])
            self.out = nnx.Linear(128, 100, rngs=rngs)

        def __call__(self, x):
            for conv, norm in zip(self.convs, self.norms, strict=True):
                x = nnx.relu(norm(conv(x), use_running_average=True))
            return self.out(nnx.avg_pool(x, (4, 4), (4, 4)).mean((1, 2)))

    graph, state = nnx.split(nnx.eval_shape(lambda: Network(nnx.Rngs(0))))
    return lambda state, x: nnx.merge(graph, state)(x), (state, array(128, 128, 128, 3))


@library("equinox-mixer/vmapped", "equinox")
def equinox_mixer():
    import equinox as eqx

    class Block(eqx.Module):
        patches: eqx.nn.MLP
        channels: eqx.nn.MLP
        norms: list

        def __init__(self, key):
            a, b = jax.random.split(key)
            self.patches = eqx.nn.MLP(256, 256, 512, 1, key=a)
            self.channels = eqx.nn.MLP(512, 512, 2048, 1, key=b)
            self.norms = [eqx.nn.LayerNorm((512, 256)), eqx.nn.LayerNorm((256, 512))]

        def __call__(self, x):
            x = x + jax.vmap(self.patches)(self.norms[0](x))
            x = x.T
            return (x + jax.vmap(self.channels)(self.norms[1](x))).T

    arrays, rest = eqx.partition(
        eqx.filter_eval_shape(lambda: [Block(jax.random.key(i)) for i in range(4)]),
        lambda x: isinstance(x, jax.ShapeDtypeStruct),
    )

    def apply(arrays, xs):
        blocks = eqx.combine(arrays, rest)

        def one(x):
            for block in blocks:
                x = block(x)
            return x.mean(1)

        return jax.vmap(one)(xs)

    return apply, (arrays, array(512, 512, 256))


@library("equinox-sampler/scanned", "equinox")
def equinox_sampler():
    """A diffusion sampler around a convolutional network."""
    import equinox as eqx

    class Network(eqx.Module):
        convs: list
        norms: list

        def __init__(self, key):
            widths = (4, 64, 64, 64, 3)
            keys = jax.random.split(key, 4)
            self.convs = [
                eqx.nn.Conv2d(a, b, 3, padding=1, key=k)
                for a, b, k in zip(widths, widths[1:], keys, strict=False)
            ]
            self.norms = [eqx.nn.GroupNorm(8, 64) for _ in range(3)]

        def __call__(self, t, x):
            x = jnp.concatenate([x, jnp.broadcast_to(t, (1, *x.shape[1:]))])
            for conv, norm in zip(self.convs[:-1], self.norms, strict=True):
                x = jax.nn.silu(norm(conv(x)))
            return self.convs[-1](x)

    arrays, rest = eqx.partition(
        eqx.filter_eval_shape(lambda: Network(jax.random.key(0))),
        lambda x: isinstance(x, jax.ShapeDtypeStruct),
    )

    def sample(arrays, rng):
        network = eqx.combine(arrays, rest)

        def step(x, each):
            t, own = each
            x = x - 0.02 * jax.vmap(network, (None, 0))(t, x)
            return x + 0.05 * jax.random.normal(own, x.shape), None

        start = jax.random.normal(rng, (128, 3, 128, 128))
        return lax.scan(step, start, (jnp.linspace(1, 0, 50), jax.random.split(rng, 50)))[0]

    return sample, (arrays, key())


@library("equinox-gru/scanned", "equinox")
def equinox_gru():
    import equinox as eqx

    arrays, rest = eqx.partition(
        eqx.filter_eval_shape(lambda: eqx.nn.GRUCell(256, 1024, key=jax.random.key(0))),
        lambda x: isinstance(x, jax.ShapeDtypeStruct),
    )

    def apply(arrays, xs):
        cell = eqx.combine(arrays, rest)

        def one(x):
            return lax.scan(lambda h, x: (cell(x, h),) * 2, jnp.zeros(1024), x)[1]

        return jax.vmap(one)(xs)

    return apply, (arrays, array(1024, 256, 256))


@library("haiku-transformer/eval", "haiku")
def haiku_transformer():
    import haiku as hk

    def network(tokens):
        x = hk.Embed(16384, 768)(tokens)
        mask = jnp.tril(jnp.ones((1, 1, tokens.shape[1], tokens.shape[1])))
        for _ in range(4):
            y = hk.LayerNorm(-1, True, True)(x)
            init = hk.initializers.VarianceScaling(1.0)
            x = x + hk.MultiHeadAttention(12, 64, w_init=init, model_size=768)(y, y, y, mask)
            y = hk.Linear(3072)(hk.LayerNorm(-1, True, True)(x))
            x = x + hk.Linear(768)(jax.nn.gelu(y))
        return hk.Linear(16384)(x)

    made = hk.without_apply_rng(hk.transform(network))
    tokens = ids(16, 1024)
    return made.apply, (_abstract(made.init, key(), tokens), tokens)


@library("haiku-resnet/eval", "haiku")
def haiku_resnet():
    import haiku as hk

    def network(images, is_training):
        return hk.nets.ResNet50(1000)(images, is_training)

    made = hk.transform_with_state(network)
    images = array(256, 224, 224, 3)
    params, state = _abstract(functools.partial(made.init, is_training=True), key(), images)

    def apply(params, state, images):
        return made.apply(params, state, None, images, False)[0]

    return apply, (params, state, images)


@library("gymnax-cartpole/rollout", "gymnax")
def gymnax_cartpole():
    from gymnax.environments.classic_control.cartpole import CartPole

    env = CartPole()

    def rollout(weights, rng):
        def one(rng):
            first, rng = jax.random.split(rng)
            seen, state = env.reset(first, env.default_params)

            def step(carry, own):
                seen, state = carry
                hidden = jnp.tanh(seen @ weights["in"])
                logits = jnp.tanh(hidden @ weights["mid"]) @ weights["out"]
                a, b = jax.random.split(own)
                action = jax.random.categorical(a, logits)
                new, state, reward, *ended = env.step(b, state, action, env.default_params)
                return (new, state), (seen, action, reward, ended[0], logits)

            return lax.scan(step, (seen, state), jax.random.split(rng, 256))[1]

        return jax.vmap(one)(jax.random.split(rng, 65536))

    weights = {"in": array(4, 256), "mid": array(256, 256), "out": array(256, 2)}
    return rollout, (weights, key())


@library("gymnax-breakout/rollout", "gymnax")
def gymnax_breakout():
    from gymnax.environments.minatar.breakout import MinBreakout

    env = MinBreakout()

    def rollout(kernel, weights, rng):
        def one(rng):
            first, rng = jax.random.split(rng)
            seen, state = env.reset(first, env.default_params)

            def step(carry, own):
                seen, state = carry
                features = jax.nn.relu(_conv(seen[None].astype(F32), kernel)).reshape(-1)
                a, b = jax.random.split(own)
                action = jax.random.categorical(a, features @ weights)
                new, state, reward, *ended = env.step(b, state, action, env.default_params)
                return (new, state), (seen, action, reward, ended[0])

            return lax.scan(step, (seen, state), jax.random.split(rng, 128))[1]

        return jax.vmap(one)(jax.random.split(rng, 16384))

    return rollout, (array(3, 3, 4, 16), array(1600, 3), key())


@library("numpyro-predictive/vmapped", "numpyro")
def numpyro_predictive():
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import Predictive

    def model(x):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([32, 64]).to_event(2))
        v = numpyro.sample("v", dist.Normal(0, 1).expand([64]).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.tanh(x @ w) @ v, scale))

    def predict(rng, samples, x):
        return Predictive(model, samples, parallel=True)(rng, x)["y"]

    samples = {"w": array(500, 32, 64), "v": array(500, 64), "scale": array(500)}
    return predict, (key(), samples, array(100_000, 32))


@library("numpyro-likelihood/pointwise", "numpyro")
def numpyro_likelihood():
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import log_likelihood

    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([100]).to_event(1))
        offset = numpyro.sample("offset", dist.Normal(0, 1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ slope + offset), obs=y)

    def likelihood(samples, x, y):
        each = log_likelihood(model, samples, x, y, parallel=True)["y"]
        return jax.nn.logsumexp(each, 0), each.var(0)

    samples = {"slope": array(1000, 100), "offset": array(1000)}
    return likelihood, (samples, array(500_000, 100), array(500_000))


@library("numpyro-hmc/chains", "numpyro")
def numpyro_hmc():
    from numpyro.infer.hmc import hmc

    def run(rng, x, y, start):
        def potential(z):
            return jnp.sum(jax.nn.softplus(-y * (x @ z))) + 0.5 * jnp.sum(z**2)

        init, sample = hmc(potential, algo="HMC")

        def chain(rng, z):
            state = init(
                z, num_warmup=0, step_size=1e-3, num_steps=8, adapt_step_size=False, rng_key=rng
            )
            step = lambda state, _: ((new := sample(state)), new.z)
            return lax.scan(step, state, None, 200)[1]

        return jax.vmap(chain)(jax.random.split(rng, start.shape[0]), start)

    return run, (key(), array(200_000, 64), array(200_000), array(512, 64))


@library("blackjax-random-walk/chains", "blackjax")
def blackjax_random_walk():
    import blackjax

    def run(rng, data, start):
        def log_density(z):
            return -0.5 * jnp.sum((data - z) ** 2) / 10 - 0.5 * jnp.sum(z**2)

        kernel = blackjax.normal_random_walk(log_density, 0.1 * jnp.eye(16))

        def chain(rng, z):
            def step(state, own):
                state, info = kernel.step(own, state)
                return state, (state.position, info.acceptance_rate)

            return lax.scan(step, kernel.init(z), jax.random.split(rng, 1000))[1]

        return jax.vmap(chain)(jax.random.split(rng, start.shape[0]), start)

    return run, (key(), array(1000, 16), array(16384, 16))


@library("blackjax-hmc/chains", "blackjax")
def blackjax_hmc():
    import blackjax

    def run(rng, x, y, start):
        def log_density(w):
            hidden = jnp.tanh(x @ w["first"])
            return -jnp.sum((hidden @ w["second"] - y) ** 2) - jnp.sum(w["first"] ** 2)

        kernel = blackjax.hmc(log_density, 1e-3, jnp.ones(16 * 64 + 64), 5)

        def chain(rng, w):
            def step(state, own):
                state, _ = kernel.step(own, state)
                return state, state.logdensity

            return lax.scan(step, kernel.init(w), jax.random.split(rng, 100))[1]

        return jax.vmap(chain)(jax.random.split(rng, 256), start)

    start = {"first": array(256, 16, 64), "second": array(256, 64)}
    return run, (key(), array(50_000, 16), array(50_000), start)


@library("blackjax-slice/chains", "blackjax")
def blackjax_slice():
    import blackjax

    def run(rng, start, observed):
        def log_likelihood(z):
            return -0.5 * jnp.sum((jnp.sin(z) - observed) ** 2)

        kernel = blackjax.elliptical_slice(log_likelihood, mean=jnp.zeros(256), cov=jnp.eye(256))

        def chain(rng, z):
            def step(state, own):
                state, _ = kernel.step(own, state)
                return state, state.position

            return lax.scan(step, kernel.init(z), jax.random.split(rng, 200))[1]

        return jax.vmap(chain)(jax.random.split(rng, start.shape[0]), start)

    return run, (key(), array(8192, 256), array(256))


@library("diffrax-lorenz/vmapped", "diffrax")
def diffrax_lorenz():
    import diffrax

    def solve(starts, rate):
        def field(t, y, args):
            a, b, c = y
            return jnp.stack([10 * (b - a), a * (rate - c) - b, a * b - 8 / 3 * c])

        def one(start):
            return diffrax.diffeqsolve(
                diffrax.ODETerm(field),
                diffrax.Tsit5(),
                0.0,
                10.0,
                0.01,
                start,
                saveat=diffrax.SaveAt(ts=jnp.linspace(0, 10, 200)),
                stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
                max_steps=4096,
            ).ys

        return jax.vmap(one)(starts)

    return solve, (array(500_000, 3), array())


@library("diffrax-diffusion/grid", "diffrax")
def diffrax_diffusion():
    import diffrax

    def solve(grid, conductivity):
        def field(t, u, args):
            around = sum(jnp.roll(u, s, a) for s in (1, -1) for a in (0, 1))
            return args * (around - 4 * u) + u - u**3

        found = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Dopri5(),
            0.0,
            1.0,
            1e-3,
            grid,
            conductivity,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-5),
        )
        return found.ys, found.stats["num_steps"]

    return solve, (array(8192, 8192), array(8192, 8192))


@library("diffrax-noise/paths", "diffrax")
def diffrax_noise():
    import diffrax

    def solve(rng, starts):
        def one(rng, y):
            brownian = diffrax.VirtualBrownianTree(0.0, 1.0, 1e-2, (64,), rng)
            terms = diffrax.MultiTerm(
                diffrax.ODETerm(lambda t, y, args: -jnp.tanh(y)),
                diffrax.ControlTerm(
                    lambda t, y, args: lineax.DiagonalLinearOperator(0.1 + 0.0 * y), brownian
                ),
            )
            saved = diffrax.SaveAt(ts=jnp.linspace(0, 1, 64))
            return diffrax.diffeqsolve(
                terms, diffrax.Euler(), 0.0, 1.0, 0.01, y, saveat=saved, max_steps=128
            ).ys

        return jax.vmap(one)(jax.random.split(rng, starts.shape[0]), starts)

    import lineax

    return solve, (key(), array(65536, 64))


@library("jax-md-pairs/energy", "jax_md")
def jax_md_pairs():
    from jax_md import energy, space

    displacement, _ = space.periodic(60.0)
    of_pairs = energy.lennard_jones_pair(displacement, sigma=1.0, epsilon=1.0)

    def energies(positions):
        return jax.vmap(of_pairs)(positions)

    return energies, (array(8, 8192, 3),)


@library("jax-md-nve/scanned", "jax_md")
def jax_md_nve():
    from jax_md import energy, simulate, space

    displacement, shift = space.periodic(40.0)
    of_pairs = energy.soft_sphere_pair(displacement)

    def run(rng, positions):
        init, step = simulate.nve(of_pairs, shift, 1e-3)
        state = init(rng, positions, kT=0.1)

        def one(state, _):
            state = step(state)
            return state, state.position

        return lax.scan(one, state, None, 500)

    return run, (key(), array(16384, 3))


@library("jax-md-neighbours/energy", "jax_md")
def jax_md_neighbours():
    from jax_md import energy, space

    displacement, _ = space.periodic(100.0)

    def total(positions, neighbours):
        of_pair = energy.lennard_jones

        def one(position, near):
            others = positions[near]
            offsets = jax.vmap(displacement, (None, 0))(position, others)
            distances = space.distance(offsets)
            each = of_pair(distances, sigma=1.0, epsilon=1.0)
            return 0.5 * jnp.sum(jnp.where(near < positions.shape[0], each, 0.0))

        return jax.vmap(one)(positions, neighbours)

    return total, (array(1_000_000, 3), ids(1_000_000, 128))


@library("jax-cfd-turbulence/trajectory", "jax_cfd")
def jax_cfd_turbulence():
    import jax_cfd.base as cfd

    size = 1024
    grid = cfd.grids.Grid((size, size), domain=((0, 2 * jnp.pi), (0, 2 * jnp.pi)))
    step = cfd.equations.semi_implicit_navier_stokes(1.0, 1e-3, 1e-3, grid)

    def run(u, v):
        boundary = cfd.boundaries.periodic_boundary_conditions(2)
        velocity = tuple(
            cfd.grids.GridVariable(cfd.grids.GridArray(a, offset, grid), boundary)
            for a, offset in ((u, (1.0, 0.5)), (v, (0.5, 1.0)))
        )
        several = cfd.funcutils.repeated(step, 10)
        _, path = cfd.funcutils.trajectory(several, 100)(velocity)
        return [each.array.data for each in path]

    return run, (array(size, size), array(size, size))


@library("jax-cfd-advection/repeated", "jax_cfd")
def jax_cfd_advection():
    import jax_cfd.base as cfd

    shape = (256, 256, 256)
    grid = cfd.grids.Grid(shape, domain=((0, 1.0),) * 3)

    def run(concentration, *velocity):
        boundary = cfd.boundaries.periodic_boundary_conditions(3)

        def variable(a, offset):
            return cfd.grids.GridVariable(cfd.grids.GridArray(a, offset, grid), boundary)

        c = variable(concentration, grid.cell_center)
        v = tuple(
            variable(a, tuple(1.0 if i == axis else 0.5 for i in range(3)))
            for axis, a in enumerate(velocity)
        )

        def one(_, data):
            moved = cfd.advection.advect_van_leer(variable(data, c.offset), v, 1e-3)
            spread = cfd.diffusion.diffuse(variable(data, c.offset), 1e-3)
            return data + 1e-3 * (moved.data + spread.data)

        return lax.fori_loop(0, 50, one, concentration)

    return run, (array(*shape), *[array(*shape)] * 3)


@library("jaxopt-fixed-point/while", "jaxopt")
def jaxopt_fixed_point():
    import jaxopt

    def solve(weights, x):
        def step(z, weights, x):
            return jnp.tanh(z @ weights["z"] + x @ weights["x"])

        solver = jaxopt.FixedPointIteration(step, maxiter=50, implicit_diff=False)
        return solver.run(jnp.zeros_like(x), weights, x).params

    return solve, ({"z": array(2048, 2048), "x": array(2048, 2048)}, array(131_072, 2048))


@library("optimistix-bisection/vmapped", "optimistix")
def optimistix_bisection():
    import optimistix

    def solve(targets):
        def one(target):
            solver = optimistix.Bisection(rtol=1e-5, atol=1e-5)
            found = optimistix.root_find(
                lambda x, t: x**3 + x - t,
                solver,
                0.0,
                target,
                options={"lower": -10.0, "upper": 10.0},
                max_steps=64,
                throw=False,
            )
            return found.value

        return jax.vmap(one)(targets)

    return solve, (array(64_000_000),)


@library("lineax-conjugate-gradient/operator", "lineax")
def lineax_conjugate_gradient():
    import lineax

    def solve(b):
        def apply(x):
            around = sum(jnp.roll(x, s, a) for s in (1, -1) for a in (0, 1))
            return 4.1 * x - around

        operator = lineax.FunctionLinearOperator(
            apply, jax.eval_shape(lambda: b), lineax.positive_semidefinite_tag
        )
        solver = lineax.CG(rtol=1e-4, atol=1e-4, max_steps=200)
        return lineax.linear_solve(operator, b, solver, throw=False).value

    return solve, (array(12288, 12288),)


@library("optax-update/donated", "optax")
def optax_update():
    """An optimizer's update alone, of gradients that something else has made."""
    import optax

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(params, state, gradients):
        changes, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, changes), state

    params = {f"layer{i}": array(8192, 8192) for i in range(6)}
    return update, (params, jax.eval_shape(optimizer.init, params), params)
