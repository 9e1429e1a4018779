"""Time of a report against the bare trace of forward and backward, measured in the same run.

    python tests/benchmarks/report_time.py            48 layers, scanned and unrolled
    python tests/benchmarks/report_time.py --long     also 100 to 1,000 unrolled layers
    python tests/benchmarks/report_time.py --plan     the plan of a training step in place of these
    python tests/benchmarks/report_time.py --library  ten programs of library_programs.py, and 48
                                                      layers, in CPU seconds, in place of these

A report is tracing, provenance, consumers, cost, peak, the checkpoints' counterfactuals and the
rendered text. The two are timed in turn, with
JAX's caches cleared before each, and the median of the pairwise ratios is printed: machines are
noisy, seconds of two runs do not compare. A plan is held against the bare trace of its step, in
CPU seconds: it traces and measures dozens of variants, within the budget between that of the step
as it is written and that without checkpoints.

With `--library` a report is the least of as many CPU seconds as there are rounds, and what it is
held against is one trace of `jax.value_and_grad` by the first argument. On a busy machine (JAX
0.10.2, four rounds) the ratios were 1.3 to 2.5 for seven of the ten, 2.7 for
jax_dot_product_attention, 3.3 for linen_gru_lm and equinox_bert, 4.3 (5.1 in another run) for
linen_cross_attention_seq2seq, and 2.6 for the layers. What bounds these is that their rewrites of
logits and attention are shown, with figures. Of the 5.1 of the seq2seq model 1.2 are the trace, 0.4
the primal jaxpr that is rewritten, 0.6 all else without rewrites, and each of its four rewrites
takes 0.4 to differentiate (0.7 where no layers are alike) and 0.3 to find, to make and to measure.
Of the layers' 2.6 1.0 is the trace, and 0.9 to differentiate one body with its attention in parts.
"""

from __future__ import annotations

import argparse
import functools
import gc
import io
import math
import resource
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
from rich.console import Console

from fixtures.inspect import gpt, train_step
from jaxresid import inspect, plan
from jaxresid.render.report.text import render_report

LIBRARY = (
    *("linen_lm_scanned_dropout", "linen_gru_lm", "linen_vit", "linen_cross_attention_seq2seq"),
    *("nnx_lstm", "equinox_bert", "equinox_unet_convs", "haiku_vq_vae"),
    *("jax_dot_product_attention", "optax_ctc"),
)


def bare(fun, args):
    traced = jax.jit(lambda *a: jax.vjp(fun, *a)).trace(*args)
    y, vjp = traced.out_info
    jax.jit(lambda v, ct: v(ct)).trace(vjp, y)


def report(fun, args, **options):
    made = inspect(fun, **options)(*args)
    Console(file=io.StringIO(), width=80).print(render_report(made))


def seconds(run, *args):
    jax.clear_caches()
    gc.collect()
    start = time.perf_counter()
    run(*args)
    return time.perf_counter() - start


def compare(name, fun, args, rounds):
    pairs = [(seconds(bare, fun, args), seconds(report, fun, args)) for _ in range(rounds)]
    traces, reports = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = sorted(b / a for a, b in pairs)
    print(
        f"{name:<30} trace {traces:7.2f} s  report {reports:7.2f} s  "
        f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        flush=True,
    )
    return traces, reports


def checkpointed(layers, x):
    layer = jax.checkpoint(gpt.layer)
    return functools.reduce(layer, layers, x).astype("float32").sum()


def checkpointed_scan(stacked, x):
    body = jax.checkpoint(lambda x, w: (gpt.layer(x, w), None))
    return jax.lax.scan(body, x, stacked)[0].astype("float32").sum()


def unrolled(n):
    return [gpt.weights() for _ in range(n)], gpt.tokens()


