"""Functions whose checkpoints each have a line of their own, many of them alike, as source text."""

from __future__ import annotations

import random

LAYERS = """\
import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

cp = jax.checkpoint_policies


def mixer(x, w, m):
    return x + jnp.tanh(jnp.sin(x @ w) @ w)


def masked(x, w, m):
    scores = jax.nn.softmax(jnp.where(m, x @ w @ x.T, -1e9))
    return x + scores @ x


def named(x, w, m):
    h = checkpoint_name(jax.nn.gelu(checkpoint_name(x @ w, "up")), "act")
    return x + h @ w.T


def looped(x, w, m):
    return x + lax.scan(lambda c, _: (jnp.sin(c @ w), None), x, None, length=3)[0]


def shaped(x, w, m):
    h = (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).reshape(x.shape[0] // 2, -1)
    return jnp.cos(h.astype(x.dtype).reshape(x.shape)) * x


def cheap(x, w, m):
    return jnp.cos(x * w[0]) + x


def inner(x, w, m):
    return jax.checkpoint(mixer)(jnp.sin(x), w, m) @ w
"""
KINDS = ("mixer", "masked", "named", "looped", "shaped", "cheap", "inner")
OPTIONS = (
    "",
    "",
    ", policy=cp.dots_saveable",
    ", prevent_cse=False",
    ', policy=cp.save_only_these_names("up")',
    ", policy=cp.everything_saveable",
    ", policy=cp.save_and_offload_only_these_names(names_which_can_be_saved=[],"
    ' names_which_can_be_offloaded=["act"], offload_src="device", offload_dst="pinned_host")',
)
ENDS = ("jnp.sum(x)", "jnp.mean(x * x)", "jnp.mean(jax.nn.logsumexp(x @ ws[0], axis=-1))")


def source(seed: int) -> str:
    """Return a module with a function `loss` of `(ws, x, m)` and the number of its `ws`."""
    rng = random.Random(seed)
    depth = rng.randint(8, 22)
    period = [(rng.choice(KINDS), rng.choice(OPTIONS)) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    lines = ["def loss(ws, x, m):", "    m = m > 0.5"]
    between = rng.choice(["", "", "", "    x = jnp.sin(x)", "    x = x / jnp.max(x)"])
    weight = rng.choice(["ws[{i}]", "ws[{i}]", "ws[0]", "ws[{i}] * 2"])
    skips = rng.random() < 0.25
    if skips:
        lines.append("    kept = []")
    for i in range(depth):
        kind, options = period[i % len(period)]
        if rng.random() < 0.04:
            kind = rng.choice(KINDS)
        lines.append(f"    x = jax.checkpoint({kind}{options})(x, {weight.format(i=i)}, m)")
        lines += [between] if between else []
        if skips:
            lines.append(
                "    kept.append(x)" if i < depth // 2 else "    x = x + kept.pop() if kept else x"
            )
    lines.append(f"    return {rng.choice(ENDS)}")
    return "\n".join([LAYERS, "", *lines, "", f"depth = {depth}", ""])
