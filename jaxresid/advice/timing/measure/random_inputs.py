"""Make random inputs for functions that are to run: what each leaf is, and the arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError

# The names that key dtypes print -> the names that `jax.random.key` knows.
_IMPLEMENTATIONS = {
    "key<fry>": "threefry2x32",
    "key<rbg>": "rbg",
    "key<urbg>": "unsafe_rbg",
}
_KERNEL = 7


@dataclass(frozen=True, slots=True, eq=False)
class LeafRecipe:
    """How to make one leaf; it can be pickled.

    Attributes:
      kind: `normal`, `bool` or `bits` at random; `key` split off a seed; `array`, `keys` or
        `number` as given in `value`.
      shape: The shape of the leaf.
      dtype: The name of its dtype; for keys, that of their implementation.
      host: Whether it lies in pinned host memory.
      weak: Whether its dtype gives way to others, as a Python number's does.
      value: The array (for keys their data) or the number.
    """

    kind: Literal["normal", "bool", "bits", "key", "array", "keys", "number"]
    shape: tuple[int, ...] = ()
    dtype: str = ""
    host: bool = False
    weak: bool = False
    value: Any = None


def leaf_recipes(leaves: Sequence[Any], paths: Sequence[str]) -> tuple[LeafRecipe, ...]:
    """Return how to make each leaf: arrays and numbers as they are, structs at random.

    Raises:
      InputsError: The values of a leaf cannot be guessed, as those of token ids.
    """
    found = [_draw(leaf) for leaf in leaves]
    unknown = [i for i, draw in enumerate(found) if draw is None]
    if unknown:
        first = unknown[0]
        more = f" (nor can {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        raise InputsError(
            f"{paths[first]}, {_described(leaves[first])}, cannot be drawn at random{more}: give"
            " the inputs themselves with --inputs make_inputs --concrete-inputs, a function that"
            " returns them (from Python: pass arrays)"
        )
    return tuple(draw for draw in found if draw is not None)


def make_leaves(recipes: Sequence[LeafRecipe], seed: int, *, nudged: bool = False) -> list[Any]:
    """Return the leaves on the default device, the same for a seed on every version of JAX.

    Floats are standard normal. Those of two and more dimensions are taken for weights and scaled by
    1 / sqrt(fan in), so that deep networks neither overflow nor vanish. The fan in is the last
    dimension but one, times the dimensions up to 7 in front of it, which a convolution's kernel
    has. A uint32 array that is as wide as a raw PRNG key is drawn as one.

    Args:
      recipes: How to make each leaf.
      seed: The seed of the random numbers.
      nudged: Whether floats are changed in their last bit, at random.
    """
    return [_leaf(draw, [seed, i], nudged) for i, draw in enumerate(recipes)]


def spec(recipe: LeafRecipe) -> Any:
    """Return the leaf as a struct to trace with; a number as it is."""
    jax = jax_compat.import_jax()
    if recipe.kind == "number":
        return recipe.value
    if recipe.kind in ("key", "keys"):
        key = jax.eval_shape(lambda: jax.random.key(0, impl=recipe.dtype))
        return jax.ShapeDtypeStruct(recipe.shape, key.dtype)
    dtype = jax.numpy.dtype(recipe.dtype)
    sharding = _host() if recipe.host else None
    return jax.ShapeDtypeStruct(recipe.shape, dtype, sharding=sharding, weak_type=recipe.weak)


def _draw(leaf: Any) -> LeafRecipe | None:
    jax = jax_compat.import_jax()
    if isinstance(leaf, int | float | complex) and not hasattr(leaf, "dtype"):
        return LeafRecipe("number", value=leaf)
    shape = tuple(leaf.shape)
    host = getattr(getattr(leaf, "sharding", None), "memory_kind", None) == "pinned_host"
    given = not isinstance(leaf, jax.ShapeDtypeStruct)
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        if given:
            data = np.asarray(jax.random.key_data(leaf))
            return LeafRecipe("keys", shape, str(jax.random.key_impl(leaf)), value=data)
        name = _IMPLEMENTATIONS.get(str(leaf.dtype))
        return None if name is None else LeafRecipe("key", shape, name)
    if leaf.dtype == jax.dtypes.float0 or jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        return None
    dtype = str(leaf.dtype)
    weak = bool(getattr(leaf, "weak_type", False))
    if given:
        return LeafRecipe("array", shape, dtype, host, weak, np.asarray(leaf))
    if jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact):
        return LeafRecipe("normal", shape, dtype, host, weak)
    if dtype == "bool":
        return LeafRecipe("bool", shape, dtype, host)
    if dtype == "uint32" and shape[-1:] == jax.eval_shape(lambda: jax.random.PRNGKey(0)).shape:
        return LeafRecipe("bits", shape, dtype, host)
    return None


def _described(leaf: Any) -> str:
    is_float0 = leaf.dtype == jax_compat.import_jax().dtypes.float0
    kind = "float0" if is_float0 else str(leaf.dtype)
    reason = " of unknown range" if "int" in kind else ""
    return f"{kind}{list(leaf.shape)}{reason}"


def _leaf(recipe: LeafRecipe, seed: list[int], nudged: bool) -> Any:
    jax = jax_compat.import_jax()
    if recipe.kind == "number":
        return recipe.value
    if recipe.kind == "keys":
        return jax.random.wrap_key_data(recipe.value, impl=recipe.dtype)
    if recipe.kind == "key":
        key = jax.random.key(seed[0], impl=recipe.dtype)
        return jax.random.split(key, recipe.shape) if recipe.shape else key
    array = recipe.value if recipe.kind == "array" else _array(recipe, seed)
    if nudged:
        array = _nudged(array, seed)
    return jax.device_put(array, _host() if recipe.host else jax.devices()[0])


def _array(recipe: LeafRecipe, seed: list[int]) -> np.ndarray:
    dtype = jax_compat.import_jax().numpy.dtype(recipe.dtype)
    random = np.random.default_rng(seed)
    if recipe.kind == "bool":
        return random.integers(0, 2, recipe.shape).astype(bool)
    if recipe.kind == "bits":
        return random.integers(0, 2**32, recipe.shape, np.uint32)
    if dtype.kind == "c":
        parts = random.standard_normal((*recipe.shape, 2)) / math.sqrt(2)
        array: np.ndarray = parts[..., 0] + 1j * parts[..., 1]
    else:
        wide = np.float64 if dtype.itemsize == 8 else np.float32
        array = random.standard_normal(recipe.shape, wide)
    array *= _scale(recipe.shape)
    return np.asarray(array).astype(dtype)


def _scale(shape: tuple[int, ...]) -> float:
    if len(shape) < 2 or not math.prod(shape):
        return 1.0
    return 1 / math.sqrt(shape[-2] * math.prod(n for n in shape[:-2] if n <= _KERNEL))


def _nudged(array: np.ndarray, seed: list[int]) -> np.ndarray:
    """Return an array with every finite element other than 0 replaced by one of its neighbours."""
    if not jax_compat.import_jax().numpy.issubdtype(array.dtype, np.inexact):
        return array
    if array.dtype.kind == "c":
        parts = array[..., None].view(array.real.dtype)
        return _nudged(parts, seed).view(array.dtype)[..., 0]
    up = np.random.default_rng([*seed, 1]).integers(0, 2, array.shape, np.uint8).astype(bool)
    towards = np.where(up, np.inf, -np.inf).astype(array.dtype)
    nudged = array.copy()
    np.nextafter(array, towards, out=nudged, where=np.isfinite(array) & (array != 0))
    return nudged


def _host() -> Any:
    """Return host memory, as the kind of sharding that the inspector gives structs in it."""
    jax = jax_compat.import_jax()
    mesh = jax.sharding.Mesh(jax.devices()[:1], "device")
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(), memory_kind="pinned_host")
