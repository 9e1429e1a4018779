"""Whether XLA:CPU keeps what checkpoints recompute apart from the forward pass, JAX by JAX.

    python tests/benchmarks/barriers.py PYTHON...

compiles a set of checkpointed programs with the JAX of each interpreter, jax_remat3 off and on
where there is one, and prints a line for each: how many of the operations that its checkpoints ask
to be computed again are in the optimised HLO. They are counted (products, tanh, cos) in the program
with checkpoints and in the same without: equal bytes would prove nothing. What comes out is in
`jaxresid/inspector/memory/compiler_versions.py`.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

LAYERS = 4
COUNTED = {"dot": "dot_general", "tanh": "tanh", "cosine": "cos"}  # in HLO: in jaxprs


def programs(jax: Any) -> dict[str, Callable[..., Any]]:
    """Each program by name: a builder that takes what stands for `jax.checkpoint` and returns
    `(function, arguments)`. The function computes gradients itself."""
    import jax.numpy as jnp
    from jax import lax
    from jax.ad_checkpoint import checkpoint_name

    w = jax.ShapeDtypeStruct((128, 128), jnp.float32)
    x = jax.ShapeDtypeStruct((512, 128), jnp.float32)
    stacked = jax.ShapeDtypeStruct((LAYERS, 128, 128), jnp.float32)

    def tanh_layer(h: Any, w: Any) -> Any:
        return h + jnp.tanh(checkpoint_name(jnp.tanh(h @ w), "first") @ w)

    def sin_layer(h: Any, w: Any) -> Any:
        return h + jnp.sin(checkpoint_name(jnp.sin(h @ w), "first") @ w)

    def norm_layer(h: Any, w: Any) -> Any:
        centred = h - h.mean(-1, keepdims=True)
        scaled = centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        return h + jnp.tanh(scaled @ w) @ w

    def unrolled(layer: Any, **options: Any) -> Any:
        def build(checkpoint: Any) -> Any:
            def loss(ws: Any, h: Any) -> Any:
                for w in ws:
                    h = checkpoint(layer, **options)(h, w)
                return (h**2).sum()

            return jax.value_and_grad(loss), ([w] * LAYERS, x)

        return build

    def scanned(layer: Any, inner: bool = False, **options: Any) -> Any:
        def build(checkpoint: Any) -> Any:
            def twice(h: Any, w: Any) -> Any:
                one = checkpoint(layer, **options)
                return one(one(h, w), w)

            body = checkpoint(twice if inner else layer, **options)

            def loss(ws: Any, h: Any) -> Any:
                return (lax.scan(lambda h, w: (body(h, w), None), h, ws)[0] ** 2).sum()

            return jax.value_and_grad(loss), (stacked, x)

        return build

    def calls_in_body(checkpoint: Any) -> Any:
        """Both passes of a checkpointed loss are in the body of a scan: microbatches."""

        def loss(ws: Any, h: Any) -> Any:
            for w in ws:
                h = checkpoint(tanh_layer)(h, w)
            return (h**2).sum()

        def run(ws: Any, hs: Any) -> Any:
            def body(total: Any, h: Any) -> Any:
                found = jax.grad(loss)(ws, h)
                return jax.tree.map(jnp.add, total, found), None

            return lax.scan(body, jax.tree.map(jnp.zeros_like, ws), hs)[0]

        return run, ([w] * LAYERS, jax.ShapeDtypeStruct((2, 512, 128), jnp.float32))

    def whole(checkpoint: Any) -> Any:
        def loss(ws: Any, h: Any) -> Any:
            for w in ws:
                h = tanh_layer(h, w)
            return (h**2).sum()

        return jax.value_and_grad(checkpoint(loss)), ([w] * LAYERS, x)

    def step(checkpoint: Any) -> Any:
        inner, args = unrolled(tanh_layer)(checkpoint)

        def update(ws: Any, m: Any, h: Any) -> Any:
            value, grads = inner(ws, h)
            m = jax.tree.map(lambda a, g: 0.9 * a + g, m, grads)
            return jax.tree.map(lambda a, g: a - 0.1 * g, ws, m), m, value

        return update, (args[0], args[0], args[1])

    def half(checkpoint: Any) -> Any:
        fun, args = unrolled(tanh_layer)(checkpoint)
        return fun, jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jnp.bfloat16), args)

    def batched(checkpoint: Any) -> Any:
        fun, (ws, _) = unrolled(tanh_layer)(checkpoint)
        return jax.vmap(fun, (None, 0)), (ws, jax.ShapeDtypeStruct((2, 512, 128), jnp.float32))

    def split(checkpoint: Any) -> Any:
        fun, (ws, h) = unrolled(tanh_layer)(checkpoint)
        mesh = jax.sharding.Mesh(jax.devices(), ("data",))
        rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
        return fun, (ws, jax.ShapeDtypeStruct(h.shape, h.dtype, sharding=rows))

    def barrier(checkpoint: Any) -> Any:
        """A barrier that the user wrote, in place of a checkpoint."""
        hide = (lambda v: v) if checkpoint is no_checkpoint else lax.optimization_barrier

        def fun(ws: Any, h: Any) -> Any:
            total = h
            for w in ws:
                total = total + jnp.tanh(h @ w) * 2 - jnp.tanh(hide(h) @ w) @ w
            return total

        return fun, ([w] * LAYERS, x)

    policies = jax.checkpoint_policies
    names = policies.save_only_these_names("first")
    return {
        "unrolled, full": unrolled(tanh_layer),
        "unrolled, sin": unrolled(sin_layer),
        "unrolled, norm": unrolled(norm_layer),
        "unrolled, dots": unrolled(tanh_layer, policy=policies.dots_saveable),
        "unrolled, sin, dots": unrolled(sin_layer, policy=policies.dots_saveable),
        "unrolled, names": unrolled(tanh_layer, policy=names),
        "unrolled, prevent_cse=False": unrolled(tanh_layer, prevent_cse=False),
        "unrolled, bfloat16": half,
        "unrolled, vmap": batched,
        "unrolled, step": step,
        "unrolled, two devices": split,
        "whole loss": whole,
        "scan": scanned(tanh_layer),
        "scan, dots": scanned(sin_layer, policy=policies.dots_saveable),
        "scan, names": scanned(tanh_layer, policy=names),
        "scan, prevent_cse=False": scanned(tanh_layer, prevent_cse=False),
        "scan, nested": scanned(tanh_layer, inner=True),
        "both passes in a scan's body": calls_in_body,
        "lax.optimization_barrier": barrier,
    }


def no_checkpoint(fun: Any, **_: Any) -> Any:
    return fun


def counted_hlo(text: str) -> Counter[str]:
    """The counted instructions of a module, those of a computation as often as it is called."""
    found: dict[str, Counter[str]] = {}
    calls: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line):
            name = head.group(2)
            found[name], calls[name] = Counter(), []
            entry = name if head.group(1) else entry
        elif made := re.match(r"\s+(?:ROOT )?%?[\w.\-]+ = .*? ([a-z][\w\-]*)\(", line):
            if made.group(1) in COUNTED:
                found[name][made.group(1)] += 1
            for group in re.findall(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)", line):
                calls[name].append(group)

    @functools.cache
    def total(computation: str) -> Counter[str]:
        return sum((total(c) for c in calls[computation]), found[computation])

    return total(entry)


def counted_jaxpr(jaxpr: Any) -> Counter[str]:
    """The same of a jaxpr: what is asked for."""
    found: Counter[str] = Counter()
    words = {primitive: word for word, primitive in COUNTED.items()}
    for eqn in jaxpr.eqns:
        params = eqn.params
        if "_prim" in params:
            params = params["_prim"].params
        if eqn.primitive.name in words:
            found[words[eqn.primitive.name]] += 1
        for value in params.values():
            for each in value if isinstance(value, tuple | list) else [value]:
                inner = getattr(each, "jaxpr", each)
                if hasattr(inner, "eqns"):
                    found += counted_jaxpr(inner)
    return found


def measure() -> None:
    """Prints what the JAX of this process does, a JSON object per line."""
    import jax

    for name, build in programs(jax).items():
        try:
            asked, made, nbytes = figures(jax, *build(jax.checkpoint))
            asked_plain, made_plain, nbytes_plain = figures(jax, *build(no_checkpoint))
        except NotImplementedError as e:  # jax_remat3 of 0.10.2 has no rule for names under vmap
            print(json.dumps({"program": name, "refused": str(e).splitlines()[0]}), flush=True)
            continue
        row = {
            "program": name,
            "asked": asked - asked_plain,
            "recomputed": made - made_plain,
            "temporaries": [nbytes, nbytes_plain],
        }
        print(json.dumps(row), flush=True)


def figures(jax: Any, fun: Callable[..., Any], args: Any) -> tuple[Counter[str], Counter[str], int]:
    asked = counted_jaxpr(jax.make_jaxpr(fun)(*args).jaxpr)
    compiled = jax.jit(fun).lower(*args).compile()
    nbytes = compiled.memory_analysis().temp_size_in_bytes
    return asked, counted_hlo(compiled.as_text()), nbytes


def main(pythons: list[str]) -> None:
    for python in pythons:
        asks = "import jax; print(jax.__version__, __import__('jaxlib').__version__,"
        asks += " hasattr(jax.config, 'jax_remat3'))"
        jax, jaxlib, has_remat3 = _output([python, "-c", asks]).split()
        for remat3 in ["0", "1"] if has_remat3 == "True" else ["0"]:
            print(f"jax {jax}, jaxlib {jaxlib}, jax_remat3 {'on' if remat3 == '1' else 'off'}")
            for line in _output([python, __file__], JAX_REMAT3=remat3).splitlines():
                row = json.loads(line)
                if "refused" in row:
                    print(f"  {row['program']:30} JAX refuses it: {row['refused']}")
                    continue
                asked, made = (
                    "+".join(f"{n} {word}" for word, n in sorted(row[k].items())) or "nothing"
                    for k in ("asked", "recomputed")
                )
                with_it, without = (f"{n / 2**20:.2f}" for n in row["temporaries"])
                print(
                    f"  {row['program']:30} asked {asked:16} recomputed {made:16}"
                    f" temporaries {with_it} MiB, without {without}"
                )


def _output(command: list[str], **environment: str) -> str:
    given = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2", **environment}
    here = Path(__file__).parent
    return subprocess.run(
        command, env=given, cwd=here, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


if __name__ == "__main__":
    if sys.argv[1:]:
        main(sys.argv[1:])
    else:
        measure()
