"""Models over meshes of eight devices: how each is split, and under which policies.

Run on CPU devices of one's own process: set JAX_NUM_CPU_DEVICES=8 before jax is imported.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
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
      prevent_cse: that of the checkpoints.
    """

    name: str
    axes: dict[str, int]
    explicit: bool
    fun: Callable[[Callable[..., Any]], Callable[..., Any]]
    args: tuple[Any, ...]
    prevent_cse: bool = True

    def mesh(self) -> Any:
        return jax_compat.new_mesh(self.axes, explicit=self.explicit)

    def inputs(self, mesh: Any) -> tuple[Any, ...]:
        def struct(array: Array) -> Any:
            sharding = NamedSharding(mesh, PartitionSpec(*array.split))
            return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

        return jax.tree.map(struct, self.args)

    def under(self, policy: str) -> Callable[..., Any]:
        """The function with each of its layers checkpointed; `none`: with no checkpoint."""
        if policy == "none":
            made = self.fun(lambda layer: layer)
        else:
            options = {"policy": POLICIES[policy], "prevent_cse": self.prevent_cse}
            made = self.fun(lambda layer: jax.checkpoint(layer, **options))

        def fun(*args: Any) -> Any:
            _AXES.append(self.axes)
            try:
                return made(*args)
            finally:
                _AXES.pop()

        return fun


# The axes of the mesh of the case that is traced.
_AXES: list[dict[str, int]] = []


@dataclass(frozen=True)
class Array:
    shape: tuple[int, ...]
    split: tuple[Any, ...] = ()
    dtype: str = "float32"


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


def looped(layer: Callable[..., Any], start: tuple[Any, ...]) -> Callable[..., Any]:
    """Layers in a Python loop, of a batch that is first split like `start`."""

    def fun(wrap: Callable[..., Any]) -> Callable[..., Any]:
        def loss(pairs: Any, x: Any) -> Any:
            x = _constrained(x, *start)
            for pair in pairs:
                x = wrap(layer)(x, pair)
            return jnp.sum(x * x)

        return loss

    return fun


def scanned(layer: Callable[..., Any], start: tuple[Any, ...]) -> Callable[..., Any]:
    """The same layers, scanned."""

    def fun(wrap: Callable[..., Any]) -> Callable[..., Any]:
        def loss(pairs: Any, x: Any) -> Any:
            def body(x: Any, pair: Any) -> Any:
                return wrap(layer)(x, pair), None

            x, _ = jax.lax.scan(body, _constrained(x, *start), pairs)
            return jnp.sum(x * x)

        return loss

    return fun


def whole_weights(x: Any, pair: Any) -> Any:
    """A layer that asks for whole matrices where it uses them."""
    up, down = (_constrained(w) for w in pair)
    return _constrained(jnp.tanh(jnp.sin(x @ up) @ down), "data")


def mapped_weights(x: Any, pair: Any) -> Any:
    """A layer that is a `shard_map` and wants whole matrices."""
    rows, whole = PartitionSpec("data"), PartitionSpec()
    return jax.shard_map(
        lambda x, up, down: jnp.tanh(jnp.sin(x @ up) @ down),
        mesh=_mesh(),
        in_specs=(rows, whole, whole),
        out_specs=rows,
    )(x, *pair)


def split_rows(x: Any, pair: Any) -> Any:
    """A layer whose rows are constrained."""
    return _constrained(jnp.tanh(jnp.sin(x @ pair[0]) @ pair[1]), "data")


def sequence(x: Any, pair: Any) -> Any:
    """A layer of tensor parallelism, between which rows are split over its devices as well."""
    h = _constrained(x, "data", None)
    h = _constrained(jnp.sin(h @ pair[0]), "data", "model")
    return x + _constrained(jnp.tanh(h @ pair[1]), ("data", "model"), None)


def two_ways(x: Any, pair: Any) -> Any:
    """A layer that wants one value split in two ways."""
    rows, columns = _constrained(x, "data", None), _constrained(x, None, "data")
    made = jnp.tanh(jnp.sin(rows @ pair[0]) @ pair[1])
    return _constrained(made, "data", None) + _constrained(jnp.cos(columns), "data", None)


def logits(wrap: Callable[..., Any]) -> Callable[..., Any]:
    """A product that is split over its rows, and then over its columns."""

    def last(x: Any, table: Any) -> Any:
        made = _constrained(_constrained(x, "data") @ table, "data", None)
        return jnp.mean(jax.nn.logsumexp(_constrained(made, None, "data"), -1) * 2)

    return lambda table, x: wrap(last)(x, table)


