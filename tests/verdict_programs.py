"""Programs with checkpoints that can be left out by hand, and what plain JAX then says of them.

A program is built with some of its checkpoints, which go by the names of the functions that they
are of: building it without one is removing that one from the code. Each is small, and scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

cp = jax.checkpoint_policies


@dataclass(frozen=True)
class Program:
    """A program of which checkpoints can be left out.

    Attributes:
      build: makes the function, with the checkpoints of these names.
      inputs: makes its arguments, of about this width.
      names: the names of all its checkpoints.
    """

    build: Callable[[frozenset[str]], Callable[..., Any]]
    inputs: Callable[[int], tuple[Any, ...]]
    names: tuple[str, ...]

    def whole(self) -> Callable[..., Any]:
        return self.build(frozenset(self.names))

    def without(self, name: str) -> Callable[..., Any]:
        return self.build(frozenset(self.names) - {name})


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def maybe(present: Iterable[str], fun: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return jax.checkpoint(fun, **options) if fun.__name__ in present else fun


def first(x: Any, w: Any) -> Any:
    return jnp.sin(jnp.tanh(x @ w) @ w.T)


def second(x: Any, w: Any) -> Any:
    return x + jax.nn.gelu(x @ w) @ w.T


def head(x: Any, w: Any) -> Any:
    return jnp.mean(jax.nn.logsumexp(x @ w, axis=-1))


def named(x: Any, w: Any) -> Any:
    hidden = checkpoint_name(x @ w, "hidden")
    return jnp.sin(jnp.cos(hidden)) @ w.T


def scan(body: Callable[..., Any], x: Any, stacked: Any) -> Any:
    return jax.lax.scan(lambda x, w: (body(x, w), None), x, stacked)[0]


def two_scans(present: frozenset[str]) -> Callable[..., Any]:
    one, two = maybe(present, first), maybe(present, second, policy=cp.dots_saveable)

    def loss(stacked: Any, x: Any) -> Any:
        return jnp.sum(scan(two, scan(one, x, stacked), stacked) ** 2)

    return loss


def unrolled(present: frozenset[str]) -> Callable[..., Any]:
    one, two = maybe(present, first), maybe(present, second)

    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = one(x, w)
            x = two(x, w)
        return jnp.sum(x**2)

    return loss


def nested(present: frozenset[str]) -> Callable[..., Any]:
    def net(stacked: Any, x: Any) -> Any:
        return jnp.sum(scan(maybe(present, first), x, stacked) ** 2)

    return maybe(present, net)


def last_stage(present: frozenset[str]) -> Callable[..., Any]:
    def loss(stacked: Any, x: Any, wide: Any) -> Any:
        return maybe(present, head)(scan(maybe(present, second), x, stacked), wide)

    return loss


def around_the_loop(present: frozenset[str]) -> Callable[..., Any]:
    def layers(x: Any, stacked: Any) -> Any:
        return scan(second, x, stacked)

    def loss(stacked: Any, x: Any) -> Any:
        x = scan(maybe(present, first), x, stacked)
        return jnp.sum(maybe(present, layers)(x, stacked) ** 2)

    return loss


def cse_allowed(present: frozenset[str]) -> Callable[..., Any]:
    one = maybe(present, first, prevent_cse=False)
    two = maybe(present, second, prevent_cse=False)

    def loss(stacked: Any, x: Any) -> Any:
        x = scan(two, x, stacked)
        for i in range(2):
            x = one(x, stacked[i])
        return jnp.sum(x**2)

    return loss


def step(present: frozenset[str]) -> Callable[..., Any]:
    loss = last_stage(present)

    def train(stacked: Any, x: Any, wide: Any) -> Any:
        value, gradients = jax.value_and_grad(loss, argnums=(0, 2))(stacked, x, wide)
        stacked, wide = jax.tree.map(lambda w, g: w - 0.1 * g, (stacked, wide), gradients)
        return stacked, wide, value

    return train


def by_names(present: frozenset[str]) -> Callable[..., Any]:
    saves = maybe(present, named, policy=cp.save_only_these_names("hidden"))
    misses = maybe(present, second, policy=cp.save_only_these_names("hiden"))

    def loss(stacked: Any, x: Any) -> Any:
        return jnp.sum(scan(misses, scan(saves, x, stacked), stacked) ** 2)

    return loss


def trivial(present: frozenset[str]) -> Callable[..., Any]:
    def double(x: Any) -> Any:
        return 2 * x

    def loss(ws: Any, x: Any) -> Any:
        x = maybe(present, double)(x)
        for w in ws:
            x = maybe(present, first, policy=cp.dots_saveable)(x, w)
        return jnp.sum(x**2)

    return loss


def stacked_inputs(width: int, layers: int = 6) -> tuple[Any, ...]:
    return f32(layers, width, 2 * width), f32(8 * width, width)


def listed_inputs(width: int, layers: int = 4) -> tuple[Any, ...]:
    return [f32(width, 2 * width) for _ in range(layers)], f32(8 * width, width)


def headed_inputs(width: int) -> tuple[Any, ...]:
    return (*stacked_inputs(width), f32(width, 16 * width))


PROGRAMS = {
    "two scans": Program(two_scans, stacked_inputs, ("first", "second")),
    "unrolled": Program(unrolled, listed_inputs, ("first", "second")),
    "nested": Program(nested, stacked_inputs, ("net", "first")),
    "last stage": Program(last_stage, headed_inputs, ("second", "head")),
    "around the loop": Program(around_the_loop, stacked_inputs, ("first", "layers")),
    "cse allowed": Program(cse_allowed, stacked_inputs, ("first", "second")),
    "step": Program(step, headed_inputs, ("second", "head")),
    "names": Program(by_names, stacked_inputs, ("named", "second")),
    "trivial": Program(trivial, listed_inputs, ("double", "first")),
}


def differentiated(name: str, fun: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    """Return what a user runs: the function with its gradients, or the step."""
    if name == "step":
        return fun
    return jax.value_and_grad(fun, argnums=tuple(range(len(args))))


def peak_by_jax(
    name: str, fun: Callable[..., Any], args: tuple[Any, ...], sharding: Any = None
) -> int:
    """Return what `jax.jit` says that a program takes, by the sum that a peak is.

    Args:
      name: the name of the program.
      fun: the function, with some of its checkpoints.
      args: its arguments.
      sharding: where they are, for devices that are not there; None: on this machine's.
    """
    if sharding is not None:
        args = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), args
        )
    jitted = jax.jit(differentiated(name, fun, args), keep_unused=True)
    memory = jitted.lower(*args).compile().memory_analysis()
    return (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
    )


def verdict_of(
    dropped_nbytes: int, peak_nbytes: int, without_nbytes: int, *, can_be_undone: bool
) -> str:
    """Return the verdict that such peaks call for, as the documentation has it.

    Args:
      dropped_nbytes: the residual bytes that the checkpoint drops.
      peak_nbytes: the peak with it.
      without_nbytes: the peak without it.
      can_be_undone: whether it allows CSE outside of a loop.
    """
    saved = without_nbytes - peak_nbytes
    is_small = saved < without_nbytes / 10
    is_useless = is_small and (dropped_nbytes <= 0 or saved < dropped_nbytes / 4)
    if -saved > without_nbytes / 50:
        return "costs-memory"
    if is_useless and can_be_undone and dropped_nbytes > 0:
        return "undone-by-xla"
    return "saves-nothing" if is_useless else "earns-its-keep"
