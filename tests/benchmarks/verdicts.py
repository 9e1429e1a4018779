"""What checkpoints that are called useless do to a compiler's memory.

    python tests/benchmarks/verdicts.py [--programs 60] [--seed 0]

Random layered programs under `jax.grad`: plain, with a checkpoint around the whole loss, and with
one around the last stage. Each is compiled for this machine's CPU. For the checkpoints that the
verdict calls useless (on cpu) it prints by how much XLA's temporaries change; what changes by
more than 5 % is listed with its shapes.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import jax.numpy as jnp

from jaxresid import inspect
from jaxresid.model import Verdict

ACTIVATIONS = {
    "sin": jnp.sin,
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
    "softplus": jax.nn.softplus,
    "sin(cos)": lambda x: jnp.sin(jnp.cos(x)),
    "none": lambda x: x,
}


def normalized(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)


def layer(kind, activation):
    act = ACTIVATIONS[activation]
    if kind == "dense":
        return lambda w, x: act(x @ w[0])
    if kind == "residual":
        return lambda w, x: x + act(normalized(x) @ w[0]) @ w[1]
    if kind == "gated":
        return lambda w, x: (act(x @ w[0]) * (x @ w[1])) @ w[2]
    return lambda w, x: act(normalized(x @ w[0]))


def weights(kind, width, new):
    shapes = {
        "dense": [(width, new)],
        "residual": [(width, new), (new, width)],
        "gated": [(width, new), (width, new), (new, width)],
        "normed": [(width, new)],
    }[kind]
    return [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]


def program(rng):
    """Layers and their weights, an input, and words for it."""
    batch, width = rng.choice([256, 512, 1024]), rng.choice([128, 256, 512])
    x = jax.ShapeDtypeStruct((batch, width), jnp.float32)
    layers, params, words = [], [], [f"{batch}x{width}"]
    for _ in range(rng.randint(2, 7)):
        kind = rng.choice(["dense", "residual", "gated", "normed"])
        activation = rng.choice(sorted(ACTIVATIONS))
        new = rng.choice([128, 256, 512, 1024])
        layers.append(layer(kind, activation))
        params.append(weights(kind, width, new))
        words.append(f"{kind} {activation} {new}")
        width = new if kind in ("dense", "normed") else width
    tail = rng.choice([jnp.sum, lambda y: jnp.mean(y**2), jax.nn.logsumexp])
    return layers, tail, params, x, ", ".join(words)


def plain(layers, tail):
    def loss(params, x):
        for f, w in zip(layers, params, strict=True):
            x = f(w, x)
        return tail(x)

    return loss


def last_stage(layers, tail):
    def loss(params, x):
        for f, w in zip(layers[:-1], params[:-1], strict=True):
            x = f(w, x)
        return jax.checkpoint(lambda w, x: tail(layers[-1](w, x)))(params[-1], x)

    return loss


def temporaries(fun, args):
    compiled = jax.jit(jax.grad(fun)).lower(*args).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    print(f"jax {jax.__version__}, {options.programs} programs, seed {options.seed}")
    changes = {"whole loss": [], "last stage": []}
    verdicts = {name: {} for name in changes}
    for _ in range(options.programs):
        layers, tail, params, x, words = program(rng)
        fun = plain(layers, tail)
        base = temporaries(fun, (params, x))
        for name, wrapped in (
            ("whole loss", jax.checkpoint(fun)),
            ("last stage", last_stage(layers, tail)),
        ):
            (found,) = inspect(wrapped, argnums=0, on="cpu")(params, x).checkpoints
            verdicts[name][found.verdict] = verdicts[name].get(found.verdict, 0) + 1
            if found.verdict == Verdict.SAVES_NOTHING:
                change = temporaries(wrapped, (params, x)) / base - 1
                changes[name].append((change, words))
    for name, found in changes.items():
        large = [item for item in found if abs(item[0]) > 0.05]
        worst = max((abs(change) for change, _ in found), default=0.0)
        share = len(large) / len(found) if found else 0.0
        said = ", ".join(f"{v} {n}" for v, n in verdicts[name].items())
        print(f"{name}: {said}")
        print(f"  of {len(found)} called useless: worst {worst:.1%}, {share:.0%} beyond 5 %")
        for change, words in large:
            print(f"    {change:+.1%}  {words}")


if __name__ == "__main__":
    main()
