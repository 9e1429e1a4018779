"""Programs compiled by jaxresid, and by `jax.jit` itself for the same place.

Run as a script with a place and names of cases and JAX_NUM_CPU_DEVICES=8; prints a line of
JSON for each. What jaxresid compiles it compiles in another process.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sharded
from jax.sharding import NamedSharding, PartitionSpec

from fixtures.inspect import train_step
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.inspector.trace.lowering import lowered, lowered_forward
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.xla.job import Job
from jaxresid.xla.places import parse_place
from jaxresid.xla.processes.process import execute

FIGURES = ("temp", "argument", "output", "alias", "generated_code")
HOST_FIGURES = ("host_temp", "host_argument", "host_output", "host_alias")


def on_one(device: Any, kind: str | None = None) -> NamedSharding:
    mesh = jax.sharding.Mesh(np.array([device]), ("one",))
    return NamedSharding(mesh, PartitionSpec(), **({} if kind is None else {"memory_kind": kind}))


def momentum_step(w: Any, momentum: Any, x: Any) -> Any:
    def loss(w: Any) -> Any:
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    value, gradient = jax.value_and_grad(loss)(w)
    momentum = 0.9 * momentum + gradient
    return value, w - 0.1 * momentum, momentum


def host_state(device: Any) -> Any:
    """The optimizer's state comes from host memory and goes back there."""
    here, host = on_one(device, "device"), on_one(device, "pinned_host")

    @functools.partial(jax.jit, donate_argnums=(0, 1), out_shardings=(here, here, host))
    def step(w: Any, momentum: Any, x: Any) -> Any:
        return momentum_step(w, jax.device_put(momentum, here), x)

    square = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    return step, (square, jax.ShapeDtypeStruct((512, 512), jnp.float32, sharding=host), square)


def jitted_shardings(devices: Any) -> Any:
    """A step whose shardings only its own jit knows."""
    mesh = jax.sharding.Mesh(np.array(devices[:8]), ("data",))
    split, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    step = jax.jit(
        momentum_step,
        in_shardings=(split, split, whole),
        out_shardings=(whole, split, split),
        donate_argnums=(0, 1),
    )
    square = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    return step, (square, square, square)


def made(name: str, devices: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A case over some devices: fake ones, or those of a topology."""
    if name == "donated":
        return train_step.train_step_donated, train_step.train_step_donated_inputs()
    if name == "host state":
        return host_state(devices[0])  # type: ignore[no-any-return]
    if name == "jitted shardings":
        return jitted_shardings(devices)  # type: ignore[no-any-return]
    case = next(case for case in sharded.CASES if case.name == name)
    axes = tuple(case.axes)
    types = jax.sharding.AxisType.Explicit if case.explicit else jax.sharding.AxisType.Auto
    mesh = jax.sharding.Mesh(
        np.array(devices[:8]).reshape(tuple(case.axes.values())),
        axes,
        axis_types=(types,) * len(axes),
    )
    return case.under("none"), case.inputs(mesh)


def of_jax(name: str, on: str) -> tuple[dict[str, int], Any]:
    """What `jax.jit` says of a case."""
    devices = jax.devices()
    if parse_place(on).topology:
        from jax.experimental.topologies import get_topology_desc

        devices = get_topology_desc(platform="tpu", topology_name=parse_place(on).topology).devices
    case = name.removeprefix("forward of ")
    fun, args = made(case, devices)
    if parse_place(on).topology and case in ("donated", "host state"):
        there = on_one(devices[0])
        args = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding or there), args
        )
    if case != name:
        plain = fun
        fun = jax.jit(lambda *args: jax.vjp(plain, *args))
    elif not hasattr(fun, "lower"):
        gradients = jax.value_and_grad(fun, argnums=tuple(range(len(args))))
        shardings = (None, jax.tree.map(lambda a: a.sharding, args))
        fun = jax.jit(gradients, out_shardings=shardings)
    traced = fun.trace(*args)
    compiled = traced.lower().compile()
    memory = compiled.memory_analysis()
    figures = {n: getattr(memory, f"{n}_size_in_bytes") for n in (*FIGURES, *HOST_FIGURES)}
    shardings = jax.tree.leaves(compiled.output_shardings)
    outputs = jax.tree.leaves(traced.out_info)
    return figures, [list(s.shard_shape(o.shape)) for s, o in zip(shardings, outputs, strict=True)]


def of_ours(name: str, on: str) -> tuple[dict[str, int] | str, Any]:
    case = name.removeprefix("forward of ")
    fun, args = made(case, jax.devices())
    traced = subject(Question(fun, args)).trace
    assert isinstance(traced, StepTrace) == hasattr(fun, "lower")
    lower = lowered if case == name else lowered_forward
    found = execute(Job(lower(traced, parse_place(on).platform), parse_place(on)))
    if found.error:
        return found.error, None
    figures = {n: found.stats.get(f"{n}_nbytes") for n in (*FIGURES, *HOST_FIGURES)}
    return figures, found.output_shards


if __name__ == "__main__":
    if os.environ.get("WITHOUT_SHARDY"):  # as a user's code may say
        jax.config.update("jax_use_shardy_partitioner", False)
    for name in sys.argv[2:]:
        ours, jaxs = of_ours(name, sys.argv[1]), of_jax(name, sys.argv[1])
        print(json.dumps({"case": name, "ours": ours, "jax": jaxs}), flush=True)