def exponent(sizes, times):
    """Slope of log time over log size, by least squares."""
    xs, ys = [math.log(n) for n in sizes], [math.log(t) for t in times]
    mx, my = statistics.fmean(xs), statistics.fmean(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / sum(
        (x - mx) ** 2 for x in xs
    )


def compare_plan(name, fun, args, rounds):
    """Plan for a budget that takes the whole search, and print the ratio of CPU seconds."""
    made = plan(fun, budget="1TiB", on="gpu:h100", mode="program")(*args)
    budget = (made.lowest_nbytes + made.plain_nbytes) // 2
    ratios, tried = [], 0
    for _ in range(rounds):
        times = []
        for run in (
            lambda: jax.jit(fun).trace(*args),
            lambda: plan(fun, budget=budget, on="gpu:h100", mode="program")(*args),
        ):
            jax.clear_caches()
            gc.collect()
            start = time.process_time()
            found = run()
            times.append(time.process_time() - start)
        tried = found.tried
        ratios.append(times[1] / times[0])
    ratios.sort()
    print(
        f"{name:<30} {tried} variants  plan {times[1]:7.2f} CPU s  "
        f"ratio to the bare trace {statistics.median(ratios):.1f} "
        f"({ratios[0]:.1f} to {ratios[-1]:.1f})",
        flush=True,
    )


def library():
    """Return ten programs by name, and 48 layers."""
    from tests.benchmarks import library_programs

    losses = {each.__name__: each for each in library_programs.LOSSES}
    programs = {name: losses[name]() for name in LIBRARY}
    scanned = gpt.weights(gpt.WIDTH, 48), gpt.tokens()
    return {**programs, "48 layers, scanned": (gpt.loss_scan, scanned)}


def once(fun, args):
    jax.jit(jax.value_and_grad(fun, allow_int=True)).trace(*args)


def cpu_seconds(run, *args):
    jax.clear_caches()
    gc.collect()
    start = time.process_time()
    run(*args)
    return time.process_time() - start


def compare_library(rounds, only):
    """Print the ratio of CPU seconds of each program."""
    for name, (fun, args) in library().items():
        if only not in name:
            continue
        trace = min(cpu_seconds(once, fun, args) for _ in range(rounds))
        asked = functools.partial(report, mode="loss", argnums=0)
        whole = min(cpu_seconds(asked, fun, args) for _ in range(rounds))
        print(
            f"{name:<30} trace {trace:6.2f} CPU s  report {whole:6.2f} CPU s  "
            f"ratio {whole / trace:.2f}",
            flush=True,
        )


def _print_exponents(sizes, traces, reports):
    print(f"exponent from {sizes[0]} to {sizes[-1]} layers: ", end="")
    print(f"trace {exponent(sizes, traces):.2f}, report {exponent(sizes, reports):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--long", action="store_true", help="100 to 1,000 unrolled layers too")
    parser.add_argument("--plan", action="store_true", help="the plan of a training step alone")
    parser.add_argument("--library", action="store_true", help="programs of libraries alone")
    parser.add_argument("--only", default="", help="of these, those whose name contains this")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"jax {jax.__version__}, python {sys.version.split()[0]}")
    if options.plan:
        args = train_step.train_step_inputs()
        compare_plan("a step", train_step.train_step_checkpointed, args, options.rounds)
        return
    if options.library:
        compare_library(options.rounds, options.only)
        return
    scanned = gpt.weights(gpt.WIDTH, 48), gpt.tokens()
    seconds(report, gpt.loss_scan, scanned)  # imports
    compare("48 layers, scanned", gpt.loss_scan, scanned, options.rounds)
    compare("48 layers, unrolled", gpt.loss, unrolled(48), options.rounds)
    compare("48 scanned, checkpointed body", checkpointed_scan, scanned, options.rounds)
    compare("48 layers, each checkpointed", checkpointed, unrolled(48), options.rounds)
    if options.long:
        sizes = (100, 200, 400, 1000)
        found = [compare(f"{n} layers, unrolled", gpt.loss, unrolled(n), 1) for n in sizes]
        traces, reports = zip(*found, strict=True)
        _print_exponents(sizes, traces, reports)
        found = [compare(f"{n} checkpointed", checkpointed, unrolled(n), 1) for n in sizes]
        _print_exponents(sizes, *zip(*found, strict=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