_HEADS_OF_DECODER = 12


def decoder(*, is_scanned: bool, split: tuple[Any, ...] | None) -> Callable[..., Any]:
    """Layers of a decoder in bfloat16 with their embedding and logits.

    Its residual stream is constrained to a split; with None XLA is left to choose one.
    """

    def layer(x: Any, weights: Any) -> Any:
        scale = jax.lax.rsqrt(jnp.mean(jnp.square(x.astype("float32")), -1, keepdims=True) + 1e-6)
        mixed = (x * scale.astype(x.dtype)) @ weights["qkv"]
        mixed = mixed.reshape(*x.shape[:2], 3 * _HEADS_OF_DECODER, -1)
        y = jax.nn.dot_product_attention(*jnp.split(mixed, 3, 2), is_causal=True).reshape(x.shape)
        x = stream(x + y @ weights["o"])
        return stream(x + jax.nn.gelu(x @ weights["up"]) @ weights["down"])

    def stream(x: Any) -> Any:
        return x if split is None else _constrained(x, *split)

    def fun(wrap: Callable[..., Any]) -> Callable[..., Any]:
        def loss(weights: Any, tokens: Any) -> Any:
            x = stream(weights["table"][tokens])
            if is_scanned:
                x, _ = jax.lax.scan(lambda x, w: (wrap(layer)(x, w), None), x, weights["layers"])
            else:
                for each in weights["layers"]:
                    x = wrap(layer)(x, each)
            found = jax.nn.log_softmax((x @ weights["table"].T).astype("float32"))
            return -jnp.mean(jnp.take_along_axis(found, tokens[..., None], -1))

        return loss

    return fun


def published(wrap: Callable[..., Any]) -> Callable[..., Any]:
    """The decoder of the documentation, split over eight chips with no constraint."""
    path = Path(__file__).parents[1] / "fixtures/compile/decoder.py"
    spec = importlib.util.spec_from_file_location("published_decoder", path)
    assert spec is not None and spec.loader is not None
    model = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)

    def scan(body: Callable[..., Any], x: Any, layers: Any) -> Any:
        return jax.lax.scan(wrap(body), x, layers)

    # Its loss as it is, with another scan.
    model.jax = SimpleNamespace(lax=SimpleNamespace(scan=scan, rsqrt=jax.lax.rsqrt), nn=jax.nn)
    return model.loss


def _published_args() -> Any:
    layers, width, wide, words = 32, 2560, 10240, 32_000

    def weight(*shape: int, at: int) -> Array:
        return Array(shape, tuple("chips" if i == at else None for i in range(at + 1)), "bfloat16")

    stacked = {
        "g1": weight(layers, width, at=1),
        "wqkv": weight(layers, width, 3 * width, at=1),
        "wo": weight(layers, width, width, at=1),
        "g2": weight(layers, width, at=1),
        "w1": weight(layers, width, wide, at=1),
        "w2": weight(layers, wide, width, at=1),
    }
    table, gain = weight(words, width, at=0), weight(width, at=0)
    params = {"embedding": table, "gain": gain, "layers": stacked}
    return params, Array((32, 2048), ("chips",), "int32")


def _constrained(x: Any, *split: Any) -> Any:
    return jax.lax.with_sharding_constraint(x, NamedSharding(_mesh(), PartitionSpec(*split)))


def _mesh() -> Any:
    return jax_compat.new_mesh(_AXES[-1], explicit=False)


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


def _pairs(count: int, up: tuple[Any, ...], down: tuple[Any, ...], x: tuple[Any, ...]) -> Any:
    """Wide matrices, of which devices hold a part, or the whole of narrow ones."""
    pair = (Array((4096, 16384), up), Array((16384, 4096), down))
    return ((pair,) * count, Array((8192, 4096), x))


def _stacked(count: int, up: tuple[Any, ...], down: tuple[Any, ...], x: tuple[Any, ...]) -> Any:
    pair = (Array((count, 4096, 16384), (None, *up)), Array((count, 16384, 4096), (None, *down)))
    return (pair, Array((8192, 4096), x))


def _rows(count: int, up: tuple[Any, ...], down: tuple[Any, ...], x: tuple[Any, ...]) -> Any:
    """Narrower matrices and more rows."""
    pair = (Array((1024, 4096), up), Array((4096, 1024), down))
    return ((pair,) * count, Array((65536, 1024), x))


def _stacked_rows(
    count: int, up: tuple[Any, ...], down: tuple[Any, ...], x: tuple[Any, ...]
) -> Any:
    pair = (Array((count, 1024, 4096), (None, *up)), Array((count, 4096, 1024), (None, *down)))
    return (pair, Array((65536, 1024), x))


