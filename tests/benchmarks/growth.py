"""CPU time and memory of `jaxresid report` as programs grow, against JAX's own trace and lowering.

    python tests/benchmarks/growth.py [--only TEXT] [--sizes 25,50,100] [--rounds 3] [-- ARGUMENTS]

Programs are written to a temporary folder at several sizes. Two processes take each of them, in
turn: one imports JAX, traces value and gradients and lowers them; the other is the whole command,
`report` or the one in ARGUMENTS, such as `compare`. The user CPU seconds of each process and the
most memory that it held are printed, and their ratio. The least of the rounds counts, as machines
are noisy; ratios of two machines compare, seconds do not.

On the machine that these were measured on (JAX 0.10.2, gpu:h100; CPU seconds and MiB before and
after the work was made to grow with the program, and JAX's own):

    100 checkpoints, a line each       8.4 s, 331  ->  1.6 s, 192; JAX 0.5 s, 179
    the same in a training step       13.6 s, 425  ->  4.6 s, 214
    5,000 leaves, a chain of products  5.6 s, 1999 ->  4.9 s, 311; JAX 4.1 s, 248
    5,000 leaves, a sum of squares     6.9 s, 954  ->  5.3 s, 280; JAX 4.7 s, 251
    20,000 operations                 26.8 s, 11146 -> 5.8 s, 420; JAX 4.6 s, 252
    calls shared 2^14 times           36.3 s, 7033 ->  5.3 s, 468; JAX 2.5 s, 300

What is left of the last is that each of the 16,384 residuals has a line, consumers and a row of its
own. Checkpoints that are not alike are each taken away, at the cost of a trace of the whole
function; where they are alike, each still has a walk over the kernels of the whole program.
Where n kernels each read up to n arrays (a sum of x after each step, x being computed anew in each
of them), the operands alone are as many as n * n.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAD = """\
import jax
import jax.numpy as jnp


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


"""
OWN = """\
import importlib, jax
module = importlib.import_module({module!r})
jax.jit(jax.value_and_grad(module.loss)).trace(*module.loss_inputs()).lower()
"""


def checkpoints(n):
    calls = "".join(f"    x = jax.checkpoint(layer)(x, ws[{i}])\n" for i in range(n))
    return (
        "def layer(h, w):\n    return h + jnp.tanh(h @ w) * jax.nn.sigmoid(h)\n\n\n"
        f"def loss(ws, x):\n{calls}    return jnp.sum(x)\n\n\n"
        f"def loss_inputs():\n    return [f32(64, 64)] * {n}, f32(32, 64)\n"
    )


def widths(n):
    calls = "".join(f"    x = jax.checkpoint(layer)(x, ws[{i}])\n" for i in range(n))
    return (
        "def layer(h, w):\n    return jnp.tanh(h @ w)\n\n\n"
        f"def loss(ws, x):\n{calls}    return jnp.sum(x)\n\n\n"
        f"def loss_inputs():\n    return [f32(64 + i, 65 + i) for i in range({n})], f32(32, 64)\n"
    )


def products(n):
    return (
        "def loss(p, x):\n    for k in sorted(p):\n        x = jnp.tanh(x * p[k])\n"
        "    return jnp.sum(x)\n\n\n"
        f'def loss_inputs():\n    return {{f"p{{i}}": f32(8) for i in range({n})}}, f32(8)\n'
    )


def squares(n):
    return (
        "def loss(p):\n    return sum(jnp.sum(v**2) for v in jax.tree.leaves(p))\n\n\n"
        f'def loss_inputs():\n    return ({{f"p{{i}}": f32(8) for i in range({n})}},)\n'
    )


def operations(n):
    return (
        f"def loss(x):\n    for _ in range({n}):\n        x = jnp.sin(x)\n"
        "    return jnp.sum(x)\n\n\n"
        "def loss_inputs():\n    return (f32(64),)\n"
    )


def shared(n):
    depth = n.bit_length() - 1
    calls = "".join(
        f"@jax.jit\ndef f{i + 1}(h):\n    return f{i}(f{i}(h))\n\n\n" for i in range(depth)
    )
    return (
        f"@jax.jit\ndef f0(h):\n    return jnp.sin(h)\n\n\n{calls}"
        f"def loss(h):\n    return jnp.sum(f{depth}(h))\n\n\n"
        "def loss_inputs():\n    return (f32(64),)\n"
    )


PROGRAMS = {
    "checkpoints, a line each": (checkpoints, (25, 50, 100, 200)),
    "checkpoints of other widths": (widths, (25, 50, 100)),
    "leaves, a chain of products": (products, (1250, 2500, 5000)),
    "leaves, a sum of squares": (squares, (1250, 2500, 5000)),
    "operations in a chain": (operations, (5000, 10000, 20000)),
    "calls of one function": (shared, (2**12, 2**13, 2**14)),
}


def measured(command, folder):
    """Run a command, and return its user CPU seconds and the most MiB that it held."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
    }
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1):
            log.seek(0)
            sys.exit(log.read().decode(errors="replace")[-2000:])
    return used.ru_utime, used.ru_maxrss / 1024


def least(command, folder, rounds):
    times, sizes = zip(*(measured(command, folder) for _ in range(rounds)), strict=True)
    return min(times), min(sizes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--sizes", default="", help="in place of those of each program")
    parser.add_argument("--rounds", type=int, default=3, help="of which the least is taken")
    parser.add_argument("arguments", nargs="*", default=["report"], help="the command to measure")
    options = parser.parse_args()
    print(f"jaxresid {' '.join(options.arguments)}, python {sys.version.split()[0]}; CPU seconds")
    with tempfile.TemporaryDirectory() as folder:
        for name, (source, sizes) in PROGRAMS.items():
            if options.only not in name:
                continue
            for n in [int(n) for n in options.sizes.split(",")] if options.sizes else sizes:
                module = f"{source.__name__}_{n}"
                Path(folder, f"{module}.py").write_text(HEAD + source(n))
                own = [sys.executable, "-c", OWN.format(module=module)]
                command, *more = options.arguments
                whole = [sys.executable, "-m", "jaxresid", command, f"{module}:loss"]
                whole += ["--inputs", f"{module}:loss_inputs", *more]
                own_time, own_size = least(own, folder, options.rounds)
                time, size = least(whole, folder, options.rounds)
                print(
                    f"{name:28} {n:6}  JAX {own_time:6.1f} s {own_size:5.0f} MiB  "
                    f"jaxresid {time:6.1f} s {size:5.0f} MiB  ratio {time / own_time:5.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
