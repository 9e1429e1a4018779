"""CPU time of reports and plans as programs get deeper, and the exponents in depth.

    python tests/benchmarks/depth.py [--only TEXT] [--depths 12,24,48] [--on tpu:v5p] [--rounds 3]

`report` of layers that share one checkpointed function, and of checkpoints that each have a line
of their own; of the former also one variant, traced and measured, as a plan does dozens of times,
and a whole plan for three quarters of the peak, with nothing compiled and no code checked. Each
is CPU time of this process, as a ratio to the bare trace of value and gradients that is taken right
before it, with JAX's caches cleared before each. The exponent is the slope of the time's logarithm
over that of the depth.

With a line for each checkpoint, seconds for 12, 24, 48, 100 and 200 lines on tpu:v5p (JAX 0.10.2,
a shared machine, one run): 0.3, 0.7, 1.4, 3.6, 9.9, exponent 1.19. Where each is taken away, the
first four: 0.4, 1.4, 4.3, 22.0, exponent 1.85.

Of 12, 24, 48 and 96 layers on tpu:v5p (JAX 0.10.2, a shared machine, `--rounds 2`), seconds besides
the bare trace: the report of one checkpointed function 0.3, 0.5, 0.8, 1.5, exponent 0.79, as the
whole program is built of all layers; of a line for each 0.4, 0.5, 0.8, 1.6, exponent 0.67, 1.07
from 48 to 96. The plan of the former (one round) takes 7.0, 6.4, 7.7, 9.8, exponent 0.17: it traces
a few of the layers.
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
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.inspector.subject.base import gc_paused
from jaxresid.inspector.variants.choices import Choice
from tests.plans import planned

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
    parser.add_argument("--rounds", type=int, default=1, help="of which the least is taken")
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
                trace = functools.partial(report_time.bare, fun, args)
                pairs = [(seconds(trace), seconds(run)) for _ in range(options.rounds)]
                bare.append(min(pair[0] for pair in pairs))
                times.append(min(pair[1] for pair in pairs))
                print(
                    f"{name:36} {depth:4}  trace {bare[-1]:6.2f}  {times[-1]:7.2f}  "
                    f"ratio {times[-1] / bare[-1]:6.1f}",
                    flush=True,
                )
            if len(depths) > 1:
                _print_exponents(name, depths, bare, times, is_traced_in=work is not variant)


def _print_exponents(name, depths, bare, times, *, is_traced_in):
    """Print exponents of the trace, of all, and of what comes after the trace that is in it."""
    found = f"trace {report_time.exponent(depths, bare):.2f}, all "
    found += f"{report_time.exponent(depths, times):.2f}"
    after = [t - b for t, b in zip(times, bare, strict=True)]
    if is_traced_in and min(after) > 0:
        found += f", after the trace {report_time.exponent(depths, after):.2f}"
    print(f"{name:36} exponent: {found}", flush=True)


if __name__ == "__main__":
    main()
