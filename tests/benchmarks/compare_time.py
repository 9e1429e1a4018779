"""Time of a comparison against the bare traces that it needs, measured in the same run.

    python tests/benchmarks/compare_time.py           48 layers scanned; 12, 24 and 48 unrolled

What is needed: the forward and the backward trace of the function without a checkpoint and under
each policy of the comparison, as a user would write them. The two are timed in turn, with JAX's
caches cleared before each, and the median of the pairwise ratios is printed: machines are noisy,
seconds of two runs do not compare.
"""

from __future__ import annotations

import argparse
import functools
import gc
import math
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import jax

from fixtures.inspect import gpt
from jaxresid import compare


def scanned(stacked, x, wrap=lambda body: body):
    body = wrap(lambda x, p: (gpt.layer(x, p), None))
    return jax.lax.scan(body, x, stacked)[0].astype("float32").sum()


def unrolled(layers, x, wrap=jax.checkpoint):
    return functools.reduce(wrap(gpt.layer), layers, x).astype("float32").sum()


def policies():
    found = jax.checkpoint_policies
    return (
        found.everything_saveable,
        found.dots_saveable,
        found.dots_with_no_batch_dims_saveable,
        found.nothing_saveable,
        found.offload_dot_with_no_batch_dims("device", "pinned_host"),
    )


def bare(fun, args, **options):
    def plain(body):
        return body

    wraps = [plain, *(functools.partial(jax.checkpoint, policy=p, **options) for p in policies())]
    for wrap in wraps:
        traced = jax.jit(lambda *a, w=wrap: jax.vjp(functools.partial(fun, wrap=w), *a)).trace(
            *args
        )
        y, vjp = traced.out_info
        jax.jit(lambda v, ct: v(ct)).trace(vjp, y)


def seconds(run, *args, **options):
    jax.clear_caches()
    gc.collect()
    start = time.perf_counter()
    run(*args, **options)
    return time.perf_counter() - start


def measure(name, fun, args, rounds, **options):
    pairs = [
        (seconds(bare, fun, args, **options), seconds(compare(fun), *args)) for _ in range(rounds)
    ]
    traces, comparisons = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = sorted(b / a for a, b in pairs)
    print(
        f"{name:<24} {len(compare(fun)(*args).rows)} rows  traces {traces:6.2f} s  "
        f"compare {comparisons:6.2f} s  "
        f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        flush=True,
    )
    return comparisons


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print(f"jax {jax.__version__}, {rounds} rounds")
    stacked = gpt.weights(gpt.WIDTH, 48), gpt.tokens()
    measure("48 layers scanned", scanned, stacked, rounds, prevent_cse=False)
    sizes, times = (12, 24, 48), []
    for n in sizes:
        args = [gpt.weights() for _ in range(n)], gpt.tokens()
        times.append(measure(f"{n} checkpointed layers", unrolled, args, rounds))
    slope = math.log(times[-1] / times[0]) / math.log(sizes[-1] / sizes[0])
    print(f"exponent of the time in the number of layers: {slope:.2f}")


if __name__ == "__main__":
    main()
