"""Models over meshes of eight devices: how each is split, and under which policies.

Run on CPU devices of one's own process: set JAX_NUM_CPU_DEVICES=8 before jax is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxresid import jax_compat

POLICIES = {
    "none": None,
    "dots": jax.checkpoint_policies.dots_saveable,
    "nothing": jax.checkpoint_policies.nothing_saveable,
}


@dataclass(frozen=True)
class Case:
    """A function of parameters and a batch.

    Attributes:
      fun: with a way to checkpoint a layer -> the function.
      args: shapes, and how each is split, in the same structure.
    """

    name: str
    axes: dict[str, int]
    explicit: bool
    fun: Callable[[Callable[..., Any]], Callable[..., Any]]
    args: tuple[Any, ...]

    def mesh(self) -> Any:
        return jax_compat.new_mesh(self.axes, explicit=self.explicit)

    def inputs(self, mesh: Any) -> tuple[Any, ...]:
        def struct(array: Array) -> Any:
            sharding = NamedSharding(mesh, PartitionSpec(*array.split))
            return jax.ShapeDtypeStruct(array.shape, jnp.float32, sharding=sharding)

        return jax.tree.map(struct, self.args)

    def under(self, policy: str) -> Callable[..., Any]:
        """The function with each of its layers checkpointed; `none`: with no checkpoint."""
        if policy == "none":
            return self.fun(lambda layer: layer)
        return self.fun(lambda layer: jax.checkpoint(layer, policy=POLICIES[policy]))


@dataclass(frozen=True)
class Array:
    shape: tuple[int, ...]
    split: tuple[Any, ...] = ()


def mlp(wrap: Callable[..., Any]) -> Callable[..., Any]:
    """Layers of two matrices in a Python loop. XLA:CPU undoes their checkpoints, on one device as
    on several, so that no policies can be told apart there."""

    def layer(x: Any, pair: Any) -> Any:
        up, down = pair
        return jnp.tanh(jnp.sin(x @ up) @ down)

    def loss(pairs: Any, x: Any) -> Any:
        for pair in pairs:
            x = wrap(layer)(x, pair)
        return jnp.sum(x * x)

    return loss


def stack(wrap: Callable[..., Any]) -> Callable[..., Any]:
    """The same layers, scanned."""

    def layer(x: Any, pair: Any) -> Any:
        up, down = pair
        return jnp.tanh(jnp.sin(x @ up) @ down), None

    def loss(pairs: Any, x: Any) -> Any:
        x, _ = jax.lax.scan(wrap(layer), x, pairs)
        return jnp.sum(x * x)

    return loss


def attention(wrap: Callable[..., Any]) -> Callable[..., Any]:
    """Layers of attention, scanned; the heads are a dim of the weights."""

    def layer(x: Any, weights: Any) -> Any:
        q, k, v, o = weights
        query, key, value = (jnp.einsum("bsd,dhe->bshe", x, w) for w in (q, k, v))
        scores = jnp.einsum("bshe,bthe->bhst", query, key) * 0.125
        mixed = jnp.einsum("bhst,bthe->bshe", jax.nn.softmax(scores), value)
        return x + jnp.einsum("bshe,hed->bsd", mixed, o), None

    def loss(weights: Any, x: Any) -> Any:
        x, _ = jax.lax.scan(wrap(layer), x, weights)
        return jnp.mean(x * x)

    return loss


def by_hand(wrap: Callable[..., Any]) -> Callable[..., Any]:
    """Scanned layers in a `shard_map`: all that devices exchange is written."""

    def layer(x: Any, pair: Any) -> Any:
        up, down = (jax.lax.all_gather(w, "data", axis=0, tiled=True) for w in pair)
        y = jnp.sin(jax.lax.all_gather(x, "data", axis=0, tiled=True) @ up) @ down
        return jax.lax.psum_scatter(jnp.tanh(y), "data", scatter_dimension=0, tiled=True), None

    def body(pairs: Any, x: Any) -> Any:
        x, _ = jax.lax.scan(wrap(layer), x, pairs)
        x = jax.lax.ppermute(x, "data", [(i, (i + 1) % 8) for i in range(8)])
        x = jnp.sin(jax.lax.all_to_all(jnp.sin(x), "data", 0, 1, tiled=True))
        return jax.lax.psum(jnp.sum(x * x), "data")

    def loss(pairs: Any, x: Any) -> Any:
        mesh = jax_compat.new_mesh(_EIGHT, explicit=False)
        weights = (PartitionSpec(None, "data"), PartitionSpec(None, "data"))
        rows = PartitionSpec("data")
        specs = (weights, rows)
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=PartitionSpec())(pairs, x)

    return loss


def _mlp(up: tuple[Any, ...], down: tuple[Any, ...], x: tuple[Any, ...]) -> tuple[Any, ...]:
    pair = (Array((512, 2048), up), Array((2048, 512), down))
    return ((pair,) * 4, Array((16384, 512), x))


def _stack(up: tuple[Any, ...], down: tuple[Any, ...], x: tuple[Any, ...]) -> tuple[Any, ...]:
    pair = (Array((8, 512, 2048), (None, *up)), Array((8, 2048, 512), (None, *down)))
    return (pair, Array((16384, 512), x))


def _attention(inner: tuple[Any, ...], outer: tuple[Any, ...], x: tuple[Any, ...]) -> Any:
    project = Array((4, 256, 8, 64), (None, *inner))
    layers = (project, project, project, Array((4, 8, 64, 256), (None, *outer)))
    return (layers, Array((8, 256, 256), x))


_EIGHT, _BOTH = {"data": 8}, {"data": 4, "model": 2}
_HEADS = (None, "model")

CASES = (
    Case("mlp data", _EIGHT, False, mlp, _mlp((), (), ("data",))),
    Case("mlp fsdp", _EIGHT, False, mlp, _mlp(("data",), ("data",), ("data",))),
    Case("mlp tensor", {"model": 8}, False, mlp, _mlp((None, "model"), ("model",), ())),
    Case("mlp mixed", _BOTH, False, mlp, _mlp((None, "model"), ("model",), ("data",))),
    Case("scan data", _EIGHT, False, stack, _stack((), (), ("data",))),
    Case("scan fsdp", _EIGHT, False, stack, _stack(("data",), ("data",), ("data",))),
    Case("scan tensor", {"model": 8}, False, stack, _stack((None, "model"), ("model",), ())),
    Case("scan mixed", _BOTH, False, stack, _stack((None, "model"), ("model",), ("data",))),
    Case("attention data", _EIGHT, False, attention, _attention((), (), ("data",))),
    Case(
        "attention fsdp",
        _EIGHT,
        False,
        attention,
        _attention(("data",), (None, None, "data"), ("data",)),
    ),
    Case("attention tensor", {"model": 8}, False, attention, _attention(_HEADS, ("model",), ())),
    Case("attention mixed", _BOTH, False, attention, _attention(_HEADS, ("model",), ("data",))),
    Case("by hand", _EIGHT, False, by_hand, _stack(("data",), ("data",), ("data",))),
    Case("mlp data explicit", _EIGHT, True, mlp, _mlp((), (), ("data",))),
    Case("scan data explicit", _EIGHT, True, stack, _stack((), (), ("data",))),
    Case("attention data explicit", _EIGHT, True, attention, _attention((), (), ("data",))),
)