def _decoder(
    is_scanned: bool, columns: tuple[Any, ...], rows: tuple[Any, ...], batch: int = 32
) -> Any:
    width, wide, layers = 1536, 6144, 8
    ahead = ((layers,), (None,)) if is_scanned else ((), ())

    def weight(shape: tuple[int, ...], split: tuple[Any, ...]) -> Array:
        return Array((*ahead[0], *shape), (*ahead[1], *split), "bfloat16")

    layer = {
        "qkv": weight((width, 3 * width), columns),
        "o": weight((width, width), rows),
        "up": weight((width, wide), columns),
        "down": weight((wide, width), rows),
    }
    table = Array((16384, width), rows, "bfloat16")
    weights = {"table": table, "layers": layer if is_scanned else [layer] * layers}
    return (weights, Array((batch, 1024), ("data",), "int32"))


_D = ("data",)
_TENSOR = ((None, "model"), ("model",))
_FSDP = (_D, (None, "data"))
_TWO = (("data", "model"), ("model", "data"))
# Programs that take half a GiB and more, so that a TPU's on-chip memory holds little of them.
LARGE = (
    Case("large mlp data", _EIGHT, False, mlp, _rows(4, (), (), _D)),
    Case("large mlp fsdp", _EIGHT, False, mlp, _pairs(4, _D, _D, _D)),
    Case("large mlp mixed", _BOTH, False, mlp, _rows(4, *_TENSOR, _D)),
    Case("large scan data", _EIGHT, False, stack, _stacked_rows(8, (), (), _D)),
    Case("large scan fsdp", _EIGHT, False, stack, _stacked(6, _D, _D, _D)),
    Case("large scan mixed", _BOTH, False, stack, _stacked_rows(8, *_TENSOR, _D)),
    Case("gathered by xla", _EIGHT, False, looped(whole_weights, _D), _pairs(4, _D, _D, _D)),
    Case("gathered in scan", _EIGHT, False, scanned(whole_weights, _D), _stacked(6, _D, _D, _D)),
    Case("gathered for map", _EIGHT, False, looped(mapped_weights, _D), _pairs(4, _D, _D, _D)),
    Case("mapped in scan", _EIGHT, False, scanned(mapped_weights, _D), _stacked(6, _D, _D, _D)),
    Case("whole batch", _EIGHT, False, looped(split_rows, _D), _rows(6, (), (), ())),
    Case(
        "whole batch scanned", _EIGHT, False, scanned(split_rows, _D), _stacked_rows(8, (), (), ())
    ),
    Case("sequence", _BOTH, False, looped(sequence, (("data", "model"),)), _rows(6, *_TENSOR, _D)),
    Case(
        "sequence scanned",
        _BOTH,
        False,
        scanned(sequence, (("data", "model"),)),
        _stacked_rows(8, *_TENSOR, _D),
    ),
    Case("two ways", _EIGHT, False, looped(two_ways, _D), _rows(6, (), (), _D)),
    Case("two ways scanned", _EIGHT, False, scanned(two_ways, _D), _stacked_rows(8, (), (), _D)),
    Case("logits", _EIGHT, False, logits, (Array((1024, 32768)), Array((16384, 1024), _D))),
    Case(
        "decoder fsdp",
        _EIGHT,
        False,
        decoder(is_scanned=False, split=_D),
        _decoder(False, *_FSDP),
    ),
    Case(
        "decoder fsdp scanned",
        _EIGHT,
        False,
        decoder(is_scanned=True, split=_D),
        _decoder(True, *_FSDP),
    ),
    Case("decoder 2d", _BOTH, False, decoder(is_scanned=False, split=_D), _decoder(False, *_TWO)),
    Case(
        "decoder 2d scanned",
        _BOTH,
        False,
        decoder(is_scanned=True, split=_D),
        _decoder(True, *_TWO),
    ),
    Case(
        "decoder left to xla",
        _EIGHT,
        False,
        decoder(is_scanned=False, split=None),
        _decoder(False, (None, "data"), _D, 8),
    ),
    Case(
        "decoder left to xla scanned",
        _EIGHT,
        False,
        decoder(is_scanned=True, split=None),
        _decoder(True, (None, "data"), _D, 8),
    ),
    Case(
        "decoder by rows left to xla",
        _EIGHT,
        False,
        decoder(is_scanned=True, split=None),
        _decoder(True, _D, (None, "data"), 8),
    ),
    Case("published", {"chips": 8}, False, published, _published_args(), prevent_cse=False),
)
