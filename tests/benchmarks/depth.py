"""CPU time of reports and plans as programs get deeper, and the exponents in depth.

    python tests/benchmarks/depth.py [--only TEXT] [--depths 12,24,48,96] [--on tpu:v5p]

`report` of layers that share one checkpointed function, and of checkpoints that each have a line
of their own; of the former also one variant, traced and measured, as a plan does dozens of times,
and a whole plan for three quarters of the peak, with nothing compiled and no code checked. Each
is CPU time of this process, as a ratio to the bare trace of value and gradients that is taken right
before it, with JAX's caches cleared before each. The exponent is the slope of the time's logarithm
over that of the depth.

With a line for each checkpoint, seconds for 12, 24, 48, 100 and 200 lines on tpu:v5p (JAX 0.10.2,
a shared machine, one run): 0.3, 0.7, 1.4, 3.6, 9.9, exponent 1.19. Where each is taken away, the
first four: 0.4, 1.4, 4.3, 22.0, exponent 1.85.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import report_time

from jaxresid import inspect
from jaxresid.advice.plan.plan import planned
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.inspector.subject.base import gc_paused
from jaxresid.inspector.variants.choices import Choice

WIDTH = 512


def layers(depth, folder):
    return report_time.checkpointed, report_time.unrolled(depth)


def lines(depth, folder):
    """A loss with as many checkpoints, each on a line of its own."""
    source = ["import jax, jax.numpy as jnp", "def layer(x, w):"]
    source += ["    return x + jnp.tanh(jnp.tanh(x @ w) @ w)", "def loss(ws, x):"]
    source += [f"    x = jax.checkpoint(layer)(x, ws[{i}])" for i in range(depth)]
    source += ["    return x.sum()"]
    path = Path(folder, f"lines_{depth}.py")
    path.write_text("\n".join(source) + "\n")
    names = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    weights = [jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32")] * depth
    return names["loss"], (weights, jax.ShapeDtypeStruct((8 * WIDTH, WIDTH), "float32"))


def report(on, fun, args):
    """Returns the work to be timed."""
    return lambda: inspect(fun, on=on)(*args)


def variant(on, fun, args):
    found = subject(Question(fun, args, on=on)).variants()
    place = next(p for p in found.places() if p.kind == "checkpoint")
    choices = {place: (Choice(jax.checkpoint_policies.dots_saveable),) * place.calls}
    return lambda: found.variant(choices)


def plan(on, fun, args):
    budget = inspect(fun, on=on)(*args).peak.nbytes * 3 // 4
    return lambda: planned(subject(Question(fun, args, on=on)), budget)


def seconds(run):
    jax.clear_caches()
    gc.collect()
    start = time.process_time()
    with gc_paused():
        run()
    return time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--depths", default="12,24,48,96")
    parser.add_argument("--on", default="tpu:v5p")
    options = parser.parse_args()
    depths = [int(n) for n in options.depths.split(",")]
    rows = {
        "report, one checkpointed function": (layers, report),
        "variant, one checkpointed function": (layers, variant),
        "plan, one checkpointed function": (layers, plan),
        "report, a line for each": (lines, report),
    }
    print(f"jax {jax.__version__}, python {sys.version.split()[0]}; CPU seconds, on {options.on}")
    with tempfile.TemporaryDirectory() as folder:
        warm = report(options.on, *layers(2, folder))
        seconds(warm)
        for name, (build, work) in rows.items():
            if options.only not in name:
                continue
            bare, times = [], []
            for depth in depths:
                fun, args = build(depth, folder)
                run = work(options.on, fun, args)
                bare.append(seconds(functools.partial(report_time.bare, fun, args)))
                times.append(seconds(run))
                print(
                    f"{name:36} {depth:4}  trace {bare[-1]:6.2f}  {times[-1]:7.2f}  "
                    f"ratio {times[-1] / bare[-1]:6.1f}",
                    flush=True,
                )
            if len(depths) > 1:
                print(
                    f"{name:36} exponent: trace {report_time.exponent(depths, bare):.2f}, "
                    f"{report_time.exponent(depths, times):.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
